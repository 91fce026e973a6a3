"""What a sweep leaves in its folder beside the store: table.csv and the figure.

Whole files, which replace those of another sweep. Runs nothing and knows no settings.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from antipgd.paper.figures import rendered
from antipgd.paper.files import write
from antipgd.paper.simulation.spec import Run
from antipgd.paper.simulation.sweep_figure import sweep_figure


def replaced(out: Path, runs: Sequence[Run]) -> str | None:
    """What a sweep of these runs replaces in a folder, if it holds another one."""
    try:
        there = json.loads((out / "plan.json").read_bytes())
        if {json.dumps(one, sort_keys=True) for one in there} == {
            json.dumps(json.loads(run.canonical()), sort_keys=True) for run in runs
        }:
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, RecursionError):
        pass  # whatever it was, it is not this plan
    what = "table" if (out / "table.csv").exists() else "plan"
    return f"replaces the {what} of another sweep in {out}; its runs stay in the store"


def write_table(out: Path, result: pd.DataFrame) -> Path:
    """table.csv, with nothing but its header if every run failed."""
    write(out / "table.csv", result.to_csv(index=False, lineterminator="\n").encode())
    return out / "table.csv"


def write_figure(out: Path, result: pd.DataFrame) -> list[Path]:
    """The figure's files; without anything to draw, one of another sweep does not stay."""
    paths = [out / f"figure.{kind}" for kind in ("png", "svg")]
    if not len(result):
        for path in paths:
            path.unlink(missing_ok=True)
        return []
    figure = sweep_figure(result, title=result["problem"].iloc[0])
    for path in paths:
        write(path, rendered(figure, path.suffix[1:]))
    return paths
