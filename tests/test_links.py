"""What the documents point to is there: files of the repository, and headings in them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")


def headings(page):
    """As GitHub names them."""
    found = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", text.lower()) for text in found]
    return {"#" + text.replace(" ", "-") for text in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for file, heading in LINK.findall(text):
        target = page.parent / file if file else page
        assert target.exists(), f"{file} is not there"
        if heading and target.suffix == ".md":
            assert heading in headings(target), f"{target.name} has no {heading}"


def test_a_heading_with_signs():
    page = ROOT / "docs" / "flatness.md"
    assert "#choosing-σ" in headings(page)


def test_the_site_is_built_with_warnings_that_count():
    """mkdocs does not count what --quiet keeps it from saying."""
    (build,) = [line for line in (ROOT / "Makefile").read_text("utf-8").splitlines()
                if "mkdocs build" in line]  # fmt: skip
    assert "--quiet" not in build
    assert "\nstrict: true\n" in (ROOT / "mkdocs.yml").read_text("utf-8")
