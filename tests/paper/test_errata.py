"""The list of slips, the document made of it, and the checks that show them."""

from pathlib import Path

from antipgd.paper.errata import BY_READING, SLIPS, as_markdown

DOCUMENT = Path(__file__).parents[2] / "docs" / "errata.md"


def test_the_document_is_made_from_the_list():
    """If it fails: python -m antipgd.paper.errata > docs/errata.md"""
    assert DOCUMENT.read_text() == as_markdown()


def test_every_slip_is_shown():
    assert len(SLIPS) >= 33
    assert sum(slip.check is not None for slip in SLIPS) >= 16
    for slip in SLIPS:
        assert slip.where
        assert slip.printed != slip.right
        assert slip.shown_by() == BY_READING or any(c.isdigit() for c in slip.shown_by())


def test_the_checks_measure_what_they_say():
    shown = {slip.where: slip.shown_by() for slip in SLIPS if slip.check is not None}
    assert "= 9.000" in shown["eq:gradientHessianWV"]
    assert "coefficient 1.00" in shown["eq:sparse_loss"]
    assert "1.00 dσ² exactly, printed 1.25" in shown["cor:ito_discrete_const"]
    assert shown["cor:anti_variations"].endswith("with the factor on the right below 1e-14")
    assert "→ 0.2500" in shown["prop:ito_discrete_all_rho"]
