"""docs/errors.md: every refusal and warning of the library, read off its source.

`python benchmarks/errors_page.py` writes it; a test holds it. What is in braces is filled in when
it is said.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"
ROOMS = {
    "PyTorch": "torch",
    "JAX": "optax",
    "Flatness": "flatness",
    "Callbacks of trainers": "trainers",
    "Noise": "noise",
    "Theory": "theory",
    "What is accepted everywhere": "checks.py",
}
INTRODUCTION = """# Errors and warnings

What the library refuses and what it warns of, with the file that says it; `{…}` is filled in when
it is said. A refusal comes before anything has changed. Written by `python
benchmarks/errors_page.py` from the source.
"""
LEAST = 3  # words; what is shorter is said in several parts


def text_of(node: ast.expr) -> str | None:
    """A message as it stands in the source, with {…} where a value comes in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values]
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [text_of(node.left) or "{…}", text_of(node.right) or "{…}"]
        return "".join(sides)
    return None


def said(tree: ast.Module) -> list[tuple[str, str]]:
    """Kind and message of every `raise` and `warnings.warn` with a text of its own, in order."""
    found = []
    for node in ast.walk(tree):
        call: ast.expr | None = None
        if isinstance(node, ast.Raise):
            call = node.exc
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("warnings.warn", "warn"):
            call = node
        if isinstance(call, ast.Call) and call.args:
            text, raised = text_of(call.args[0]), isinstance(node, ast.Raise)
            if text and len(text.split()) >= LEAST:
                name = ast.unparse(call.func) if raised else "warning"
                found.append((call.lineno, name, " ".join(text.split())))
    return [(kind, text) for _, kind, text in sorted(found)]


def rows(room: str) -> list[str]:
    """The lines of a room's table."""
    base = ROOT / "src" / "antipgd" / room
    files = sorted(base.rglob("*.py")) if base.is_dir() else [base]
    lines: list[str] = []
    for file in files:
        for kind, text in said(ast.parse(file.read_text("utf-8"))):
            shown = re.sub(r"([|<>])", r"\\\1", text)
            where = file.relative_to(ROOT / "src" / "antipgd")
            lines.append(f"| {shown} | {kind} | `{where}` |")
    return list(dict.fromkeys(lines))


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    for title, room in ROOMS.items():
        lines += [f"## {title}\n", "| what is said | kind | in |", "|---|---|---|", *rows(room), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    sys.exit(0)
