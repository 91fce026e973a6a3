"""States that a file may hold and that no optimizer wrote, and what must become of them.

Each works for three more steps and clean(), or is refused by an error that names the param group
and the field, and then everything is bit for bit what it was.
"""

import collections
import copy
import json
import random
import re
from contextlib import suppress

import torch

from antipgd.torch import attach, clean_state_dict
from antipgd.torch.record import CHECKS, COMMON
from training import make_model

JUNK = [
    None, -1, 0, 1, 2, 7, 1.5, -0.1, float("nan"), float("inf"), 1e39, 2**64, 2**70, "", "x",
    "gaussian", "no", [], [1.0], [[]], [1.0, -1.0], {}, {"a": 1}, True, False, (1,), b"x",
    torch.tensor(1.0), torch.tensor([1.0, 2.0]),
]  # fmt: skip
OTHER = {
    "stream": 2, "form": "forward", "law": "laplace", "taps": [1.0], "namespace": "b",
    "relative": True, "seed": 4, "sigma": 0.2, "step": 5, "clock": 1.0, "paused": True,
    "clocks": [["sgd", 1.0]],
}  # fmt: skip
LISTS = ["names", "shapes", "first_lrs", "scales", "sigmas", "taps", "clocks"]
KINDS = ["drop", "junk", "junk", "deep", "deep", "unknown", "everywhere", "other", "whole",
         "no key", "swap", "format", "damaged"]  # fmt: skip
TORCHS = ["fewer params", "odd params", "no state", "odd state", "no groups", "odd group",
          "fewer groups"]  # fmt: skip
FIELDS = [*CHECKS, "format", "version", "antipgd"]


def make(noisy=True):
    model = make_model(torch.float32)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2:].parameters())}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    noise = attach(optimizer, sigma=0.05, seed=3, model=model) if noisy else None
    return model, optimizer, noise


def train(model, optimizer, steps):
    """Steps on Σ w² / 2: no graph, for speed."""
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = parameter.detach().clone()
        optimizer.step()


def old_format(state):
    """The same state as format 0 had it: dictionaries with every field in them."""
    state = copy.deepcopy(state)
    for group in state["param_groups"]:
        fields = {
            "namespace": "",
            "relative": False,
            "paused": False,
            **json.loads(group["antipgd"]),
        }
        del fields["format"]
        for later in ("clocks", "samples"):
            fields.pop(later, None)
        fields["version"] = fields.pop("stream")
        group["antipgd"] = fields
    return state


def mutated(good, dice):
    """A copy of a state with one thing wrong (or merely different), and what that is."""
    state = copy.deepcopy(good)
    groups = state["param_groups"]
    new = isinstance(groups[0]["antipgd"], str)
    for group in groups:
        group["antipgd"] = json.loads(group["antipgd"]) if new else group["antipgd"]
    i = dice.randrange(len(groups))
    kind = dice.choice([*KINDS, dice.choice(TORCHS)])
    _mutate(kind, groups, i, dice)
    for group in groups if new else []:
        with suppress(KeyError, TypeError):  # gone, or no JSON: then as it is
            group["antipgd"] = json.dumps(group["antipgd"])
    if kind == "damaged" and new:
        text = groups[i]["antipgd"]
        groups[i]["antipgd"] = text[: dice.randrange(len(text))]
    if kind in TORCHS:
        _mutate_for_torch(kind, state, i, dice)
    return kind, state


def _mutate(kind, groups, i, dice):
    noise = groups[i]["antipgd"]
    field = dice.choice(sorted(noise))
    junk = copy.deepcopy(dice.choice(JUNK))
    if kind == "drop":
        del noise[field]
    elif kind == "junk":
        noise[field] = junk
    elif kind == "deep":
        _mutate_list(noise[dice.choice([name for name in LISTS if name in noise])], junk, dice)
    elif kind == "unknown":
        noise[dice.choice(["hold", "colour", 3])] = junk
    elif kind == "everywhere":
        for group in groups:
            group["antipgd"][field] = copy.deepcopy(junk)
    elif kind == "other":
        field = dice.choice([name for name in COMMON if name in noise] or ["version"])
        noise[field] = OTHER[field]
    elif kind == "whole":
        groups[i]["antipgd"] = junk
    elif kind == "no key":
        del groups[i]["antipgd"]
    elif kind == "swap":
        groups[0]["antipgd"], groups[1]["antipgd"] = groups[1]["antipgd"], groups[0]["antipgd"]
    elif kind == "format":
        noise["format"] = dice.choice([2, 0, -1, 1.0, "1", True, None, 10**30])


def _mutate_list(values, junk, dice):
    how = dice.choice(["set", "pop", "add", "repeat"])
    if how == "set":
        values[dice.randrange(len(values))] = junk
    elif how == "pop":
        values.pop()
    elif how == "add":
        values.append(junk)
    else:
        values[0] = copy.deepcopy(values[-1])


def _mutate_for_torch(kind, state, i, dice):
    groups = state["param_groups"]
    if kind == "fewer params":
        groups[i]["params"] = groups[i]["params"][:-1]
    elif kind == "odd params":
        groups[i]["params"] = dice.choice([None, 3, "x", [[], []], {}])
    elif kind == "no state":
        del state["state"]
    elif kind == "odd state":
        state["state"] = dice.choice([None, 3, [], "x"])
    elif kind == "no groups":
        state["param_groups"] = dice.choice([None, {}, "x", 3, []])
    elif kind == "odd group":
        groups[i] = dice.choice([None, 3, [], {}])
    else:
        groups.pop(i)


def mutations(count, seed):
    """`count` states, half of them of format 0."""
    model, optimizer, noise = make()
    train(model, optimizer, 4)
    good = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(model.state_dict())
    noise.stop(remove=False)
    dice = random.Random(seed)
    for i in range(count):
        sound = old_format(good) if i % 2 else good
        kind, state = mutated(sound, dice)
        yield weights, sound, kind, state


def snapshot(model, optimizer, noise):
    if noise is None:
        own = None
    else:
        own = [noise.seed, noise.step_count, noise.clock, noise.paused, noise.sigma]
        own += [[m.name, m.drawn_as, m.key, m.first_lr, m.scale, m.sigmas] for m in noise.members]
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    buffers = [optimizer.state[p] for g in optimizer.param_groups for p in g["params"]]
    return copy.deepcopy([own, groups, buffers, model.state_dict()])


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


def check_refusal(error, kind, before, after):
    """The error names the param group and the field, and nothing has changed."""
    assert same(before, after), (kind, repr(error))
    text = str(error)
    assert isinstance(error, ValueError | RuntimeError), (kind, repr(error))
    if kind in TORCHS:
        assert re.search("param.groups?|state", text), (kind, text)
    else:
        assert re.search(r"param group \d|the ranks disagree", text), (kind, text)
        assert re.search(rf"\b({'|'.join(FIELDS)})\b", text), (kind, text)


def works(model, optimizer, noise):
    train(model, optimizer, 3)
    with noise.clean():
        pass


class Subject:
    """A model with an optimizer, put back to where it was after each state that it took."""

    def __init__(self, noisy):
        self.noisy = noisy
        self.begin()

    def begin(self):
        self.model, self.optimizer, self.noise = make(self.noisy)
        train(self.model, self.optimizer, 2)

    def snapshot(self):
        return snapshot(self.model, self.optimizer, self.noise)

    def end(self):
        if self.noise is not None:
            self.noise.stop(remove=False)


def load(subject, weights, kind, state):
    """load_state_dict into an optimizer with noise."""
    before = subject.snapshot()
    try:
        subject.optimizer.load_state_dict(state)
    except Exception as error:
        check_refusal(error, kind, before, subject.snapshot())
        return "refused"
    subject.model.load_state_dict(weights)
    works(subject.model, subject.optimizer, subject.noise)
    subject.end()
    subject.begin()
    return "works"


def load_then_attach(subject, weights, kind, state):
    """Into an optimizer without noise, which takes what torch takes; then attach."""
    try:
        subject.optimizer.load_state_dict(state)
    except Exception:
        assert kind in TORCHS, kind
        return "refused by torch"
    subject.model.load_state_dict(weights)
    before = subject.snapshot()
    try:
        noise = attach(subject.optimizer, sigma=0.05, seed=8, model=subject.model)
    except Exception as error:
        check_refusal(error, kind, before, subject.snapshot())
        found = "refused"
    else:
        works(subject.model, subject.optimizer, noise)
        noise.stop(remove=False)
        subject.begin()
        found = "works"
    return found


def clean(weights, kind, state):
    """clean_state_dict changes nothing but what it returns."""
    kept = copy.deepcopy(weights)
    try:
        clean_state_dict(weights, state)
    except Exception as error:
        check_refusal(error, kind, kept, weights)
        return "refused"
    return "works"


def try_all(count, seed):
    """What became of `count` mutated states in one process."""
    found = collections.Counter()
    attached, plain = Subject(noisy=True), Subject(noisy=False)
    for weights, _, kind, state in mutations(count, seed):
        found["load", load(attached, weights, kind, copy.deepcopy(state))] += 1
        found["attach", load_then_attach(plain, weights, kind, copy.deepcopy(state))] += 1
        found["clean", clean(weights, kind, copy.deepcopy(state))] += 1
    attached.end()
    return found


def try_on_ranks(count, seed, rank, ranks):
    """What became of states of which one rank gets the mutated one, the others a sound one."""
    found = collections.Counter()
    attached, plain = Subject(noisy=True), Subject(noisy=False)
    for i, (weights, sound, kind, state) in enumerate(mutations(count, seed)):
        own = copy.deepcopy(state if rank == i % ranks else sound)
        found["load", load(attached, weights, kind, own)] += 1
        if kind not in TORCHS:  # those torch refuses by itself, on one rank
            own = copy.deepcopy(state if rank == i % ranks else sound)
            found["attach", load_then_attach(plain, weights, kind, own)] += 1
    attached.end()
    return found
