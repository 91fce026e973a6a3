"""An image classifier in plain PyTorch: without noise, and with noise of a σ that is found there.

Learning-rate schedule, average of the weights (EMA), early stopping that keeps the best weights.
Kill it and run it again: it goes on where it was. The weights it leaves in `runs` are clean.

    pip install '.[flatness]' scikit-learn
    python examples/classifier.py                      # half a minute on one core
"""

import copy
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import antipgd.torch
from antipgd.flatness import find_sigma, trace_at_equal_loss

EPOCHS, SEEDS = int(os.environ.get("EPOCHS", "200")), int(os.environ.get("SEEDS", "3"))
BATCH, LR, MOMENTUM, PATIENCE, RUNS = 30, 0.05, 0.9, 50, Path("runs")
pixels, digits = map(torch.tensor, load_digits(return_X_y=True))
parts = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split([300, 300, 1197])
training, validation, test = [(pixels[part].float() / 16, digits[part]) for part in parts]


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    return (model(images).argmax(1) == labels).double().mean().item()


def train(name: str, seed: int, sigma: float) -> nn.Module:
    torch.manual_seed(seed)  # of the first weights and, as perturb is told no other, of the noise
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95)).eval()
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    window = antipgd.noise.Window(0, EPOCHS * 300 // BATCH * 5 // 6)  # the last sixth is clean
    antipgd.torch.perturb(model, optimizer, sigma, schedule=window)  # the one line
    saved = {"model": model, "average": average, "optimizer": optimizer, "rates": rates}
    path, now = RUNS / f"{name}-{seed}.checkpoint", {"epoch": 0, "best": 0.0, "stale": 0}
    if path.exists():
        now = torch.load(path)
        for key, part in saved.items():
            part.load_state_dict(now[key])
    while now["epoch"] < EPOCHS and now["stale"] < PATIENCE:
        shuffled = torch.randperm(300, generator=torch.Generator().manual_seed(now["epoch"]))
        for batch in shuffled.split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(training[0][batch]), training[1][batch]).backward()
            optimizer.step()
            average.update_parameters(model)  # with clean weights: a model has no others
        rates.step()
        now |= {"epoch": now["epoch"] + 1, "stale": now["stale"] + 1}
        if (score := accuracy(average, *validation)) >= now["best"]:
            weights = copy.deepcopy(average.module.state_dict())
            now |= {"best": score, "stale": 0, "weights": weights}
        torch.save(now | {key: part.state_dict() for key, part in saved.items()}, f"{path}.new")
        os.replace(f"{path}.new", path)  # whole or not at all
    torch.save(now["weights"], path.with_suffix(".pt"))
    model.load_state_dict(now["weights"])
    return model.eval()


RUNS.mkdir(exist_ok=True)
print("seed  sigma  test accuracy  trace of the Hessian at equal loss, 95 % interval")
for seed in range(SEEDS):
    plain = train("plain", seed, 0.0)
    found = find_sigma(lambda batch, m=plain: cross_entropy(m(batch[0]), batch[1]), plain,
                       [training], lr=LR, momentum=MOMENTUM)  # fmt: skip
    for sigma, model in ((0.0, plain), (found.sigma, train("noise", seed, found.sigma))):
        flat = trace_at_equal_loss(model, [training], loss=0.1)
        print(f"{seed:4}  {sigma:.3f}  {accuracy(model, *test):13.1%}  {flat}", flush=True)
print(f"{SEEDS} seeds decide little: docs/flatness.md has such a comparison with 24")
