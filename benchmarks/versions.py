"""Do the releases that pyproject.toml admits work? `make test-versions`.

Rows are an environment each: the lowest release of everything that the library's extras ask for, on
the oldest Python that they install on, and the newest releases, without constraints, on every
Python that the classifiers name. Each gets TESTS, the tests of what is imported from others, under
their usual rule that a warning is an error. `make test` runs the set of constraints.txt.

Interpreters are looked for by name (python3.12), on the path and among pyenv's. On Linux torch
comes with CUDA from most indexes, 6 GB an environment; one row at a time is there, and gone when it
is done. Writes benchmarks/versions.json and docs/versions.md; names of rows run these alone and
leave the others there. Ends with 1 if a row has failures; what cannot be installed is said, not
failed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIBRARY = ("torch", "optax", "flatness")  # the extras under test
GROUPS = ("test", "agreement", "proofs")
SHOWN = ("numpy", "numba", "torch", "jax", "optax", "scipy", "tqdm")
TESTS = [
    f"tests/{path}"
    for path in (
        "torch/forward/test_perturb.py torch/test_golden_states.py optax/test_sharding.py "
        "optax/test_forward.py noise/test_vectors.py torch/forward/test_compiled_passes.py "
        "flatness/test_spectrum.py flatness/test_state.py optax/test_adding.py "
        "optax/test_messages.py torch/test_attach.py torch/forward/test_modules.py "
        "torch/forward/test_reads.py torch/forward/test_recompute.py noise/test_agreement.py "
        "noise/test_conformance.py theory/test_valley.py torch/test_left_behind.py"
    ).split()
]
INTRODUCTION = """# Which releases work

Written by `make test-versions` (`benchmarks/versions.py`). *Lowest* is the lowest release of each
package that `pyproject.toml` admits, *newest* what pip takes if nothing is asked for. `make test`
runs the set of `constraints.txt`.
"""
MINUTES = 60  # a row's tests may take, unless told otherwise


def pythons() -> list[str]:
    """The versions of Python that the classifiers name, oldest first."""
    found = [re.fullmatch(r".*Python :: (3\.\d+)", text) for text in PROJECT["classifiers"]]
    return sorted((one[1] for one in found if one), key=lambda text: int(text[2:]))


ROWS = ["lowest", *(f"newest-{version}" for version in pythons())]


def lowest(extras: tuple[str, ...] = LIBRARY) -> list[str]:
    """The lowest release of each requirement of these extras, as constraints.

    >>> "numpy==2.0" in lowest(())
    True
    """
    wanted = list(PROJECT["dependencies"])
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    named = [one for one in wanted if not one.startswith("antipgd[")]
    return sorted({one.replace(">=", "==") for one in named})


def interpreter(version: str) -> str | None:
    """A Python of this version on the path or among pyenv's, or None; one must start to count."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    there = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python{version}")]
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for found in filter(None, there):  # the first may be pyenv's stand-in for none
        asked = [str(found), "-c", code]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.stdout.strip() == version:
            return str(found)
    return None


def installed(folder: Path, found: str, constraints: list[str]) -> str | None:
    """Make the environment; None, or the registry's answer where it cannot be made."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([found, "-m", "venv", str(folder)], check=True)
    text = folder / "constraints.txt"
    text.write_text("\n".join(constraints))
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    groups = [word for group in GROUPS for word in ("--group", group)]
    what = ["--editable", f".[{','.join(LIBRARY)}]", *groups, "--constraint", str(text)]
    for words in (["--upgrade", "pip"], what):
        done = subprocess.run(pip + words, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return said[0] if said else done.stderr.strip()[-300:]
    return None


def versions(folder: Path) -> dict[str, str]:
    """What is there, the interpreter included."""
    code = (
        "import sys, json, platform; from importlib.metadata import version\n"
        "found = {name: version(name) for name in sys.argv[1:]}\n"
        "print(json.dumps({'python': platform.python_version(), **found}))"
    )
    asked = [str(folder / "bin" / "python"), "-c", code, *SHOWN]
    return json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def ran(folder: Path, minutes: float) -> dict[str, object]:
    """Run the tests there: how many passed, failed and were skipped, and the names of failures."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "numba"), "OMP_NUM_THREADS": "1"}
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-m", "not slow", *TESTS]
    command += ["-p", "no:cacheprovider", "--tb=short"]
    printed = folder / "tests.log"
    with printed.open("w") as log:
        try:
            subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False,
                timeout=60 * minutes,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"unfinished": so_far(printed.read_text(), minutes)}
    return outcome(printed.read_text())


def so_far(printed: str, minutes: float) -> str:
    """What pytest's dots count where it was stopped.

    >>> so_far("..s. [  5%]\\n.F", 10)
    'stopped after 10 minutes: 4 passed, 1 failed until then'
    """
    dots = "".join(re.findall(r"^[.sFExX]+", printed, re.M))
    wrong = dots.count("F") + dots.count("E")
    passed = dots.count(".")
    return f"stopped after {minutes:g} minutes: {passed} passed, {wrong} failed until then"


def outcome(printed: str) -> dict[str, object]:
    """What pytest's last line counts, and which tests its summary names.

    >>> outcome("FAILED tests/a.py::b - no\\n1 failed, 2 passed, 3 skipped in 4.00s")
    {'passed': 2, 'failed': 1, 'skipped': 3, 'failures': ['tests/a.py::b']}
    """
    last = printed.strip().rsplit("\n", 1)[-1]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}
    if " in " not in last or not counts:
        return {"unfinished": f"pytest ended with {last!r}"}
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.M)
    return {
        "passed": counts.get("passed", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0),
        "skipped": counts.get("skipped", 0),
        "failures": sorted(set(failures)),
    }


def measured(row: str, folder: Path, minutes: float) -> dict[str, object]:
    """One row: the first Python of its list on which the packages install, and the tests there."""
    asked = pythons() if row == "lowest" else [row.removeprefix("newest-")]
    constraints = lowest() if row == "lowest" else []
    refused: dict[str, object] = {}
    for version in asked:
        found = interpreter(version)
        if found is None:
            refused[version] = f"no interpreter named python{version} was found"
            continue
        refusal = installed(folder, found, constraints)
        if refusal is None:
            return {"refused": refused, **versions(folder), **ran(folder, minutes)}
        refused[version] = refusal
        shutil.rmtree(folder)
    return {"refused": refused}


def cells(row: str, one: dict) -> list[str]:
    """A row of the table: its name, what was there, how it ended."""
    shown = [one.get(name, "–") for name in ("python", *SHOWN)]
    if "passed" in one:
        end = f"{one['passed']} passed, {one['failed']} failed, {one['skipped']} skipped"
    else:
        end = one.get("unfinished", "not installed" if "refused" in one else "not run yet")
    return [row.replace("-", ", Python "), *shown, end]


def page(results: dict[str, dict]) -> str:
    """docs/versions.md."""
    head = ["releases", "Python", *SHOWN, "tests"]
    table = [head, ["---"] * len(head)]
    table += [cells(row, results.get(row, {})) for row in ROWS]
    lines = [INTRODUCTION, *(f"| {' | '.join(one)} |" for one in table)]
    for row, one in results.items():
        failures = [f"- {row}: `{name}` fails" for name in one.get("failures", [])]
        refused = [f"- {row}, Python {version}: {why}" for version, why in one["refused"].items()]
        if failures or refused:
            lines += ["", *refused, *failures]
    return "\n".join(lines) + "\n"


def keep(row: str, one: dict[str, object]) -> None:
    """Write the row, beside those that are there, and the page."""
    there = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    there[row] = one
    results = {row: there[row] for row in ROWS if row in there}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(results), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--keep", type=Path, help="a folder in which environments stay")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="that a row's tests may take"
    )
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"unknown rows {sorted(unknown)}; accepted: {', '.join(ROWS)}")
    wrong = []
    for row in options.rows or ROWS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.keep or Path(temporary)) / row
            one = measured(row, folder, options.minutes)
        keep(row, one)
        print(row, json.dumps(one), flush=True)
        wrong += [row] if one.get("failed") or "unfinished" in one else []
    print(f"failures in {', '.join(wrong)}" if wrong else "all that could be installed works")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
