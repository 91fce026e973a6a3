"""Jobs of several ranks: torchrun from a test, scenarios in the ranks, and what these share."""

import os
import subprocess
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).parent


def launched(script, ranks, folder, *scenarios):
    """A job of gloo ranks that runs scenarios of a script, when it has ended."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, f"--nproc-per-node={ranks}", str(script), ",".join(scenarios), str(folder)],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def check_done(result, ranks, *scenarios):
    """The job has gone through these scenarios."""
    for scenario in scenarios:
        assert f"{scenario} on {ranks} ranks: done" in result.stdout, result.stderr[-20000:]


def torchrun(script, ranks, folder, *scenarios):
    """Run scenarios of a script on gloo ranks, one after the other."""
    check_done(launched(script, ranks, folder, *scenarios), ranks, *scenarios)


def run(scenarios):
    """What a rank does: script.py SCENARIO,… FOLDER."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch.distributed's own; ours are tested elsewhere
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))  # who hangs, fails
    for scenario in sys.argv[1].split(","):
        scenarios[scenario](dist.get_rank(), dist.get_world_size(), sys.argv[2])
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"{scenario} on {dist.get_world_size()} ranks: done", flush=True)
    time.sleep(0.5)  # else gloo's threads may hold tensors when Python ends, and torch aborts
    dist.destroy_process_group()


def make_model(first=7, second=5, outputs=1):
    """By default of sizes that nothing divides evenly."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, first), torch.nn.Tanh(), torch.nn.Linear(first, second),
        torch.nn.Tanh(), torch.nn.Linear(second, outputs),
    )  # fmt: skip


def even_model():
    return make_model(8, 12, 4)


def batch():
    x = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
    return x, x[:, :1].sin()


def sgd(model):
    return torch.optim.SGD(model.named_parameters(), lr=0.05, momentum=0.9)


def full(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu()
