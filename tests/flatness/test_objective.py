"""Products with the Hessian; what a loss, parameters and data must be; memory."""

import gc
import weakref
from collections import UserDict, namedtuple
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from antipgd.flatness import (
    NotDeterministicError,
    expected_sharpness,
    find_sigma,
    hessian_trace,
)
from antipgd.flatness import objective as objective_module
from antipgd.flatness.inputs import named_tensors, tensors_in
from antipgd.flatness.measuring import measuring


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def quartic(size=5):
    w = normal(size)
    return (lambda: (w**4).sum()), [w]


def fitting(inputs=4, examples=12, dtype=torch.float64):
    """A small network, its loss and one batch."""
    module = nn.Sequential(nn.Linear(inputs, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)
    with torch.no_grad():
        for k, p in enumerate(module.parameters()):
            p.copy_(normal(*p.shape, seed=k))
    x = normal(examples, inputs, seed=9).to(dtype)
    return module, (lambda batch: ((module(batch[0]) - batch[1]) ** 2).mean()), (x, x[:, :1])


# Products


def test_products_are_the_hessian(case):
    H = case.hessian()
    with measuring(*case.arguments, **case.options) as objective:
        one = torch.eye(objective.size, dtype=torch.float64)
        found = [objective.products(one)]
        objective._one_by_one = not objective._one_by_one
        found.append(objective.products(one))
        assert objective.products_taken == 2 * len(H)
    for products in found:
        np.testing.assert_allclose(products, H, rtol=1e-10, atol=1e-12 * np.abs(H).max())


@pytest.mark.parametrize("memory", [1, 5000, 100_000, 2**31])
def test_chunks_respect_memory_and_do_not_matter(cases, memory, monkeypatch):
    case = cases["mlp tanh"]()
    with measuring(*case.arguments) as objective:
        vectors = objective.probes(0).rows(1 << 32, 0, 100)
        expected = objective.products(vectors)
    row, seen, through = 8 * len(vectors[0]), [], []
    with measuring(*case.arguments, memory=memory) as objective:
        plain, add = objective._products, objective._add_rows
        monkeypatch.setattr(objective, "_products", lambda v: seen.append(len(v)) or plain(v))
        monkeypatch.setattr(objective, "_add_rows", lambda *a: through.append(len(a[3])) or add(*a))
        found = objective.products(vectors)
        graph = objective.graph_bytes
    assert graph > 0
    assert sum(seen) == 100
    assert max(seen) == 1 or max(seen) * 2 * row <= memory
    assert max(through) == 1 or max(through) * graph <= memory
    assert max(seen) == min(64, max(1, memory // (2 * row)))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_results_do_not_depend_on_memory():
    module, loss, batch = fitting()
    for method, least in (("hutchinson", 1), ("hutch++", 2**17)):
        found = [hessian_trace(loss, module, [batch], method=method, memory=memory, max_probes=48)
                 for memory in (least, 2**20, 2**31)]  # fmt: skip
        for other in found[1:]:
            assert other.mean == pytest.approx(found[0].mean, rel=1e-12)
            assert other.sem == pytest.approx(found[0].sem, rel=1e-10)


def test_large_models_and_convolutions_go_one_by_one(cases, monkeypatch):
    for name, expected in (("mlp tanh", 64), ("convolution", 1)):
        case = cases[name]()
        with measuring(*case.arguments) as objective:
            assert objective._rows_through_a_graph() == expected
    monkeypatch.setattr(objective_module, "_VECTORISED", 10)
    case = cases["mlp tanh"]()
    with measuring(*case.arguments) as objective:
        assert objective._rows_through_a_graph() == 1


class Cube(torch.autograd.Function):
    """An operation of a user's that cannot be vectorised."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * Square.apply(x)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 3 * x**2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        assert x.sum().item() == x.sum().item()  # vmap knows no item()
        return grad * 6 * x * (grad.sum().item() * 0 + 1)


def test_operations_that_cannot_be_vectorised():
    w = normal(60)
    found = hessian_trace(lambda: Cube.apply(w).sum(), [w])
    assert found.mean == pytest.approx(float(6 * w.sum()), rel=1e-12)


def test_operations_without_second_derivative():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x**2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return grad

    w = normal(4)
    with pytest.raises(ValueError, match="an operation that can be differentiated only once"):
        hessian_trace(lambda: (Once.apply(w) ** 2).sum(), [w])


def test_a_linear_loss_has_no_hessian():
    w = normal(60)
    for method in ("exact", "hutchinson", "hutch++", "auto"):
        for tolerance in (None, 0.1):
            found = hessian_trace(lambda: w.sum() + (0 * w).sum(), [w], method=method,
                                  tolerance=tolerance)  # fmt: skip
            assert (found.mean, found.sem) == (0, 0)
            assert found.converged in (None, True)


def test_some_parameters_may_be_unused():
    w, unused = normal(3), normal(2, seed=1)
    found = hessian_trace(lambda: (w**2).sum() + unused.sum(), {"w": w, "unused": unused})
    assert found.mean == pytest.approx(6)
    assert found.parameters["unused"].mean == 0
    assert hessian_trace(lambda: (w**2).sum(), {"w": w, "unused": unused}).mean == pytest.approx(6)


def test_views_scalars_empties_and_strided_parameters():
    scalar, empty, strided = normal(()), normal(0), normal(3, 4).T
    params = {"scalar": scalar, "empty": empty, "strided": strided}

    def loss():
        return scalar**4 + (strided**3).sum() + empty.sum()

    found = hessian_trace(loss, params)
    assert found.mean == pytest.approx(float(12 * scalar**2 + 6 * strided.sum()))
    assert found.parameters["empty"].mean == 0
    assert np.isfinite(found.scaled.mean)
    assert expected_sharpness(loss, params, None, 1e-3).mean > 0


# Batches


def test_batches_count_by_their_examples():
    w, x = normal(4), normal(15, 4, seed=1)

    def loss(batch):
        return ((batch @ w) ** 4).mean()

    whole = hessian_trace(loss, [w], [x]).mean
    for parts in ((3, 7, 5), (1, 14), (15,)):
        assert hessian_trace(loss, [w], x.split(parts)).mean == pytest.approx(whole, rel=1e-12)
    loader = DataLoader(x, batch_size=4)
    assert hessian_trace(loss, [w], loader).mean == pytest.approx(whole, rel=1e-12)


Pair = namedtuple("Pair", "x y")


@dataclass
class Example:
    x: torch.Tensor
    y: str = "text"


@dataclass(frozen=True)
class Frozen:
    deep: Example
    unset: torch.Tensor = field(init=False)


class Hidden:
    """Nobody knows what is in it."""

    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize("float64", [False, True])
@pytest.mark.parametrize("wrap", [
    lambda x: {"skip": 3, "x": x}, lambda x: [None, x], lambda x: (x,), lambda x: Pair(x, "text"),
    lambda x: [{"deep": (x,)}], lambda x: UserDict(x=x), lambda x: x,
    Example, lambda x: Frozen(Example(x)),
])  # fmt: skip
def test_batches_of_any_kind(wrap, float64):
    def tensor(batch):
        return next(tensors_in(batch))

    w, x = normal(3, dtype=torch.float32), normal(10, 3, seed=1, dtype=torch.float32)
    batches, seen = [wrap(x[:2]), wrap(x[2:])], []

    def loss(batch):
        seen.append(batch)
        return ((tensor(batch) @ w) ** 2).mean()

    found = hessian_trace(loss, [w], batches, float64=float64)
    assert found.mean == pytest.approx(float(2 * (x**2).sum() / 10), rel=1e-5)
    assert tensor(seen[0]).dtype == (torch.float64 if float64 else torch.float32)
    if not float64:
        assert seen[0] is batches[0]
    elif isinstance(batches[0], Pair):
        assert seen[0].y == "text"


def test_batches_without_tensors_count_alike_which_is_said():
    w = normal(3)
    with pytest.warns(UserWarning, match=r"no tensors are seen in the batches \(int\)") as told:
        found = hessian_trace(lambda power: (w**power).sum(), [w], [2, 3])
    assert told[0].filename == __file__
    assert found.mean == pytest.approx(float((6 + 6 * w.sum()) / 2))
    found = hessian_trace(lambda power: (w**power).sum(), [w], [2])  # nothing to count
    assert found.mean == pytest.approx(6)


@pytest.mark.parametrize(
    "change", [lambda x: x[::-1], lambda x: x.astype(">f8"), lambda x: x.astype(np.longdouble)]
)
def test_arrays_that_torch_does_not_take_are_counted(change):
    w, x = normal(3), normal(10, 3, seed=1).numpy()

    def loss(part):
        return ((torch.from_numpy(part.astype("f8")) @ w) ** 2).mean()

    found = hessian_trace(loss, [w], [change(x[:2]), change(x[2:])])
    assert found.mean == pytest.approx(float(2 * (x**2).sum() / 10), rel=1e-12)


def test_arrays_are_counted_and_compared():
    w, x = normal(3), normal(10, 3, seed=1).numpy()

    def loss(batch):
        return ((torch.from_numpy(batch["x"]) @ w) ** 2).mean()

    batches = [{"name": np.array(["a"]), "x": part} for part in (x[:2], x[2:])]
    found = hessian_trace(loss, [w], batches)
    assert found.mean == pytest.approx(float(2 * (x**2).sum() / 10), rel=1e-12)
    random = np.random.default_rng(0)

    class Changing:
        def __iter__(self):
            yield {"x": x + random.normal(size=x.shape)}

    with pytest.raises(NotDeterministicError, match="the first batch is another one"):
        hessian_trace(loss, [w], Changing())


@pytest.mark.filterwarnings("ignore:no tensors are seen")
@pytest.mark.parametrize("kind", [Example, Hidden])
def test_data_that_change_are_refused_whatever_they_are_in(kind):
    w, x, random = normal(3), normal(10, 3, seed=1), np.random.default_rng(0)

    class Changing:
        def __iter__(self):
            for part in x.split(5):
                yield kind(part + torch.from_numpy(random.normal(size=part.shape)))

    def loss(batch):
        return ((batch.x @ w) ** 2).mean()

    given = loss, [w], Changing()
    with pytest.raises(NotDeterministicError, match=r"is another one|and then"):
        expected_sharpness(*given, 0.1)
    with pytest.raises(NotDeterministicError, match=r"is another one|and then"):
        find_sigma(*given, scale=1.0, grid=[1e-3, 1e2])


def test_an_iterator_is_kept():
    w, x = normal(3), normal(6, 3, seed=1)
    found = hessian_trace(lambda b: ((b @ w) ** 2).mean(), [w], iter(x.split(2)), method="exact")
    assert found.mean == pytest.approx(float(2 * (x**2).sum() / 6))
    made = (part for part in x.split(2))
    assert hessian_trace(lambda b: ((b @ w) ** 2).mean(), [w], made).mean == found.mean


# Memory


class Mark:
    """Lives as long as the node of a graph that it is tied to."""


def test_no_graph_outlives_its_batch():
    """While the loss of a batch is computed, nothing of the one before is alive."""
    w, marks, calls = normal(40), [], []

    def loss(batch):
        assert all(mark() is None for mark in marks)
        hidden, mark = torch.tanh(batch @ w.reshape(4, 10)), Mark()
        hidden.grad_fn.metadata["mark"] = mark
        marks[:] = [weakref.ref(mark)]
        calls.append(batch)
        return (hidden**2).mean()

    gc.disable()
    try:
        for method in ("hutchinson", "hutch++", "exact"):
            hessian_trace(loss, [w], list(normal(24, 4, seed=1).split(4)), method=method)
    finally:
        gc.enable()
    assert marks[0]() is None
    assert len(calls) > 40


def test_memory_does_not_grow_with_the_number_of_batches():
    module, loss, _ = fitting(inputs=40)

    def most_alive(batches):
        """The most bytes that graphs keep at any time."""
        now, most = [0], [0]

        class Saved:
            def __init__(self, tensor):
                self.tensor = tensor.detach()
                now[0] += tensor.nbytes
                most[0] = max(most[0], now[0])

            def __del__(self):
                now[0] -= self.tensor.nbytes

        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            hessian_trace(loss, module, batches, method="hutchinson", max_probes=32)
        return most[0]

    peaks = []
    for count in (1, 8):
        x = normal(40 * count, 40, seed=1)
        peaks.append(most_alive(list(zip(x.split(40), x[:, :1].split(40), strict=True))))
    assert peaks[0] == peaks[1] > 0


# What is refused


def test_bad_parameters():
    loss, _ = quartic()
    w = normal(3)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    empty = "params is empty: there must be a tensor, or a module that trains one"
    for params in ([], {}, frozen, nn.ReLU(), iter(())):
        with pytest.raises(ValueError, match=empty):
            hessian_trace(loss, params)
    with pytest.raises(TypeError, match=r"got one tensor, pass \[tensor\]"):
        hessian_trace(loss, w)
    with pytest.raises(TypeError, match=r"'0' is torch.int64; accepted are float32 and float64"):
        hessian_trace(loss, [torch.arange(3)])
    for dtype in (torch.float16, torch.bfloat16, torch.complex64):
        with pytest.raises(TypeError, match=f"'a' is {dtype}; accepted are float32 and float64"):
            hessian_trace(loss, {"a": torch.ones(2, dtype=dtype)})
    with pytest.raises(ValueError, match="a tensor is listed twice in params"):
        hessian_trace(loss, [w, w])
    with pytest.raises(ValueError, match="two parameters have the name 'a', which their probes"):
        hessian_trace(loss, [("a", w), ("a", normal(2))])
    with pytest.raises(ValueError, match="two parameters have the name 'a'"):
        hessian_trace(loss, {"module.a": w, "a": normal(2)})
    with pytest.raises(TypeError, match="params must hold tensors; 'a' is a list"):
        hessian_trace(loss, {"a": [w]})
    with pytest.raises(TypeError, match="params must hold tensors; '0' is a tuple"):
        hessian_trace(loss, [(w, w)])
    with pytest.raises(TypeError, match="params must hold tensors; '0' is a dict"):
        hessian_trace(loss, torch.optim.SGD([w], lr=0.1).param_groups)
    with pytest.raises(TypeError, match="must share one dtype and device; got"):
        hessian_trace(loss, [w, w.float()])
    with pytest.raises(ValueError, match="'0' is computed from other tensors; pass those"):
        hessian_trace(loss, [w.clone().requires_grad_() * 2])
    with pytest.raises(ValueError, match="all tensors in params are empty"):
        hessian_trace(loss, [torch.zeros(0)])
    with torch.inference_mode():
        inside = torch.ones(3)
    with pytest.raises(ValueError, match="'0' was made under inference_mode"):
        hessian_trace(loss, [inside])


def test_names():
    module = nn.Sequential(nn.Linear(2, 2))
    assert list(named_tensors(module)) == ["0.weight", "0.bias"]
    assert list(named_tensors(module.parameters())) == ["0", "1"]
    assert list(named_tensors(module.named_parameters())) == ["0.weight", "0.bias"]
    wrapped = nn.DataParallel(module)
    assert list(named_tensors(wrapped)) == ["0.weight", "0.bias"]


def test_bad_losses():
    w = normal(3)
    with pytest.raises(TypeError, match="loss must be a function of a batch; got Tensor"):
        hessian_trace(w.sum(), [w])
    for loss, text in (
        (lambda: w**2, r"a tensor with one element; got \(3,\)"),
        (lambda: 3.0, "a tensor with one element; got float"),
        (lambda: (w * torch.nan).sum(), "loss is nan; a Hessian needs a finite one"),
        (lambda: (w / 0).abs().sum(), "loss is inf; a Hessian needs a finite one"),
        (lambda: (w.detach() ** 2).sum(), "loss has no graph: it must be computed from params"),
        (lambda: (w.data ** 2).sum(), r"without no_grad\(\), detach\(\) or item\(\)"),
        (lambda: (normal(3).requires_grad_() ** 2).sum(), "loss does not depend on any of params"),
        (lambda: ((w - w.detach()) ** 2).sum().sqrt(), "is not finite though the loss is"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            hessian_trace(loss, [w])
    assert hessian_trace(lambda: (w**2).sum().reshape(1, 1), [w]).mean == pytest.approx(6)


def test_bad_batches():
    w = normal(3)

    class Once:
        def __init__(self):
            self.parts = iter(normal(4, 3).split(2))

        def __iter__(self):
            return self.parts

    def loss(batch):
        return ((batch @ w) ** 2).mean()

    for batches in ([], iter(()), DataLoader(TensorDataset(torch.zeros(0, 3)))):
        with pytest.raises(ValueError, match="batches is empty; there must be at least one batch"):
            hessian_trace(loss, [w], batches)
    once = Once()
    next(once.parts)
    with pytest.raises(ValueError, match=r"gone through only once; pass list\(batches\)"):
        hessian_trace(loss, [w], once)
    with pytest.raises(NotDeterministicError, match="the first batch is another one"):
        hessian_trace(loss, [w], Once())


def test_bad_options():
    loss, params = quartic()
    module = nn.Linear(2, 1)
    for mode in ("Train", "", 3):
        with pytest.raises(ValueError, match=r"unknown batch_norm .* accepted: eval, train, "):
            hessian_trace(loss, module, batch_norm=mode)
    with pytest.raises(ValueError, match="batch_norm needs params to be a module; got tensors"):
        hessian_trace(loss, params, batch_norm="eval")
    for memory in (0, -1, float("nan"), float("inf"), "1 GB", None):
        with pytest.raises(ValueError, match="memory must be a finite number > 0; got"):
            hessian_trace(loss, params, memory=memory)
    with pytest.raises(ValueError, match="distributed=True needs a process group; call"):
        hessian_trace(loss, params, distributed=True)


# Chance


SHUFFLING = "the first batch is another one when .* again: switch off shuffling and augmentation"
DROPOUT = r"switch off dropout and other randomness of the model, for instance by model.eval\(\)"


def test_shuffling_is_refused_and_what_to_do_works():
    module, loss, (x, y) = fitting()
    shuffled = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    with pytest.raises(NotDeterministicError, match=SHUFFLING):
        hessian_trace(loss, module, shuffled)
    fixed = hessian_trace(loss, module, DataLoader(TensorDataset(x, y), batch_size=4))
    assert hessian_trace(loss, module, list(shuffled)).mean == pytest.approx(fixed.mean, rel=1e-10)


class Augmented(Dataset):
    def __init__(self, x, y, first=0):
        self.x, self.y, self.first = x, y, first

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        noise = 0.1 * torch.randn_like(self.x[k]) if k >= self.first else 0
        return self.x[k] + noise, self.y[k]


def test_augmentation_is_refused_also_in_later_batches():
    module, loss, (x, y) = fitting()
    with pytest.raises(NotDeterministicError, match=SHUFFLING):
        hessian_trace(loss, module, DataLoader(Augmented(x, y), batch_size=4))
    with pytest.raises(NotDeterministicError, match=r"the mean loss over the batches was .* then"):
        hessian_trace(loss, module, DataLoader(Augmented(x, y, first=8), batch_size=4),
                      method="hutchinson", max_probes=65)  # fmt: skip


@pytest.mark.parametrize("silent", [False, True])
def test_dropout_is_refused_and_what_to_do_works(silent):
    """Also where it does not show in the loss: behind it all weights are zero."""
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1)).double()
    if silent:
        nn.init.zeros_(module[2].weight)
    batches = [(normal(5, 4), normal(5, 1, seed=1))]

    def loss(batch):
        return ((module(batch[0]) - batch[1]) ** 2).mean()

    with pytest.raises(NotDeterministicError, match=DROPOUT):
        hessian_trace(loss, module, batches)
    module.eval()
    assert hessian_trace(loss, module, batches).mean > 0
    assert isinstance(NotDeterministicError("x"), ValueError)


@pytest.mark.parametrize("source", ["numpy", "python"])
def test_any_randomness_is_refused(source):
    import random

    rng = {"numpy": np.random.default_rng(0).random, "python": random.random}[source]
    w = normal(4)
    with pytest.raises(NotDeterministicError, match="the same batch has loss"):
        hessian_trace(lambda: (w**2).sum() * rng(), [w])


def test_batches_that_hold_nan_are_themselves():
    """As in labels that a loss masks out."""
    w, y = normal(3), torch.tensor([1.0, torch.nan, 2.0], dtype=torch.float64)

    def loss(batch):
        return (w * batch.nan_to_num()).square().sum()

    assert hessian_trace(loss, [w], [y]).mean == pytest.approx(2 * (1 + 4))


# Batch norms


def test_batch_norms_without_statistics_of_their_own():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)).double()
    batches = [normal(5, 3), normal(7, 3, seed=1)]

    def loss(batch):
        return (module(batch) ** 4).mean()

    found = {mode: hessian_trace(loss, module.eval(), batches, batch_norm=mode)
             for mode in (None, "eval", "train", "estimated")}  # fmt: skip
    assert [trace.batch_norm for trace in found.values()] == ["train", "train", "train", "mixed"]
    assert len({trace.mean for trace in found.values()}) == 1


def test_models_without_batch_norm_say_so():
    module, loss, batch = fitting()
    for mode in (None, "eval", "train", "estimated"):
        assert hessian_trace(loss, module, [batch], batch_norm=mode).batch_norm == "none"
