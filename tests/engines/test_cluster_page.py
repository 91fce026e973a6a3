"""The examples of docs/cluster.md do what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text("utf-8")


def written(folder):
    """The page's Python files in a folder."""
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL)
    for name, text in blocks:
        (folder / name).write_text(text)
    return [name for name, _ in blocks]


def run(folder, *words):
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_function_runs_over_its_grid(tmp_path):
    assert written(tmp_path) == ["mine.py", "search.py"]
    (command,) = re.findall(r"    antipgd (try .*) --on ray=\S+ --out \S+", PAGE)
    words = command.replace("--seeds 5", "--seeds 2").split()
    out = run(tmp_path, "-m", "antipgd", *words, "--on", "processes=2", "--out", "tried")
    assert "24 of 24 trials done" in out
    assert len(pd.read_csv(tmp_path / "tried" / "summary.csv")) == 12


@pytest.mark.slow
def test_the_search_with_optuna(tmp_path):
    written(tmp_path)
    text = (tmp_path / "search.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 20
    out = run(tmp_path, "search.py")
    found = re.search(r"\{'sigma': (\S+), 'lr': (\S+)\} (\S+)$", out.strip())
    sigma, lr, loss = map(float, found.groups())
    assert 0.003 <= sigma <= 0.3
    assert 0.01 <= lr <= 0.1
    assert 0 < loss < 2
