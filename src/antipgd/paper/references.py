r"""Where in the paper: its LaTeX labels in words, "Figure 2, third column" for
`fig:front_experiments (3rd)`.

The source prints no numbers, so they are counted as LaTeX counts them and kept in
`references.toml`, which `python -m antipgd.paper.references paper.tex` prints. Sections, theorems
(`thm` has a counter of its own, the others share one), equations by line, figures by order.
"""

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

PAPER = "https://arxiv.org/abs/2202.02831"
_PANELS = {"1st": "first", "2nd": "second", "3rd": "third"}
_THEOREMS = {"thm": "Theorem", "theorem": "Theorem", "proposition": "Proposition",
             "lemma": "Lemma", "corollary": "Corollary", "remark": "Remark"}  # fmt: skip
_LEVELS = ("section", "subsection", "subsubsection")
_LINES = ("align", "gather", "eqnarray")  # environments that number each of their lines


@cache
def places() -> dict[str, str]:
    """Every label of the paper with where it is."""
    return tomllib.loads(files(__package__).joinpath("references.toml").read_text("utf-8"))


def in_words(text: str) -> str:
    """A text with its labels in words.

    >>> in_words("fig:front_experiments (3rd), §sec:exp")
    'Figure 2, third column, Section 4'
    >>> in_words("fig:square_tuning_*"), in_words("app, matrix sensing")
    ('Figures 9 to 11', 'Appendix, matrix sensing')
    """
    text = re.sub(r"^app,", "Appendix,", text)
    text = re.sub(r"([\w:]+_)\*", lambda found: _several(found[1]) or found[0], text)
    return _pattern().sub(_place, text)


@cache
def _pattern() -> re.Pattern[str]:
    labels = "|".join(map(re.escape, sorted(places(), key=len, reverse=True)))
    return re.compile(rf"§?({labels})(?:\s*\((1st|2nd|3rd)(?: column)?\))?")


def _place(found: re.Match[str]) -> str:
    panel = f", {_PANELS[found[2]]} column" if found[2] else ""
    return places()[found[1]] + panel


def _several(prefix: str) -> str:
    """The first and the last of those whose labels begin alike, in the paper's order."""
    names = [place.rpartition(" ") for label, place in places().items() if label.startswith(prefix)]
    return f"{names[0][0]}s {names[0][2]} to {names[-1][2]}" if names else ""


# Counting, as LaTeX does.


class _Counters:
    """Sections, figures, theorems and equations as they are reached."""

    def __init__(self) -> None:
        self.section = [0, 0, 0]
        self.appendix = False
        self.of: defaultdict[str, int] = defaultdict(int)

    @property
    def chapter(self) -> str:
        first = self.section[0]
        return chr(ord("A") + first - 1) if self.appendix else str(first)

    def enter(self, level: int) -> str:
        self.section[level:] = [self.section[level] + 1, *[0] * (2 - level)]
        if level == 0:
            self.of.update(thm=0, theorem=0)
        number = ".".join([self.chapter, *map(str, self.section[1 : level + 1])])
        return f"{'Appendix' if self.appendix else 'Section'} {number}"

    def step(self, kind: str) -> str:
        """The next of its kind, in words."""
        if kind in _THEOREMS:
            shared = "thm" if kind == "thm" else "theorem"
            self.of[shared] += 1
            return f"{_THEOREMS[kind]} {self.chapter}.{self.of[shared]}"
        self.of[kind] += 1
        return f"{kind.capitalize()} {self.of[kind]}"


_TOKEN = re.compile(
    r"(?P<restated>\\begin\{restatable\}(?:\[[^]]*\])?\{(?P<what>\w+)\})"
    r"|\\(?P<edge>begin|end)\{(?P<name>[\w*]+)\}"
    r"|\\(?P<level>(?:sub){0,2}section)(?!\*)\b"
    r"|\\label\{(?P<label>[^}]+)\}|(?P<appendix>\\appendix\b)|(?P<line>\\\\)"
    r"|(?P<silent>\\(?:nonumber|notag)\b)|(?P<caption>\\caption\b)"
)


def counted(source: str) -> dict[str, str]:
    """The places of all labels of a LaTeX source, in its order."""
    counters, found = _Counters(), {}
    here, sums, number, silent = "", "", "", False
    body = re.sub(r"(?<!\\)%.*", "", source)
    for token in _TOKEN.finditer(body):
        name = (token["name"] or "").rstrip("*")
        starred = (token["name"] or "").endswith("*")
        if token["appendix"]:
            counters.appendix, counters.section = True, [0, 0, 0]
        elif token["level"]:
            here = counters.enter(_LEVELS.index(token["level"]))
        elif token["restated"] or (token["edge"] == "begin" and name in _THEOREMS):
            here = counters.step(token["what"] or name)
        elif token["caption"]:
            here = counters.step("figure")
        elif token["edge"] == "begin" and name in ("equation", "multline", *_LINES) and not starred:
            sums, silent = name, False
            number = counters.step("equation")
        elif sums and token["silent"] and not silent:
            silent = True
            counters.of["equation"] -= 1
        elif sums in _LINES and token["line"]:
            number, silent = counters.step("equation"), False
        elif token["edge"] == "end" and name == sums:
            sums = ""
        elif token["label"]:
            found[token["label"]] = number if sums else here
    return found


def _as_toml(places: dict[str, str]) -> Iterator[str]:
    yield "# Where the labels of the paper are: python -m antipgd.paper.references paper.tex"
    for label, place in places.items():
        yield f'"{label}" = "{place}"'


def main(arguments: Iterable[str]) -> None:
    """Print references.toml from the paper's source."""
    (path,) = arguments
    print("\n".join(_as_toml(counted(Path(path).read_text("utf-8")))))


if __name__ == "__main__":
    main(sys.argv[1:])
