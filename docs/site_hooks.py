"""For `make docs`: what is another thing on the site than in the repository.

Links to files beside `docs` are names of files there, numbers of notes are no links, examples in
docstrings are code, the page of the playground has it on it, and the theme's search has a name for
those who cannot see it. Whatever is public and not on the page of the API is a warning.
"""

import ast
import logging
import re
from pathlib import Path

from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

from antipgd.paper.playground import fragment

log = logging.getLogger("mkdocs.hooks.api")  # warnings are errors
SOURCE = Path(__file__).parents[1] / "src" / "antipgd"
PACKAGES = ("torch", "optax", "flatness", "noise", "theory/finite_rate", "paper")
MODULES = ("trainers/lightning", "trainers/transformers", "noise/reference", "noise/inplace",
           "theory/linear", "theory/valley", "theory/regularisation", "theory/pac_bayes",
           "theory/equivalences", "theory/batches", "theory/finder", "estimate")  # fmt: skip

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(#[^)]*)?\)")
NOTE = re.compile(r"\[(\d+)\]")
SEARCH = 'data-md-component="search" role="dialog"'
REM = 0.8  # of 16 pixels, which mkdocs-material's is larger than


def named(link):
    """`[examples/](../examples)` has no page here: the text, and the file in the repository."""
    text, file, _ = link.groups()
    return f"{text} (`{file}` in the repository)" if text.strip("`/") != file else f"`{file}`"


class Examples(Preprocessor):
    """`>>>` outside of fences is Python, up to an empty line; Markdown sees three quotations."""

    def run(self, lines):
        found, fenced, example = [], False, False
        for line in [*lines, ""]:
            fenced ^= line.lstrip().startswith("```")
            if line.startswith(">>>") and not fenced and not example:
                found, example = [*found, "```python"], True
            elif example and not line.strip():
                found, example = [*found, "```"], False
            found.append(line)
        return found


class ExamplesAreCode(Extension):
    def extendMarkdown(self, md):  # noqa: N802
        md.preprocessors.register(Examples(md), "examples", 40)  # before fences are looked for


def on_config(config):
    config.markdown_extensions.append(ExamplesAreCode())


def on_page_markdown(markdown, page, **others):
    if page.file.src_uri == "hosts.md":
        markdown = NOTE.sub(r"\\[\1\\]", markdown)
    return OUTSIDE.sub(named, markdown)


def on_page_content(html, page, **others):
    if page.file.src_uri != "playground.md":
        return html
    head, end, rest = html.partition("</h1>")
    return f"{head}{end}{fragment(scale=REM)}{rest}"


def promised():
    """What is public, as the source says: `__all__` of packages, what modules define."""
    for place in PACKAGES:
        tree = ast.parse((SOURCE / place / "__init__.py").read_text("utf-8"))
        (names,) = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
        ]
        yield from (f"antipgd/{place}/{name}".replace("/", ".") for name in names)
    for place in MODULES:
        tree = ast.parse((SOURCE / f"{place}.py").read_text("utf-8"))
        names = [
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]
        yield from (
            f"antipgd/{place}/{name}".replace("/", ".")
            for name in names
            if not name.startswith("_")
        )


def on_post_page(output, page, **others):
    if page.file.src_uri == "api.md":
        for name in promised():
            if f'id="{name}"' not in output:
                log.warning("api.md does not have %s", name)
    return output.replace(SEARCH, f'{SEARCH} aria-label="Search"')
