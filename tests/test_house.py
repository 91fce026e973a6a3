"""`make house` on a small tree whose numbers are counted by hand."""

import json
import os
import subprocess

import pytest

import house
from house_measures import Module, arguments, displays, functions, nesting, texts

FILES = {
    "src/antipgd/__init__.py": '"""Nothing."""\n',
    "src/antipgd/noise/laws.py": "x = 1\n" * 351,
    "src/antipgd/noise/taps.py": "x = 1\n" * 350,
    "src/antipgd/cli/paper.py": (
        '"""gd, sgd, pgd: a docstring is no list."""\n'
        'add("--method", help="gd, sgd, antisgd or sam")\n'
        'add("--data", help="digits or cifar10")\n'
        'add("--rate", help="for label the share, for sam rho, else of the noise")\n'
    ),
    "src/antipgd/paper/spec.py": (
        "import torch.nn\n"
        'METHODS = {"gd": 1, "sgd": 2,\n'
        '    "pgd": ("anti", "label")}\n'
        'FEW = ("gd", "sgd", "adam")\n'
        'IMAGES = {"digits": 1, "cifar10": 2}\n'
        "def load(name):\n"
        '    if name == "digits":\n'
        "        return isinstance(name, Run | Training)\n"
        '    return name in ("cifar10",) or isinstance(name, str)\n'
    ),
    "src/antipgd/paper/networks/train.py": "import torch\n",
    "src/antipgd/paper/run/logs.py": (
        "import antipgd.torch\ndef log():\n    from torch import nn\n    isinstance(nn, spec.Run)\n"
    ),
    "src/antipgd/paper/run/local.py": "import antipgd.torch\nfrom .torch import nn\n",
    "src/antipgd/paper/experiments/cifar.py": (
        'def runs():\n    return ["sgd", "pgd", "anti"]\nMETHODS = ("gd", "pgd", "anti")\n'
    ),
    "tests/test_it.py": 'METHODS = ("gd", "pgd", "anti")\n\n',
    "benchmarks/it.py": "\n",
    "benchmarks/results.json": "{}\n",
    "docs/conf.py": "x = 1\n",
}
ROOMS = {
    "src": 725, "noise/": 701, "cli/": 4, "paper/": 19, "paper/experiments/": 3,
    "paper/networks/": 1, "paper/run/": 6, "paper/spec.py": 9, "__init__.py": 1,
    "tests": 2, "benchmarks": 1,
}  # fmt: skip
CIFAR = "src/antipgd/paper/experiments/cifar.py"
SPEC, LOGS, CLI = (f"src/antipgd/{p}.py" for p in ("paper/spec", "paper/run/logs", "cli/paper"))
PLACES = {
    "modules over 350 lines": ["src/antipgd/noise/laws.py 351"],
    "functions over 50 lines": [],
    "most arguments": [f"{SPEC}:6 load 1", f"{CIFAR}:1 runs 0", f"{LOGS}:2 log 0"],
    "deepest nesting": [f"{SPEC}:6 load 1"],
    "lists of methods, not experiments": [
        f'{CLI}:2 "gd, sgd, antisgd or sam"', f"{SPEC}:2 anti gd label pgd sgd",
    ],
    "lists of methods, experiments": [f"{CIFAR}:2 anti pgd sgd", f"{CIFAR}:3 anti gd pgd"],
    "lists of data sets": [f"{SPEC}:5 cifar10 digits", f"{SPEC}:7 digits"],
    "texts that list data sets": [f'{CLI}:3 "digits or cifar10"'],
    "isinstance on specs in paper": [f"{LOGS}:4 Run", f"{SPEC}:8 Run Training"],
    "torch in paper outside networks": [LOGS, SPEC],
}  # fmt: skip
NUMBERS = {title: len(places) for title, places in PLACES.items()} | {"most arguments": 1}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository with one commit of the files, deaf to the settings of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path)
    return tmp_path


def git(root, *arguments):
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    subprocess.run(["git", "-C", root, *who, *arguments], check=True, capture_output=True)


def commit(root):
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=all")


def test_the_numbers_are_those_counted_by_hand(tree):
    found = house.house(tree)
    assert found.rooms == ROOMS
    assert list(found.rooms) == list(ROOMS)
    assert {title: m.places for title, m in found.measures.items()} == PLACES
    assert {title: m.number for title, m in found.measures.items()} == NUMBERS


def test_a_commit_reads_as_its_clean_checkout(tree):
    there, before = house.house(tree), house.house(tree, "HEAD")
    assert (there.rooms, there.measures) == (before.rooms, before.measures)


def test_a_working_tree_has_what_is_not_committed_and_not_what_is_ignored(tree):
    (tree / ".gitignore").write_text("mine.py\n")
    for name in ("mine.py", "new.py"):
        (tree / "tests" / name).write_text("x = 1\n")
    (tree / SPEC).write_text("\n")
    git(tree, "add", SPEC)  # not committed, and a commit is not read from the index
    (tree / "benchmarks/it.py").unlink()
    found = house.house(tree)
    assert (found.rooms["tests"], "benchmarks" in found.rooms) == (3, False)
    assert house.house(tree, "HEAD").rooms == ROOMS


def test_the_columns_stand_side_by_side(tree, capsys):
    (tree / "benchmarks/it.py").unlink()
    file = tree / "numbers.json"
    house.main(["--root", str(tree), "--before", "HEAD", "--json", str(file)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["lines", "HEAD", "working", "tree"]
    assert "  spec.py" in [line[:9] for line in lines]
    assert ["benchmarks", "1", "–"] in [line.split() for line in lines]
    assert ["isinstance", "on", "specs", "in", "paper", "2", "2"] in [
        line.split() for line in lines
    ]
    before, after = json.loads(file.read_text())
    assert (before["of"], before["rooms"], after["of"]) == ("HEAD", ROOMS, "working tree")
    assert before["measures"]["deepest nesting"] == {"number": 1, "places": [f"{SPEC}:6 load 1"]}


def test_touched_is_what_the_branch_did_since_it_left(tree, capsys):
    git(tree, "checkout", "--quiet", "-b", "branch")
    for name in ("src/antipgd/noise/laws.py", "src/antipgd/noise/new.py", "tests/test_it.py"):
        (tree / name).write_text("x = 2\n")
    commit(tree)
    git(tree, "checkout", "--quiet", "main")
    (tree / SPEC).write_text("\n")
    commit(tree)
    house.main(["--root", str(tree), "--touched", "main", "branch"])
    said = capsys.readouterr().out.split("\n  ")
    assert said[0] == "files under src: 2"
    assert [line.strip() for line in said[1:]] == [
        "src/antipgd/noise/laws.py", "src/antipgd/noise/new.py",
    ]  # fmt: skip


def test_no_such_commit_is_said(tree):
    with pytest.raises(SystemExit, match="never"):
        house.main(["--root", str(tree), "never"])


def one(text):
    """The only function of a text."""
    ((_, function),) = functions(Module("m.py", text).tree)
    return function


def body(lines):
    return 'def f():\n    """Says.\n\n    More.\n    """\n' + "    x = 1\n" * lines


@pytest.mark.parametrize(("lines", "places"), [(50, []), (51, ["src/antipgd/new.py:1 f 51"])])
def test_a_body_is_long_from_51_lines_without_its_docstring(tree, lines, places):
    (tree / "src/antipgd/new.py").write_text(body(lines))
    assert house.house(tree).measures["functions over 50 lines"].places == places


def test_every_kind_of_argument_counts():
    assert arguments(one("def f(a, /, b, *c, d, **e): pass")) == 5
    assert arguments(one("def f(*, d=1): pass")) == 1


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("x = [i for i in y if i]", 0),
        ("if a:\n  pass\n elif b:\n  pass\n elif c:\n  for x in y:\n   pass", 2),
        ("with a:\n  try:\n   pass\n  except E:\n   while b:\n    pass", 3),
        ("match a:\n  case 1:\n   if b:\n    pass", 2),
    ],
)
def test_nesting(text, depth):
    assert nesting(one(f"def f():\n {text}\n")) == depth


NAMES = frozenset(("gd", "sgd", "pgd"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('{"gd", "sgd", "pgd"}', 1),
        ('(Method("gd", 1), Method("sgd"), Method(name="pgd"))', 1),
        ("(GD, methods.SGD, PGD)", 1),
        ('[{"m": "gd"}, {"m": "sgd"}, {"m": "pgd"}]', 1),
        ('[("gd", "sgd", "pgd"), ("gd", "sgd", "pgd")]', 2),
        ('["gd", "gd", "sgd"]', 0),
        ('[judge(x, "gd"), judge(x, "sgd"), judge(x, "pgd")]', 0),
        ("gd, sgd, pgd = x", 0),
    ],
)
def test_lists_in_displays(text, count):
    assert len(displays(Module("m.py", text), NAMES, 3)) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('x = "one of gd, sgd, or pgd."', 1),
        ('x = f"gd/sgd/pgd; got {y}"', 1),
        ('x = "gd and sgd are not as pgd is"', 0),
        ('x = "gd, sgd, pgds"', 0),
        ('"gd, sgd, pgd"', 0),
    ],
)
def test_lists_in_texts(text, count):
    assert len(texts(Module("m.py", text), NAMES, 3)) == count
