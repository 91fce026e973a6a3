"""Two gloo ranks under torchrun train the network that one process trains, up to rounding."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from antipgd.paper.networks.ranks import Ranks
from antipgd.paper.networks.spec import make_training
from antipgd.paper.networks.train import train

SCRIPT = """
    import json, sys
    from pathlib import Path
    from antipgd.paper.networks.train import train
    from antipgd.paper.networks.spec import Training

    for text in sys.argv[2:]:
        record = train(Training.from_plain(json.loads(text)), Path(sys.argv[1]))
        assert record.status == "ok"
"""


def spec(method, **changes):
    values = {"batch": 30, "micro": 10, "epochs": 2, "seed": 0, "images": 200, "width": 4,
              "sigma": 0.02, "noise_stop": 1}  # fmt: skip
    return make_training("digits", "cnn", method, **(values | changes))


@pytest.mark.slow
def test_two_ranks_train_as_one_process(tmp_path):
    """Three micro-batches for two ranks: also statistics of BatchNorm and SAM's ascent agree."""
    runs = [spec("anti"), spec("sam"), spec("two_point"), spec("trace_penalty", loss="squared"),
            spec("anti", form="forward", norm="group", ema=0.5, augment="flip_crop")]  # fmt: skip
    script = tmp_path / "ranks.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(script), str(tmp_path / "two"), *(run.canonical() for run in runs)],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for run in runs:
        train(run, tmp_path / "one")
        paths = [tmp_path / ranks / run.name / "clean-at-end.pt" for ranks in ("one", "two")]
        one, two = (torch.load(path, weights_only=True) for path in paths)
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5)
        logs = [np.genfromtxt(path.with_name("log.csv"), delimiter=",") for path in paths]
        np.testing.assert_allclose(logs[1][1:, 2:6], logs[0][1:, 2:6], rtol=1e-3)


def test_more_ranks_than_micro_batches_are_refused():
    ranks = Ranks()
    ranks.check(1)
    ranks.count = 4
    with pytest.raises(ValueError, match="4 processes need at least as many micro-batches"):
        ranks.check(3)
