"""What the two forms of the noise cost in a training step. `make bench`.

Three parts, each in processes of its own, one thread, process CPU time, order shuffled in every
round, medians over rounds; the worst of the processes counts.

- networks: the time to form all w as a share of a whole training step: ResNet18 on 128 images of
  32 × 32, a GPT of 10 million parameters on 1,024 tokens. With memory="keep" each w is formed once
  in a step, with "recompute" twice. Beside them the whole perturbed step, and one of SAM.
- tensors: Python per tensor and step. In the weights: a step of fused SGD on 1,000 tensors of one
  element, without SGD and without the kernel. Forward form: forming w; and all that it adds to
  forward, backward and step of a chain of 1,000 layers of 4 × 4, beside the same chain with two
  empty hooks on each layer and a copy of each weight, which is the least that it can add.
- hold: fused SGD on the tensors of ResNet18 with noise in the weights, a new draw at each step (r
  times plain) or at every second one.

Adds to benchmarks/results.json, with the CPU's name and vector width. Names of parts (tensors,
hold, resnet18, gpt) measure these alone.
"""

import json
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from antipgd.paper.networks.models import ResNet18
from antipgd.torch import attach, perturb
from kernels import ours, resnet18_shapes

PROCESSES = 3
ROUNDS = {"networks": 3, "tensors": 15, "hold": 15}
SIGMA = 0.01
LAWS = ("gaussian", "rademacher")
ALLOWED = {"resnet18": {"keep": 0.015}, "gpt": {"keep": 0.03, "recompute": 0.06}}


class Block(nn.Module):
    """A layer of a GPT, as everybody writes it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time_, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, time_, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time_, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    """10 million parameters: 12 layers of width 256, 2,048 tokens, tied embeddings."""

    def __init__(self, width: int = 256, layers: int = 12, tokens: int = 2048) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.places = nn.Parameter(torch.randn(256, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.places
        for block in self.blocks:
            h = block(h)
        return nn.functional.linear(self.norm(h), self.embedding.weight)


def network(kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    if kind == "resnet18":
        x = torch.randn(128, 3, 32, 32)
        return ResNet18(64, 3, 10, norm="batch"), x, torch.randint(0, 10, (128,))
    x = torch.randint(0, 2048, (4, 256))
    return GPT(), x, torch.randint(0, 2048, (4 * 256,))


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).flatten(0, -2), y)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor):
    def run() -> None:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()

    return run


def sam_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor):
    """Foret et al.: the gradient at w + ρ g/‖g‖."""
    parameters = list(model.parameters())

    def run() -> None:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        gradients = [p.grad.clone() for p in parameters]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, float(0.05 / norm))
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients)
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        with torch.no_grad():
            torch._foreach_sub_(parameters, gradients)
        optimizer.step()

    return run


def forming(noise) -> object:
    """All w of a step, one after the other."""
    passes = noise._passes

    def run() -> None:
        for seat in noise._seats:
            passes.former.form(seat.parameter, passes.draw_of(seat), seat.known)

    return run


def network_ways(kind: str) -> dict:
    def made(**options):
        model, x, y = network(kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
        noise = perturb(model, optimizer, SIGMA, seed=0, **options) if options else None
        return model, optimizer, x, y, noise

    *plain, _ = made()
    rows = {"plain": train_step(*plain), "SAM": sam_step(*plain)}
    for law in LAWS:
        for memory in ("keep", "recompute") if kind == "gpt" else ("keep",):
            *own, noise = made(law=law, memory=memory)
            rows[f"perturb {law} {memory}"] = train_step(*own)
        rows[f"forming {law}"] = forming(noise)
    return rows


class Chain(nn.Module):
    def __init__(self, count: int = 1000) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Copied(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.clone())


def with_empty_hooks(model: Chain) -> None:
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, args: None)
        module.register_forward_hook(lambda module, args, output: None, always_call=True)
        if isinstance(module, nn.Linear):
            module.__class__ = Copied


def tensor_ways() -> dict:
    rows, noises = {}, []
    for name, add in (
        ("chain", None),
        ("chain, empty hooks and copies", lambda m, o: with_empty_hooks(m)),
        ("chain, forward form", lambda m, o: noises.append(perturb(m, o, SIGMA, seed=0))),
    ):
        torch.manual_seed(0)
        model, x = Chain(), torch.randn(2, 4)
        optimizer = torch.optim.SGD(model.named_parameters(), lr=1e-3)
        if add:
            add(model, optimizer)

        def run(model=model, optimizer=optimizer, x=x) -> None:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

        rows[name] = run
    rows["nothing"] = lambda: None
    rows["forming w"] = forming(noises[0])
    for name in ("step", "step, in the weights"):
        parameters = [nn.Parameter(torch.ones(1)) for _ in range(1000)]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1e-6)
        optimizer = torch.optim.SGD(parameters, lr=0.05, fused=True)
        if name != "step":
            attach(optimizer, SIGMA, law="rademacher", seed=0)
        rows[name] = optimizer.step
    rows["kernel"] = ours([torch.ones(1) for _ in range(1000)], "rademacher", 1)
    return rows


def hold_ways() -> dict:
    rows = {}
    for hold in (0, 1, 2):
        parameters = [nn.Parameter(torch.zeros(shape)) for shape in resnet18_shapes()]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1e-6)
        optimizer = torch.optim.SGD(parameters, lr=0.05, fused=True)
        if hold:
            attach(optimizer, SIGMA, seed=0, hold=hold, namespace=str(hold))

        def run(optimizer=optimizer) -> None:
            optimizer.step()
            optimizer.step()

        rows[f"hold {hold}" if hold else "fused SGD"] = run
    return rows


def measure(part: str) -> dict[str, float]:
    """Median CPU seconds of every way, in one process."""
    torch.set_num_threads(1)
    kind, _, which = part.partition(":")
    rows = {"networks": lambda: network_ways(which), "tensors": tensor_ways, "hold": hold_ways}[
        kind
    ]()
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for run in rows.values():
        run()
        if kind != "networks":
            run()
    for _ in range(ROUNDS[kind]):
        for name in random.sample(list(rows), len(rows)):
            begin = time.process_time()
            rows[name]()
            seconds[name].append(time.process_time() - begin)
    return {name: median(times) for name, times in seconds.items()}


def child(part: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", part]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def cpu() -> dict[str, str]:
    """Its name and the widest vectors it has."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = fields.get("flags", "").split()
    width = "512 bits" if "avx512f" in flags else "256 bits" if "avx2" in flags else "128 bits"
    return {"cpu": fields.get("model name", "unknown"), "vectors": width if flags else "unknown"}


def network_rows(kind: str) -> list[dict]:
    runs = [child(f"networks:{kind}") for _ in range(PROCESSES)]
    rows = [
        {"part": kind, "way": name, "times_plain": median(run[name] / run["plain"] for run in runs),
         "seconds": median(run[name] for run in runs)}
        for name in runs[0]
    ]  # fmt: skip
    for law in LAWS:
        for memory, allowed in ALLOWED[kind].items():
            times = 1 if memory == "keep" else 2
            share = max(times * run[f"forming {law}"] / run["plain"] for run in runs)
            limit = allowed if law == "gaussian" else allowed / 2
            rows.append({"part": kind, "way": f"share of forming, {law}, {memory}", "worst": share,
                         "allowed": limit, "holds": share <= limit})  # fmt: skip
    return rows


def tensor_rows() -> list[dict]:
    runs = [child("tensors") for _ in range(PROCESSES)]
    rows = []
    for name, without, allowed in (
        ("step, in the weights", ("step", "kernel"), 2.0),
        ("forming w", ("nothing",), 8.0),
        ("chain, forward form", ("chain",), None),
        ("chain, empty hooks and copies", ("chain",), None),
    ):
        worst = max((run[name] - sum(run[n] for n in without)) / 1000 * 1e6 for run in runs)
        row = {"part": "1,000 tensors", "way": f"{name}, µs per tensor", "worst": worst}
        rows.append(row | ({"allowed": allowed, "holds": worst <= allowed} if allowed else {}))
    return rows


def hold_rows() -> list[dict]:
    runs = [child("hold") for _ in range(PROCESSES)]
    once = max(run["hold 1"] / run["fused SGD"] for run in runs)
    twice = max(run["hold 2"] / run["fused SGD"] for run in runs)
    limit = 1.1 * (1 + once) / 2
    return [
        {"part": "hold", "way": "hold 1, times fused SGD", "worst": once},
        {"part": "hold", "way": "hold 2, times fused SGD", "worst": twice, "allowed": limit,
         "holds": twice <= limit},
    ]  # fmt: skip


def show(rows: list[dict]) -> None:
    for row in rows:
        value = row.get("worst", row.get("times_plain"))
        verdict = ""
        if "allowed" in row:
            verdict = f"  allowed {row['allowed']:.3g}: {'holds' if row['holds'] else 'FAILS'}"
        print(f"{row['part']:14}{row['way']:44}{value:9.4g}{verdict}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2])))
        return
    machine = cpu()
    print(f"{machine['cpu']}, vectors of {machine['vectors']}")
    rows = []
    parts = {"tensors": tensor_rows, "hold": hold_rows}
    parts |= {kind: partial(network_rows, kind) for kind in ALLOWED}
    for part in [parts[name] for name in sys.argv[1:] or parts]:
        rows += (found := part())
        show(found)
    path = Path(__file__).with_name("results.json")
    results = json.loads(path.read_text())
    measured = {row["part"] for row in rows}
    kept = [row for row in results.get("forms", {}).get("rows", []) if row["part"] not in measured]
    results["forms"] = {"machine": machine, "rows": [*kept, *rows]}
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten to {path.name}")


if __name__ == "__main__":
    main()
