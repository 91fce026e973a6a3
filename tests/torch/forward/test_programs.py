"""Random programs on a perturbed model against the model that one can hold in the head: z and n.

A program is a list of what people do between and around steps. The model of it is a plain copy of
the weights with a plain optimizer, which gets its gradients from a copy at z + ξ_n; n counts.
"""

import copy
import io
import random

import pytest
import torch
from torch import nn

from antipgd.noise import draws
from antipgd.torch import perturb

SEED, SIGMA = 5, 0.05


class Net(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))
        self.fail = False
        self.to(dtype)

    def forward(self, x):
        x = torch.tanh(self.norm(self.first(x)))
        if self.fail:
            raise OSError("on purpose")
        return self.last(x) * self.scale


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise OSError("on purpose")


def optimizers_of(model, kind):
    named = dict(model.named_parameters())
    if kind == "two":
        first = [p for n, p in named.items() if n.startswith("first")]
        rest = [p for n, p in named.items() if not n.startswith("first")]
        return [torch.optim.SGD(first, lr=0.02), torch.optim.AdamW(rest, lr=0.01, eps=1e-4)]
    if kind == "late":  # `scale` joins by and by
        return [torch.optim.SGD([p for n, p in named.items() if n != "scale"], lr=0.02)]
    return [torch.optim.AdamW(named.values(), lr=0.01, eps=1e-4)]


class Program:
    """A perturbed model and, beside it, what it must be."""

    def __init__(self, seed, dtype, kind, hold):
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.dtype, self.kind, self.hold = dtype, kind, hold
        self.model = Net(dtype)
        self.plain = copy.deepcopy(self.model)
        self.optimizers = optimizers_of(self.model, kind)
        self.theirs = optimizers_of(self.plain, kind)
        self.noise = perturb(self.model, self.optimizers, SIGMA, seed=SEED, hold=hold)
        self.n = 0
        self.paused = False
        owned = {id(p) for o in self.theirs for g in o.param_groups for p in g["params"]}
        self.drawn = {n: False for n, p in self.plain.named_parameters() if id(p) in owned}
        self.saved = None

    # What the model of it says

    def carried(self, name):
        """ξ that a pass reads: of draw ⌈n/hold⌉ if the parameter took part in it."""
        if not self.drawn.get(name):
            return None
        size = self.plain.get_parameter(name).numel()
        return draws(SEED, name, -(-self.n // self.hold), 0, size)

    def noisy(self):
        found = copy.deepcopy(self.plain)
        with torch.no_grad():
            for name, p in found.named_parameters():
                xi = self.carried(name)
                if xi is not None:
                    wide = p.double() if p.dtype == torch.float64 else p.float()
                    term = torch.from_numpy(xi).to(wide.dtype) * torch.tensor(
                        SIGMA, dtype=wide.dtype
                    )
                    p.copy_((wide + term.reshape(p.shape)).to(p.dtype))
        return found

    def batch(self):
        seed = self.random.randrange(100)
        return torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)).to(self.dtype)

    # What a program does

    def backward(self):
        x = self.batch()
        self.model.train()
        self.model(x).square().mean().backward()
        noisy = self.noisy().train()
        for p, q in zip(noisy.parameters(), self.plain.parameters(), strict=True):
            p.requires_grad_(q.requires_grad)
        noisy.zero_grad()
        noisy(x).square().mean().backward()
        for p, q in zip(self.plain.parameters(), noisy.parameters(), strict=True):
            if q.grad is not None:
                p.grad = q.grad if p.grad is None else p.grad + q.grad
        for b, c in zip(self.plain.buffers(), noisy.buffers(), strict=True):
            b.copy_(c)

    def step(self):
        for optimizer in [*self.optimizers, *self.theirs]:
            optimizer.step()
        for model in (self.model, self.plain):
            model.zero_grad()
        if self.paused:
            return
        if self.n % self.hold == 0:
            owned = {id(p) for o in self.theirs for g in o.param_groups for p in g["params"]}
            for name, p in self.plain.named_parameters():
                if id(p) in owned:
                    self.drawn[name] = p.requires_grad
        self.n += 1

    def train(self):
        self.backward()
        self.step()

    def accumulate(self):
        for _ in range(self.random.randrange(2, 4)):
            self.backward()
        self.step()

    def evaluate(self):
        x = self.batch()
        self.model.eval()
        self.plain.eval()
        assert torch.equal(self.model(x), self.plain(x))

    def off(self):
        x = self.batch()
        state = copy.deepcopy(self.model.state_dict())
        with self.noise.off():
            assert torch.equal(self.model.train()(x), self.plain.train()(x))
        self.model.load_state_dict(state)
        self.plain.load_state_dict(state)

    def fail_in_forward(self):
        for model in (self.model, self.plain):
            model.train()
            model.fail = True
            with pytest.raises(OSError, match="on purpose"):
                model(torch.ones(2, 3, dtype=self.dtype))
            model.fail = False
        state = self.model.state_dict()  # whose norm has seen that batch
        self.plain.load_state_dict(state)

    def fail_in_backward(self):
        x = self.batch()
        self.model.train()
        with pytest.raises(OSError, match="on purpose"):
            Fails.apply(self.model(x)).sum().backward()
        self.plain.load_state_dict(self.model.state_dict())

    def freeze(self):
        name = self.random.choice(["first.weight", "last.bias", "norm.weight"])
        for model in (self.model, self.plain):
            p = model.get_parameter(name)
            p.requires_grad_(not p.requires_grad)

    def add_group(self):
        if self.kind != "late" or "scale" in self.drawn:
            return
        for model, optimizers in ((self.model, self.optimizers), (self.plain, self.theirs)):
            optimizers[0].add_param_group({"params": [model.scale], "lr": 0.01})
        self.drawn["scale"] = False

    def swap_average(self):
        """An average's weights are in the model for an evaluation, and then the old ones again."""
        average = copy.deepcopy(self.model).eval()
        with torch.no_grad():
            for p in average.parameters():
                p.mul_(0.9)
        state = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(average.state_dict())
        x = self.batch()
        assert torch.equal(self.model.eval()(x), average(x))
        self.model.load_state_dict(state)

    def go_back(self):
        """The best weights so far, or those of a while ago: they are clean whenever they are."""
        if self.saved is None:
            self.saved = copy.deepcopy(self.model.state_dict())
        else:
            self.model.load_state_dict(self.saved)
            self.plain.load_state_dict(self.saved)
            self.saved = None

    def pause(self):
        self.paused = not self.paused
        self.noise.pause() if self.paused else self.noise.resume()

    def resume(self):
        """Saved, and loaded into new objects."""
        file = io.BytesIO()
        torch.save((self.model.state_dict(), [o.state_dict() for o in self.optimizers]), file)
        file.seek(0)
        weights, states = torch.load(file, weights_only=True)
        flags = [p.requires_grad for p in self.model.parameters()]
        gradients = [p.grad for p in self.model.parameters()]
        model = Net(self.dtype)
        for p, flag, gradient in zip(model.parameters(), flags, gradients, strict=True):
            p.requires_grad_(flag)
            p.grad = gradient
        optimizers = optimizers_of(model, self.kind)
        if self.kind == "late" and "scale" in self.drawn:
            optimizers[0].add_param_group({"params": [model.scale], "lr": 0.01})
        first = self.random.random() < 0.5
        if first:
            noise = perturb(model, optimizers, SIGMA, hold=self.hold)
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.load_state_dict(state)
        if not first:
            noise = perturb(model, optimizers, SIGMA, hold=self.hold)
        model.load_state_dict(weights)
        self.noise.stop()
        self.model, self.optimizers, self.noise = model, optimizers, noise

    def convert(self):
        """Another type: weights, optimizer state and gradients."""
        self.dtype = self.random.choice([torch.float32, torch.float64, torch.bfloat16])
        for model, optimizers in ((self.model, self.optimizers), (self.plain, self.theirs)):
            model.to(self.dtype)
            for optimizer in optimizers:
                for state in optimizer.state.values():
                    for key, value in state.items():
                        if key != "step" and isinstance(value, torch.Tensor):
                            state[key] = value.to(self.dtype)

    def copy_of_it(self):
        other = copy.deepcopy(self.model)
        assert type(other.first._parameters) is dict
        x = self.batch()
        assert torch.equal(other.train()(x), copy.deepcopy(self.plain).train()(x))

    DO = (train, train, train, accumulate, evaluate, off, fail_in_forward, fail_in_backward,
          freeze, add_group, swap_average, go_back, pause, resume, convert, copy_of_it,
          backward)  # fmt: skip

    def run(self, length):
        done = []
        for _ in range(length):
            action = self.random.choice(self.DO)
            done.append(action.__name__)
            action(self)
            self.check(done)
        return done

    def check(self, done):
        assert self.noise.step_count == self.n, done
        mine, theirs = self.model.state_dict(), self.plain.state_dict()
        for name, value in mine.items():
            assert torch.equal(value, theirs[name]), (name, done)
        for (name, p), q in zip(
            self.model.named_parameters(), self.plain.parameters(), strict=True
        ):
            assert (p.grad is None) == (q.grad is None), (name, done)
            assert p.grad is None or torch.equal(p.grad, q.grad), (name, done)


def run(seed):
    dtype = [torch.float32, torch.float64, torch.bfloat16][seed % 3]
    kind = ["one", "two", "late"][seed // 3 % 3]
    Program(seed, dtype, kind, hold=1 + seed // 9 % 2).run(12)


@pytest.mark.parametrize("block", range(6))
def test_random_programs(block):
    for seed in range(block * 25, (block + 1) * 25):
        run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_five_thousand_random_programs(block):
    for seed in range(10_000 + block * 500, 10_000 + (block + 1) * 500):
        run(seed)
