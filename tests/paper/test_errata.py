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


def test_what_was_no_slip_is_gone_and_what_was_missing_is_there():
    text = as_markdown()
    for gone in ("10 runs (appendix)", "label noise depends on model and data", "floor O(σ³) |"):
        assert gone not in text
    shown = {slip.printed: slip.shown_by() for slip in SLIPS}
    assert shown["a batch of 7,500 is 1/7 of the dataset"] == "50,000/7,500 = 6.67"
    (unbounded,) = [one for printed, one in shown.items() if printed.startswith("E⟨∇L̃, O(σ³)⟩")]
    assert unbounded.endswith("16 and 1.4e+02, 1.6e+04 and 1.4e+06, 1.6e+07 and 1.4e+10")
    (scale,) = [one for printed, one in shown.items() if "with L̄ a sum" in printed]
    assert scale == "50 examples, ξ = 0: ∇L̄ is 50 times ∇L"
