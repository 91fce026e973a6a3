"""README stays a page that is read, and what it and the others show is what people will write."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = 1_200
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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


def scripts():
    """The examples, and the blocks of Python on the pages, each with whose it is."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield path.name, path.read_text("utf-8")
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.S):
            yield page.name, block


def loads_it_lazily(script):
    """Whether `antipgd.torch` is loaded where it is used, which may be a branch that is not run."""
    lazily = re.search(r"^(?:>>> )?import (?:[\w.]+, )*antipgd(?:,|$)", script, flags=re.M)
    return lazily is not None and "antipgd.torch." in script


def test_what_uses_noise_in_torch_imports_it_by_name():
    """So that a resume which forgets the noise is heard of: the import sets up the ears."""
    assert loads_it_lazily(">>> import torch, antipgd\n>>> antipgd.torch.perturb(m)")
    assert not loads_it_lazily("import torch, antipgd.torch\nantipgd.torch.perturb(m)")
    assert [name for name, script in scripts() if loads_it_lazily(script)] == []
