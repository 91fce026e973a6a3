"""Measures of a tree of Python files, from their syntax alone; knows neither git nor printing.

- Lines are those of Python files: toml, records and css have none here.
- A body goes from the first statement after the docstring to its last line, with the blank lines
  and comments between; a function inside another counts in both. `self` is an argument.
- Nesting counts if, for, while, with, try and match in a function; an elif is as deep as its if.
- A list of methods is a display (dict, list, tuple, set) with three or more of their names among
  its entries, or a string that has three in a row ("gd, sgd or pgd"): texts of help and of errors.
  Docstrings do not count. The entries of a display are its strings, those of displays inside it
  that are no list themselves, the first argument or `name=` of a call (`Method("gd")`), and
  constants of that name (`GD`). Names that are computed are not seen.
- A list of data sets is a display that has both, or a comparison (also a `case`) with either; every
  comparison counts. Texts that name both have a row of their own.
- `import torch` counts wherever it stands, also in a function; `antipgd.torch` and
  `antipgd.flatness`, which bring it along, do not.

Read by hand, e6811b4 had 8 lists of methods (4 tables, 4 texts of help) and 6 of data sets (4 of
them tables), places not noted. The 8 that these rules find there outside the experiments agree by
accident: 5 tables, for the rehearsal's is one, 2 texts of help and 1 of an error; two docstrings
list the methods too and were probably among the hand's texts. The experiments have 26 more, in a
row of their own: an experiment must say whom it compares, yet a table of arms or of tuned σ that
moves out of that folder moves into the other row. Of data sets there are 4 tables and 4
comparisons, in two functions, so 8; the hand's 6 are the tables with either those two functions
or the 2 texts of help.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

METHODS = frozenset("gd sgd pgd anti antisgd label noise sam".split())
DATA_SETS = frozenset(("digits", "cifar10"))
SPECS = frozenset(("Run", "Training", "Spec"))
LONG_MODULE, LONG_BODY, SHOWN = 350, 50, 3

PAPER = "src/antipgd/paper/"
EXPERIMENTS = f"{PAPER}experiments/"
ROWS = ("src", "noise", "torch", "optax", "theory", "flatness", "cli", "paper")
LAST = ("tests", "benchmarks", "proofs")
READ = ("src/antipgd/", "tests/", "benchmarks/", "proofs/")

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar,
          ast.Match)  # fmt: skip
DISPLAYS = (ast.Dict, ast.List, ast.Tuple, ast.Set)


@dataclass(frozen=True)
class Module:
    """A file: where it lies, what it says."""

    path: str
    text: str

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Everything in it, in the order of its lines."""
        return sorted(ast.walk(self.tree), key=lambda node: getattr(node, "lineno", 0))

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.path}:{node.lineno} {what}"  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Measure:
    """A number and the places that make it."""

    number: int
    places: list[str]


@dataclass(frozen=True)
class House:
    """Everything measured of one tree."""

    of: str
    rooms: dict[str, int]
    measures: dict[str, Measure]


# Lines.


def rooms_of(path: str) -> list[str]:
    """The rows of the table that a file counts in."""
    top, *rest = path.split("/")
    if top != "src":
        return [top]
    inside = rest[1:]
    depth = 2 if inside[0] == "paper" else 1
    return ["src", *(_room(inside, n) for n in range(1, depth + 1))]


def _room(parts: list[str], depth: int) -> str:
    return "/".join(parts[:depth]) + ("/" if len(parts) > depth else "")


def row(room: str) -> tuple[int, str]:
    """Where a room stands in the table."""
    top = room.split("/")[0]
    rows = (*ROWS, "", *LAST)  # modules of no room stand between
    return rows.index(top if top in rows else ""), room


def rooms(modules: Iterable[Module]) -> dict[str, int]:
    lines: dict[str, int] = {}
    for module in modules:
        for room in rooms_of(module.path):
            lines[room] = lines.get(room, 0) + module.lines
    return {room: lines[room] for room in sorted(lines, key=row)}


# Functions.


def functions(node: ast.AST, owner: str = "") -> Iterator[tuple[str, Function]]:
    """Every function with the names of what it stands in."""
    for child in ast.iter_child_nodes(node):
        inside = owner
        if isinstance(child, Function | ast.ClassDef):
            inside = f"{owner}{child.name}."
        if isinstance(child, Function):
            yield inside[:-1], child
        yield from functions(child, inside)


def body_lines(function: Function) -> int:
    body = function.body[ast.get_docstring(function, clean=False) is not None :]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def arguments(function: Function) -> int:
    a = function.args
    several = [a.vararg, a.kwarg]
    return len(a.posonlyargs + a.args + a.kwonlyargs) + sum(one is not None for one in several)


def nesting(node: ast.AST) -> int:
    """Blocks inside each other, the node's own included; functions inside count for themselves."""
    below = [
        nesting(child) - _is_elif(node, child)
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda)
    ]
    return isinstance(node, BLOCKS) + max(below, default=0)


def _is_elif(node: ast.AST, child: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]


def _ranked(modules: list[Module], size: Callable[[Function], int]) -> list[tuple[int, str]]:
    """Functions by a size, largest first, those of a size in the order of the files."""
    sizes = [
        (size(function), module.at(function, f"{name} {size(function)}"))
        for module in modules
        for name, function in functions(module.tree)
    ]
    return sorted(sizes, key=lambda pair: -pair[0])


def _largest(ranked: list[tuple[int, str]]) -> int:
    return ranked[0][0] if ranked else 0


# Lists of names.


def _name(node: ast.AST | None) -> set[str]:
    """The name that an entry of a display stands for, if it says so itself."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.Name(id=name) | ast.Attribute(attr=name) if name.isupper():
            return {name.lower()}
        case ast.Call(args=[ast.Constant(value=str(text)), *_]):
            return {text}
        case ast.Call(keywords=keywords):
            return set().union(*(_name(k.value) for k in keywords if k.arg == "name"))
    return set()


def _entries(display: ast.AST) -> list[ast.AST]:
    if isinstance(display, ast.Dict):
        return [node for node in (*display.keys, *display.values) if node is not None]
    return list(display.elts)  # type: ignore[attr-defined]


def named(display: ast.AST, names: frozenset[str], least: int) -> set[str]:
    """Which of the names a display has, without those of lists inside it."""
    found: set[str] = set()
    for entry in _entries(display):
        if not isinstance(entry, DISPLAYS):
            found |= _name(entry) & names
        elif len(inner := named(entry, names, least)) < least:
            found |= inner
    return found


def displays(module: Module, names: frozenset[str], least: int) -> list[str]:
    nodes = [node for node in module.nodes if isinstance(node, DISPLAYS)]
    found = [(node, named(node, names, least)) for node in nodes]
    return [module.at(node, " ".join(sorted(has))) for node, has in found if len(has) >= least]


def _spoken(node: ast.AST) -> Iterator[ast.Constant]:
    """Strings that are no statements of their own: docstrings are."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            if not isinstance(node, ast.Expr):
                yield child
        else:
            yield from _spoken(child)


def texts(module: Module, names: frozenset[str], least: int) -> list[str]:
    """Strings with that many of the names in a row."""
    name = rf"\b(?:{'|'.join(sorted(names))})\b"
    joint = r"(?:\s*[,/|]\s*(?:or\s+|and\s+)?|\s+(?:or|and)\s+)"
    rows = re.compile(f"{name}(?:{joint}{name}){{{least - 1},}}")
    found = ((node, rows.search(node.value)) for node in _spoken(module.tree))
    return [module.at(node, f'"{row[0]}"') for node, row in found if row]


def branches(module: Module, names: frozenset[str]) -> list[str]:
    """Comparisons with one of the names, written `==`, `!=` or `case`."""
    return [
        module.at(node, " ".join(sorted(has)))
        for node in module.nodes
        if (has := _compared(node) & names)
    ]


def _compared(node: ast.AST) -> set[str]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            equal = all(isinstance(op, ast.Eq | ast.NotEq) for op in ops)
            return set().union(*map(_name, (left, *others))) if equal else set()
        case ast.MatchValue(value=value):
            return _name(value)
    return set()


# The paper's walls.


def asked_kinds(module: Module) -> list[str]:
    """`isinstance` of a kind of spec."""
    calls = [node for node in module.nodes if isinstance(node, ast.Call)]
    asked = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "isinstance"]
    return [module.at(c, " ".join(k)) for c in asked if (k := sorted(SPECS & _kinds(c.args[1:])))]


def _kinds(nodes: list[ast.expr]) -> set[str]:
    inside = [node for one in nodes for node in ast.walk(one)]
    return {getattr(node, "id", "") for node in inside} | {getattr(n, "attr", "") for n in inside}


def imports(module: Module, package: str) -> bool:
    return any(name.split(".")[0] == package for node in module.nodes for name in _imported(node))


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(name), level=0):
            return [name]
    return []


def _in_networks(path: str) -> bool:
    return path.removeprefix(PAPER).split("/")[0] in ("networks", "networks.py")


# All of it.


def _counted(places: Iterable[str]) -> Measure:
    listed = list(places)
    return Measure(len(listed), listed)


def sizes(src: list[Module]) -> dict[str, Measure]:
    by_body, by_arguments, by_depth = (_ranked(src, s) for s in (body_lines, arguments, nesting))
    deepest = _largest(by_depth)
    long = sorted((m for m in src if m.lines > LONG_MODULE), key=lambda m: -m.lines)
    return {
        f"modules over {LONG_MODULE} lines": _counted(f"{m.path} {m.lines}" for m in long),
        f"functions over {LONG_BODY} lines": _counted(p for n, p in by_body if n > LONG_BODY),
        "most arguments": Measure(_largest(by_arguments), [p for _, p in by_arguments[:SHOWN]]),
        "deepest nesting": Measure(deepest, [p for n, p in by_depth if n == deepest > 0]),
    }


def lists(src: list[Module]) -> dict[str, Measure]:
    experiments = [m for m in src if m.path.startswith(EXPERIMENTS)]
    others = [m for m in src if not m.path.startswith(EXPERIMENTS)]

    def of_methods(modules: list[Module]) -> Measure:
        return _counted(p for m in modules for p in displays(m, METHODS, 3) + texts(m, METHODS, 3))

    branching = [p for m in src for p in displays(m, DATA_SETS, 2) + branches(m, DATA_SETS)]
    return {
        "lists of methods, not experiments": of_methods(others),
        "lists of methods, experiments": of_methods(experiments),
        "lists of data sets": _counted(branching),
        "texts that list data sets": _counted(p for m in src for p in texts(m, DATA_SETS, 2)),
    }


def walls(src: list[Module]) -> dict[str, Measure]:
    paper = [m for m in src if m.path.startswith(PAPER)]
    knowing = [m.path for m in paper if not _in_networks(m.path) and imports(m, "torch")]
    return {
        "isinstance on specs in paper": _counted(p for m in paper for p in asked_kinds(m)),
        "torch in paper outside networks": _counted(knowing),
    }


def measure(of: str, modules: list[Module]) -> House:
    src = [module for module in modules if module.path.startswith("src/")]
    return House(of, rooms(modules), sizes(src) | lists(src) | walls(src))
