"""Which optimizers of torch and of other libraries `attach` refuses, and by how much they deviate.

Needs pytorch_optimizer, schedulefree, torchao, bitsandbytes, transformers; `-s` prints the table.
"""

import inspect
from functools import partial

import bitsandbytes
import pytest
import pytorch_optimizer
import schedulefree
import torch
import torchao.optim
import transformers
from accelerate import Accelerator

from antipgd.torch import anchored, attach

REFUSED = {
    "a2grad", "accsgd", "focus", "ftrl", "madgrad", "nero", "ranger", "ranger21",
    "schedulefreeadamw", "schedulefreeradam", "schedulefreesgd", "srmm",
    "Lookahead, 5", "ScheduleFreeWrapper", "TRAC",
    "SGDScheduleFree", "AdamWScheduleFree", "RAdamScheduleFree",
}  # fmt: skip
BY_NAME = {"Lookahead, 50", "dadaptadagrad", "dadaptadam", "dadaptadan", "dadaptlion",
           "dadaptsgd", "prodigy"}  # fmt: skip
NOT_MADE = {  # take a model, named parts, or a process group
    "adago", "adalomo", "adammini", "adamuon", "bsam", "demo", "distributedmuon", "lomo", "muon",
    "muonclip", "normuon",
}  # fmt: skip
UNPROBED = {"adahessian", "sophiah", "spectralsphere"}
"""Those need the graph of the gradients, or matrices alone: a note in the log."""


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(8, 6)), torch.nn.Parameter(torch.randn(6))]


def of_torch():
    for name, kind in vars(torch.optim).items():
        if inspect.isclass(kind) and kind is not torch.optim.Optimizer and name != "SparseAdam":
            ours = parameters()[:1] if name == "Muon" else parameters()
            yield name, partial(kind, ours, lr=0.01)


def first_that_is_made(kind):
    for settings in ({"lr": 0.01}, {}, {"lr": 0.01, "num_iterations": 9}, {"num_iterations": 9}):
        try:
            return kind(parameters(), **settings)
        except (AttributeError, ImportError, RuntimeError, TypeError):
            pass  # the next settings may suit it; who suits none is in NOT_MADE
    return None


def of_pytorch_optimizer():
    for name in pytorch_optimizer.get_supported_optimizers():
        yield name, partial(first_that_is_made, pytorch_optimizer.load_optimizer(name))
    for k in (5, 50):
        yield (
            f"Lookahead, {k}",
            lambda k=k: pytorch_optimizer.Lookahead(torch.optim.SGD(parameters(), lr=0.01), k=k),
        )
    for name in ("TRAC", "ScheduleFreeWrapper", "OrthoGrad"):
        kind = getattr(pytorch_optimizer, name)
        yield name, lambda kind=kind: kind(torch.optim.AdamW(parameters(), lr=0.01))


def of_others():
    for name in ("SGDScheduleFree", "AdamWScheduleFree", "RAdamScheduleFree"):
        yield name, partial(getattr(schedulefree, name), parameters(), lr=0.01)
    for name in ("AdamW8bit", "AdamW4bit", "AdamWFp8"):
        yield f"torchao {name}", partial(getattr(torchao.optim, name), parameters(), lr=0.01)
    for name in ("AdamW8bit", "Lion8bit", "Adam"):
        yield f"bitsandbytes {name}", partial(getattr(bitsandbytes.optim, name), parameters(), 0.01)
    yield (
        "transformers Adafactor",
        partial(transformers.Adafactor, parameters(), lr=0.01, relative_step=False),
    )


def row(optimizer):
    """How far it deviates, nan where that cannot be tried, and whether it is refused."""
    try:
        found = anchored.deviation(optimizer)
    except Exception:
        found = float("nan")
    try:
        anchored.refuse_unfit(optimizer, getattr(optimizer, "optimizer", optimizer))
    except ValueError:
        return found, True
    return found, False


@pytest.mark.filterwarnings("ignore")
def test_the_table():
    makers = [*of_torch(), *of_pytorch_optimizer(), *of_others()]
    made = {name: optimizer for name, make in makers if (optimizer := make()) is not None}
    # where another test has begun a process group, demo can be made
    assert NOT_MADE - {"demo"} <= {name for name, _ in makers} - set(made) <= NOT_MADE
    table = {name: row(optimizer) for name, optimizer in made.items()}
    for name, (found, refused) in sorted(table.items(), key=lambda entry: entry[1]):
        print(f"{name:28} {found:8.2g} σ  {'refused' if refused else ''}")
    assert {name for name, (_, refused) in table.items() if refused} == REFUSED | BY_NAME
    unprobed = {name for name, (found, _) in table.items() if found != found}
    assert unprobed - {"demo"} == UNPROBED
    flagged = [table[name][0] for name in REFUSED]
    ordinary = [found for name, (found, _) in table.items() if name not in REFUSED | unprobed]
    print(f"{len(table)}: refused from {min(flagged):.2g} σ, others to {max(ordinary):.2g} σ")
    assert len(table) >= 140
    assert min(flagged) > 4 * anchored.LIMIT
    assert max(ordinary) < anchored.LIMIT / 20


def test_accelerates_wrapper_is_unwrapped():
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, wrapped = Accelerator(cpu=True).prepare(model, optimizer)
    noise = attach(wrapped, sigma=0.1)
    assert noise.optimizer is optimizer
    model(torch.ones(3, 6)).sum().backward()
    wrapped.step()
    assert noise.step_count == 1
    assert "antipgd" in wrapped.state_dict()["param_groups"][0]
