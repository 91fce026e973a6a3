"""README stays a page that is read: what is added later goes to docs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = 1_200


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= WORDS


def test_readme_leads_to_every_page():
    """By itself, or through a page that it names."""
    reached, new = set(), {ROOT / "README.md"}
    while new:
        reached |= new
        found = {page: re.findall(r"\]\(([^)#:\s]+\.md)", page.read_text("utf-8")) for page in new}
        links = {(page.parent / one).resolve() for page, all_of in found.items() for one in all_of}
        new = {link for link in links if link.exists()} - reached
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= {path.name for path in reached}
