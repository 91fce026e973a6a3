"""For `make docs`: what is another thing on the site than in the repository.

Links to files beside `docs` are names of files there, and the page of the playground has it on it.
"""

import re

from antipgd.paper.playground import fragment

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(#[^)]*)?\)")
REM = 0.8  # of 16 pixels, which mkdocs-material's is larger than


def named(link):
    """`[examples/](../examples)` has no page here: the text, and the file in the repository."""
    text, file, _ = link.groups()
    return f"{text} (`{file}` in the repository)" if text.strip("`/") != file else f"`{file}`"


def on_page_markdown(markdown, page, **others):
    return OUTSIDE.sub(named, markdown)


def on_page_content(html, page, **others):
    if page.file.src_uri != "playground.md":
        return html
    head, end, rest = html.partition("</h1>")
    return f"{head}{end}{fragment(scale=REM)}{rest}"
