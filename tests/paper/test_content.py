"""Files with the right digest and wrong content: no traceback, and no value of a wrong kind."""

import copy
import hashlib
import json
from contextlib import suppress

import pytest

from antipgd.cli import main
from antipgd.paper.claims import HOLDS, SEVERITY, Claim
from antipgd.paper.networks.scales import TUNED
from antipgd.paper.networks.tuning import scale_to_use
from antipgd.paper.pipeline import complete
from antipgd.paper.record import Failure
from antipgd.paper.reproduce import read_plan
from antipgd.paper.results import Results
from antipgd.paper.simulation.folder import replaced
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.spec import make_run
from antipgd.paper.simulation.sweep import on_threads
from antipgd.paper.simulation.table import summary, summary_text, table
from antipgd.paper.store import NewerStoreError, Store
from antipgd.paper.verdicts import Desk, Judged

RUN = make_run("widening_valley", {"d": 2}, "anti", lr=0.1, sigma=0.1, steps=3, seed=0)
MISSING = object()
JUNK = [
    MISSING, None, True, -1, 4, 10**400, 0.5, float("nan"), float("inf"), -1e308, "x", "\ud800", "",
    [], [[]], ["x"], [1, 2, 3], {}, {"x": 1}, {"w": "x"}, {"w": {}},
]  # fmt: skip


def nested(depth):
    """JSON as deep as that, as text: no encoder writes it."""
    return "[" * depth + "]" * depth


DEEP = [nested(900), nested(100_000)]


def places(value, path=()):
    """Every place in parsed JSON: of a list the first and the last."""
    yield path
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = sorted({0, len(value) - 1}) if value else []
    else:
        keys = []
    for key in keys:
        yield from places(value[key], (*path, key))


def changed(value, path, junk):
    """The value with junk at one place."""
    if not path:
        return None if junk is MISSING else junk
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if junk is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = junk
    return value


def variants(value):
    """JSON texts that differ from a value at one place each."""
    for path in places(value):
        for junk in JUNK:
            yield json.dumps(changed(value, path, junk))
        for deep in DEEP:
            yield json.dumps(changed(value, path, "HERE")).replace('"HERE"', deep, 1)
    yield from ("", "{", "null", "NaN", "1" * 5000, '"\\ud800"')


def put(path, *lines):
    """Lines with their digest, as a store keeps them."""
    content = "".join(f"{line}\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


@pytest.fixture(scope="module")
def record():
    return next(run_local([RUN], 1))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def file_of(store, kind):
    return store.root / kind / RUN.name[:2] / f"{RUN.name}.json"


def kinds(value):
    if isinstance(value, dict):
        return {key: kinds(one) for key, one in value.items()}
    return [kinds(one) for one in value] if isinstance(value, list | tuple) else type(value)


def check_use(found):
    """What is read can be used by all who use records."""
    summary_text(summary(table([found])))
    for place in ("w", "z", "relaxed"):
        for measure in ("train_loss", "watched"):
            found.column(measure, place)
    Results([found]).diverged()


def test_records_with_wrong_content(store, record):
    store.put(record)
    path = file_of(store, "record")
    _, header, body, made = path.read_text().splitlines()
    read = refused = 0
    for text in variants(json.loads(body)):
        put(path, header, text, made)
        found = store.get(RUN)
        if found is None:
            assert not path.exists()  # moved aside
            refused += 1
            continue
        read += 1
        assert found.run == RUN
        assert json.loads(found.to_json()).keys() == json.loads(body).keys()
        for row in found.points:
            assert kinds(row[:2]) == [int, str]
            assert {*map(type, row[2:])} <= {float, type(None)}
        check_use(found)
    assert refused > 500
    assert read > 20  # a number may be another one, a whole run shorter
    assert complete([RUN], store, on_threads(1)).records[RUN.name] == record


@pytest.mark.parametrize("line", [0, 2])
def test_headers_and_provenance_with_wrong_content(line, store, record):
    store.put(record)
    path = file_of(store, "record")
    lines = path.read_text().splitlines()[1:]
    for text in variants(json.loads(lines[line])):
        put(path, *lines[:line], text, *lines[line + 1 :])
        with suppress(NewerStoreError):
            assert store.get(RUN) in (None, record)
            made = store.provenance(RUN)
            assert made is None or isinstance(made, dict)


def test_failures_with_wrong_content(store, capsys):
    store.put_failure(Failure(RUN, "ValueError: no", "Traceback"))
    path = file_of(store, "failure")
    _, header, body, made = path.read_text().splitlines()
    out = store.root.parent
    (out / "plan.json").write_text(f"[{RUN.canonical()}]")
    for text in variants(json.loads(body)):
        put(path, header, text, made)
        assert store.state(RUN) in ("failed", "missing")
    put(path, header, json.dumps(json.loads(body) | {"reason": 5}), made)
    assert main(["status", "--out", str(out)]) == 0
    assert "missing       1" in capsys.readouterr().out


def test_a_store_that_says_nonsense_of_its_format(store):
    path = store.root / "format.json"
    for text in variants({"antipgd": "store", "format": 1}):
        path.write_text(text)
        with suppress(NewerStoreError):
            Store(store.root)
            assert json.loads(path.read_text())["format"] == 1


def test_plans_with_wrong_content(tmp_path, capsys):
    path = tmp_path / "plan.json"
    for text in variants([json.loads(RUN.canonical())]):
        path.write_text(text)
        notice = replaced(tmp_path, [RUN])
        assert notice is None or "of another sweep" in notice
        code = main(["status", "--out", str(tmp_path)])
        said = capsys.readouterr()
        assert code == (2 if said.err else 0)
        assert said.err.count("\n") == code / 2
    path.write_text(f"[{RUN.canonical()}]")
    assert [run.name for run in read_plan(tmp_path)] == [RUN.name]
    assert replaced(tmp_path, [RUN]) is None


def test_tuned_values_with_wrong_content(tmp_path):
    path = tmp_path / "tuned-smoke.json"
    usual = scale_to_use("smoke", tmp_path)
    tuned = {"chosen": {"pgd": 0.25, "gd": 0.5}, "seeds": {"none": 7},
             "grids": {"pgd": [0.25, 0.5]}}  # fmt: skip
    for text in variants(tuned):
        path.write_text(text)
        with suppress(ValueError):  # which the command line says
            scale = scale_to_use("smoke", tmp_path)
            assert usual.chosen.keys() <= scale.chosen.keys() <= TUNED.keys()
            assert scale.seeds.keys() == usual.seeds.keys()
            assert scale.grids.keys() == usual.grids.keys()
            assert all(len(grid) >= 2 for grid in scale.grids.values())
            values = [*scale.chosen.values(), *(v for grid in scale.grids.values() for v in grid)]
            assert all(type(value) is float and 0 < value < 10 for value in values)
            assert all(type(n) is int and n >= 2 for n in scale.seeds.values())
    path.write_text('{"chosen": {"anti": -1}, "seeds": {}, "grids": {}}')
    with pytest.raises(ValueError, match="anti must be a finite number > 0; got -1"):
        scale_to_use("smoke", tmp_path)


def test_stamps_of_figures_with_wrong_content(tmp_path):
    desk = Desk(tmp_path, refresh=False)
    claim = Claim("a.b", "says", "fig:1", "at w", HOLDS, 1.5, float("nan"), 2.0, 10, 0.5, 12)
    judged = Judged([claim], {"png": b"P", "svg": b"S"})
    desk._keep("a", "key", judged)
    path = tmp_path / ".a.json"
    stamp = json.loads(path.read_text())
    for text in variants(stamp):
        path.write_text(text)
        found = desk._read("a", "key")
        for one in [] if found is None else found.claims:
            assert one.verdict in SEVERITY
            assert one.p is None or 0 <= one.p <= 1
            assert one.needed is None or one.needed >= 2
            assert f"{one.id}{one.statement}{one.reference}{one.tested}".encode()
            assert f"{one.value:.3g} {one.low:.3g} {one.high:.3g} {one.n:,}"
