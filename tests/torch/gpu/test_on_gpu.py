"""Both forms with the GPU kernel, on CPU tensors through its interpreter: bitwise the CPU's."""

import copy
import logging
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.autograd import forward_ad
from torch.func import functional_call, jvp

import antipgd.torch
from antipgd.noise import Law, as_law
from antipgd.torch import attach, kernel, perturb
from antipgd.torch.adding import Adder
from antipgd.torch.forward.forming import Former, as_draw
from antipgd.torch.gpu import choosing, launching
from antipgd.torch.members import Member
from interpreted import KEY, as_if_on_gpus, expected, same, weights

GAUSSIAN = as_law("gaussian")


class Net(nn.Module):
    """A convolution in channels_last, a matrix, vectors, and a transposed parameter."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.linear = nn.Linear(16, 5)
        self.turned = nn.Parameter(torch.randn(7, 5).t())

    def forward(self, x):
        h = self.convolution(x).relu().flatten(1)
        return self.linear(h) @ self.turned


def made(dtype=torch.float32):
    torch.manual_seed(0)
    return Net().to(dtype).train()


def images(dtype=torch.float32):
    return torch.linspace(-1, 1, 2 * 3 * 16).reshape(2, 3, 4, 4).to(dtype)


def trained(form, steps=3, dtype=torch.float32, call=None, **options):
    """All weights after each step, and what a pass gave."""
    model = made(dtype)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.01, momentum=0.9)
    if form == "weights":
        noise = attach(optimizer, sigma=0.05, seed=3, **options)
    else:
        noise = perturb(model, optimizer, 0.05, seed=3, **options)
    run, seen = call(model) if call else model, []
    for _ in range(steps):
        out = run(images(dtype))
        out.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += [out.detach().clone(), *(p.detach().clone() for p in model.parameters())]
    seen += [noise.injected(p) for p in model.parameters()]
    with noise.clean():
        seen += [p.detach().clone() for p in model.parameters()]
    return seen


def all_same(a, b):
    return len(a) == len(b) and all(
        same(x.contiguous(), y.contiguous()) for x, y in zip(a, b, strict=True)
    )


WEIGHTS = [{}, {"law": "rademacher"}, {"law": "student-t:5", "hold": 2}, {"taps": (1.0, -2.0, 1.0)}]
FORWARD = [
    *WEIGHTS, {"memory": "recompute"}, {"antithetic": True}, {"draws": "micro-batch"},
    {"draws": "rank", "antithetic": True},
]  # fmt: skip


@pytest.mark.parametrize("options", WEIGHTS, ids=str)
def test_noise_in_the_weights(options):
    plain = trained("weights", **options)
    with as_if_on_gpus():
        assert all_same(trained("weights", **options), plain)


@pytest.mark.parametrize("options", FORWARD, ids=str)
def test_noise_in_the_passes(options):
    plain = trained("forward", **options)
    with as_if_on_gpus():
        assert all_same(trained("forward", **options), plain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_types_of_the_passes(dtype):
    plain = trained("forward", dtype=dtype, relative=True)
    with as_if_on_gpus():
        assert all_same(trained("forward", dtype=dtype, relative=True), plain)


def test_that_the_kernel_was_used(monkeypatch):
    """The tests above compare it with something else."""
    calls = []
    real = launching.launch
    monkeypatch.setattr(launching, "launch", lambda *given: (calls.append(given), real(*given)))
    trained("weights")
    trained("forward")
    assert calls == []
    with as_if_on_gpus():
        trained("weights", steps=2)
        assert len(calls) == 2 + 5 + 1  # steps; injected() of five tensors; clean()
        calls.clear()
        trained("forward", steps=2)
        assert len(calls) >= 2 * 5


def compiled(model):
    torch.compiler.reset()
    counters.clear()
    return torch.compile(model, backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_passes_draw_anew_and_do_not_break(dtype):
    plain = trained("forward", dtype=dtype, steps=4)
    with as_if_on_gpus():
        found = trained("forward", dtype=dtype, steps=4, call=compiled)
    assert all_same(found, plain)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    torch.compiler.reset()


@pytest.mark.parametrize("on_gpu", [True, False])
def test_compiled_passes_of_another_rank_take_its_draw(on_gpu):
    outs = []
    for call in (None, compiled):
        with as_if_on_gpus() if on_gpu else nullcontext():
            model = made()
            optimizer = torch.optim.SGD(model.named_parameters(), lr=0.01)
            noise = perturb(model, optimizer, 0.05, seed=3, draws="rank")
            noise._passes._first_number = noise._passes.number = 1  # as on the second rank
            noise._passes._take_rows()
            run = call(model) if call else model
            run(images()).sum().backward()
            optimizer.step()  # which the audit allows
            outs.append(run(images()))
            own = noise._seats[0].key[0]
            assert own == np.uint64(noise._seats[0].keys(1)) != np.uint64(noise._seats[0].keys(0))
    assert torch.equal(*outs)
    torch.compiler.reset()


def test_w_is_a_copy_that_autograd_knows():
    draw = as_draw(KEY, 3, [0.3, -0.2])
    with as_if_on_gpus():
        former = Former(GAUSSIAN)
        z = weights((6, 5), torch.float32).requires_grad_()
        w = former.form(z, draw)
        assert w.grad_fn is not None
        assert w.data_ptr() != z.data_ptr()
        (gradient,) = torch.autograd.grad((w * w).sum(), z, create_graph=True)
        assert torch.equal(gradient, 2 * w)
        (second,) = torch.autograd.grad(gradient.sum(), z)
        assert torch.equal(second, torch.full_like(z, 2))
        holes = weights((6, 10), torch.float32)[:, ::2]
        assert same(
            former.form(holes, draw), expected(holes.contiguous(), KEY, 3, (0.3, -0.2), "gaussian")
        )


def test_forward_derivatives_of_w():
    draw, ones = as_draw(KEY, 3, [0.3, -0.2]), torch.ones(6, 5)
    z = weights((6, 5), torch.float32)
    with as_if_on_gpus():
        former = Former(GAUSSIAN)
        w = former.form(z, draw)
        with forward_ad.dual_level():
            formed = forward_ad.unpack_dual(former.form(forward_ad.make_dual(z, ones), draw))
            assert same(formed.primal, w)
            assert torch.equal(formed.tangent, ones)
        value, tangent = jvp(lambda q: former.form(q, draw), (z,), (ones,))
        assert same(value, w)
        assert torch.equal(tangent, ones)


def test_functional_calls_read_w():
    def outputs():
        model = made()
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.01)
        perturb(model, optimizer, 0.05, seed=3)
        model(images()).sum().backward()
        optimizer.step()
        others = {name: p.detach() + 1 for name, p in model.named_parameters()}
        return [functional_call(model, others, (images(),)).detach()]

    plain = outputs()
    with as_if_on_gpus():
        assert all_same(outputs(), plain)


# Who draws


def test_who_draws_is_decided_in_one_place(monkeypatch):
    w = torch.zeros(4, 4)
    assert choosing.chosen(w, GAUSSIAN) is None  # a CPU
    with as_if_on_gpus():
        assert choosing.chosen(w, GAUSSIAN) is launching
        assert choosing.chosen(w.bfloat16(), GAUSSIAN) is launching
        assert choosing.chosen(w.int(), GAUSSIAN) is None
        assert choosing.chosen(w.to_sparse(), GAUSSIAN) is None
        assert choosing.chosen(torch.zeros(4).expand(3, 4), GAUSSIAN) is None
        monkeypatch.setattr(torch.version, "hip", "6.4")
        assert choosing.chosen(w, GAUSSIAN) is None
    assert choosing.DEVICES == ("cuda",)
    assert set(launching.LAWS) == set(antipgd.noise.LAWS)  # none is lacking


def test_a_law_that_the_kernel_lacks_comes_from_plain_torch(monkeypatch):
    plain = trained("weights", law="laplace"), trained("forward", law="laplace")
    short = {name: unit for name, unit in launching.LAWS.items() if name != "laplace"}
    monkeypatch.setattr(launching, "LAWS", short)
    monkeypatch.setattr(antipgd.torch.adding, "compiled_targets", lambda: None)
    monkeypatch.setattr(launching, "launch", lambda *given: pytest.fail("the kernel was used"))
    used, real = [], kernel.inject
    monkeypatch.setattr(kernel, "inject", lambda *given: (used.append(given), real(*given)))
    with as_if_on_gpus():
        assert choosing.chosen(torch.zeros(3), Law("laplace")) is None
        assert all_same(trained("weights", law="laplace"), plain[0])
        assert used


def test_without_triton_plain_torch_draws_and_says_so(monkeypatch, caplog):
    plain = trained("weights")
    monkeypatch.setitem(sys.modules, "antipgd.torch.gpu.launching", None)
    monkeypatch.delattr("antipgd.torch.gpu.launching")
    choosing.launching.cache_clear()
    try:
        with as_if_on_gpus(), caplog.at_level(logging.WARNING, "antipgd"):
            assert all_same(trained("weights"), plain)
        assert sum("plain torch, slower" in record.message for record in caplog.records) == 1
    finally:
        choosing.launching.cache_clear()


def test_a_missing_triton_is_named_with_its_extra():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "try:\n    import antipgd.torch.gpu.launching\n"
        "except ImportError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("antipgd.torch.gpu needs triton: pip install triton, or")
    assert "'.[gpu]'" in said.stdout


def test_torch_alone_does_not_import_triton():
    code = "import sys, antipgd.torch; antipgd.torch.attach; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_write_is_seen_by_autograd_and_tables_follow_what_moves():
    member = Member(nn.Parameter(torch.ones(3)), "w", "0", 0, 0, "w", None, 1.0, [0.0], KEY)
    with as_if_on_gpus():
        adder = Adder([member], GAUSSIAN)
        before = member.parameter._version
        adder.add(1, [[0.3]])
        assert member.parameter._version > before
        first = member.parameter.detach().clone()
        assert same(first, expected(torch.ones(3), KEY, 1, (0.3,), "gaussian"))
        adder.add(2, [[0.3]])  # the same coefficients, another step
        second = expected(first, KEY, 2, (0.3,), "gaussian")
        assert same(member.parameter.detach(), second)
        member.parameter.data = copy.deepcopy(member.parameter.data)
        adder.add(3, [[0.1]])
        assert same(member.parameter.detach(), expected(second, KEY, 3, (0.1,), "gaussian"))
