"""The playground: the two landscapes with live walks, as one fragment of HTML for any page.

Plain JavaScript in the files beside this one, joined here: no build step, no request, no eval. It
lives in a shadow root, so that neither it nor the page around it can change the other's style.
Knows nothing of reports or sites: they put `fragment()` where they like, under a heading of theirs.
"""

import re
from importlib.resources import files

from antipgd.paper import sheet

MODULES = ("stream", "problems", "theory", "methods", "track", "settings")
VIEWS = ("words", "drawing", "ground", "landscape", "charts", "controls", "view")
TITLE = "Anticorrelated noise: the playground"
_LEAD = (
    "Gradient descent, bare and with five kinds of noise, where flat and sharp minima lie side by "
    "side. Noise that is taken back a step later drifts to the flat ones; independent noise does "
    "not."
)
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";', re.M)


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _enclosed(name: str) -> str:
    """A module as a constant that holds what it exports; it takes its imports from such."""
    text = _text(f"{name}.js")
    exports = re.findall(r"^export (?:const|class|function) (\w+)", text, re.M)
    text = re.sub(r"^export ", "", text, flags=re.M)
    text = _IMPORT.sub(r"const \1 = \2_js;", text)
    return f"const {name}_js = (() => {{\n{text}\nreturn {{ {', '.join(exports)} }};\n}})();"


def joined(names: tuple[str, ...] = MODULES) -> str:
    """Modules as one text; each must stand after those it imports."""
    return "\n".join(map(_enclosed, names))


def script() -> str:
    """The whole program; it looks for its host by id when it runs."""
    return (
        f'(() => {{\n"use strict";\n{joined(MODULES + VIEWS)}\n'
        'const host = document.getElementById("playground");\n'
        'if (!host.shadowRoot) host.attachShadow({ mode: "open" })\n'
        '  .append(host.querySelector("template").content);\n'
        "host.playground = new view_js.Playground(host);\n})();"
    )


def script_source() -> str:
    """What a Content-Security-Policy lists under script-src to let this script run alone."""
    return sheet.script_source(script())


def _style(scale: float) -> str:
    """The style sheet with its rem taken times `scale`."""
    return re.sub(
        r"(\d[\d.]*)rem\b", lambda m: f"{float(m[1]) * scale:g}rem", _text("playground.css")
    )


def fragment(scale: float = 1.0) -> str:
    """The playground, to be put once into a page; from 300 pixels on it fits any width.

    `scale` is how many rem of that page are 16 pixels: 0.8 for mkdocs-material.
    """
    return (
        '<div id="playground">\n<template shadowrootmode="open">\n'
        f"<style>\n{_style(scale)}</style>\n{_text('playground.html')}</template>\n"
        "<noscript>The playground needs JavaScript.</noscript>\n</div>\n"
        f"<script>{script()}</script>\n"
    )


def page() -> str:
    """A page with nothing else on it."""
    return f"""{sheet.head(TITLE, _text("page.css"), [script()])}<body>
<main>
<h1>Playground</h1>
<p>{_LEAD}</p>
{fragment()}</main>
</body>
</html>
"""
