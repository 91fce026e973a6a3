"""Passes that do not end as planned, other threads, copies, tracers, and what is refused."""

import copy
import io
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from antipgd.torch import perturb
from explicit import SEED, same, weighted
from kinds import Reads, weight
from test_reads import SIGMA, batch, mlp, perturbed, same_gradients, sgd

# Passes that are broken off


class Failing(nn.Module):
    """Raises what it is told to, in the middle of its forward."""

    def __init__(self, part=None):
        super().__init__()
        self.first, self.w = part or nn.Linear(6, 6), weight(6, 3)
        self.error = None

    def forward(self, x):
        x = self.first(x)
        self.fail()
        return (x[0] if isinstance(x, tuple) else x) @ self.w

    def fail(self):
        if self.error is not None:
            raise self.error


def assert_clean_and_goes_on(model, explicit, noise, optimizer):
    model.error = explicit.carrier.error = explicit.clean.error = None
    assert same(model.w, explicit.clean.w)
    assert same(next(iter(model.first.parameters())), next(iter(explicit.clean.first.parameters())))
    plain = copy.deepcopy(model).eval()
    model.eval()
    assert same(model(batch()), explicit.at_z().eval()(batch()))
    assert same(plain(batch()), explicit.at_z().eval()(batch()))
    model.train()
    for _ in range(2):
        for one in (model, explicit.carrier):
            one.zero_grad()
            weighted(one(batch())).backward()
        assert same_gradients(model, explicit.carrier)
        optimizer.step()
        explicit.step()
    assert noise._passes.depth == 0


@pytest.mark.parametrize("error", [ValueError("here"), KeyboardInterrupt(), SystemExit()])
@pytest.mark.parametrize("memory", ["keep", "recompute"])
@pytest.mark.parametrize("part", [nn.Linear, nn.LSTM])
def test_an_error_in_forward(error, memory, part):
    torch.manual_seed(0)
    model = Failing(part(6, 6))
    explicit, noise, optimizer = perturbed(model, memory=memory)
    model.error = error
    with pytest.raises(type(error)):
        model(batch())
    assert_clean_and_goes_on(model, explicit, noise, optimizer)
    assert noise.step_count == 4


def test_an_interruption_inside_a_recurrent_layer_leaves_no_noise_in_its_copies():
    torch.manual_seed(0)
    model = Failing(nn.LSTM(6, 6))
    explicit, noise, optimizer = perturbed(model)
    model.first.register_forward_hook(lambda *_: model.fail(), prepend=True)
    model.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        model(batch())
    model.first._forward_hooks.popitem(last=False)
    model.error = None
    twin = copy.deepcopy(model).eval()
    assert same(twin(batch()), explicit.at_z().eval()(batch()))
    again = pickle.loads(pickle.dumps(model)).eval()
    assert same(again(batch()), explicit.at_z().eval()(batch()))
    assert_clean_and_goes_on(model, explicit, noise, optimizer)


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("error", [ValueError("here"), KeyboardInterrupt()])
def test_an_error_in_a_hook_of_the_users(where, error):
    torch.manual_seed(0)
    model = Failing()
    explicit, noise, optimizer = perturbed(model)

    def fail(module, args):
        model.fail()

    hooks = [
        m.register_forward_pre_hook(fail, prepend=where == "before") for m in (model, model.first)
    ]
    for hook in hooks:
        model.error = error
        with pytest.raises(type(error)):
            model(batch())
        hook.remove()
    assert_clean_and_goes_on(model, explicit, noise, optimizer)


def test_an_error_that_a_pass_survives():
    """An inner call that fails and is caught closes what it has opened, and no more."""

    def through(self, x):
        try:
            self.part(x)
        except ValueError:
            x = 2 * x
        return x @ self.w

    torch.manual_seed(0)
    part = Failing()
    part.error = ValueError()
    model = Reads(through, part=part, w=weight(6, 3))
    explicit, noise, _ = perturbed(model)
    assert same(model(batch()), explicit.carrier(batch()))
    assert noise._passes.depth == 0


def test_a_module_inside_itself_whose_hook_fails():
    """The inner call of the same module ends before it has begun: the outer one goes on."""

    def through(self, x):
        if x.shape[0] > 1:
            try:
                self(x[:1])
            except ValueError:
                x = 2 * x
        return x @ self.w

    def fail(module, args):
        if args[0].shape[0] == 1:
            raise ValueError

    model = Reads(through, w=weight(6, 3))
    model.register_forward_pre_hook(fail)
    explicit, *_ = perturbed(model)
    assert same(model(batch()), explicit.carrier(batch()))


def test_an_error_in_backward():
    model = mlp()
    explicit, _, optimizer = perturbed(model)
    loss = weighted(model(batch()))
    hook = model[0].weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    hook.remove()
    assert same(model[0].weight, explicit.clean[0].weight)
    optimizer.zero_grad()
    for one in (model, explicit.carrier):
        weighted(one(batch())).backward()
    assert same_gradients(model, explicit.carrier)


# Threads


def in_thread(call):
    found = []

    def run():
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_another_thread_reads_clean_weights():
    seen = {}

    def through(self, x):
        seen["read"] = in_thread(lambda: self.w)
        seen["eval"] = in_thread(lambda: self.other(x))
        seen["train"] = in_thread(lambda: self.part(x))
        return self.part(x) @ self.w

    model = Reads(through, part=nn.Linear(6, 6), other=nn.Linear(6, 6), w=weight(6, 3))
    model.other.eval()
    perturb(model, optimizer := sgd(model), SIGMA, seed=SEED)
    for _ in range(2):
        weighted(model(batch())).backward()
        optimizer.step()
    model(batch())
    assert seen["read"] is model.w
    assert same(seen["eval"], model.other(batch()))
    assert isinstance(seen["train"], RuntimeError)
    assert "two threads call the perturbed model at once" in str(seen["train"])


# Copies


def is_plain(model):
    return all(
        type(m._parameters) is dict and not m._forward_hooks and not m._forward_pre_hooks
        for m in model.modules()
    )


@pytest.mark.parametrize("make", [mlp, lambda: Failing(nn.LSTM(6, 6))], ids=["mlp", "lstm"])
def test_copies_are_plain(make):
    model = make()
    explicit, *_ = perturbed(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(saved, weights_only=False),
    ]
    for one in copies:
        one.train()
        assert same(one(batch()), explicit.at_z()(batch()))  # no noise, in training either
        weighted(one(batch())).backward()
        optimizer = sgd(one)
        perturb(one, optimizer, SIGMA, seed=SEED)  # and it may take noise of its own
        optimizer.step()
    one = copy.deepcopy(model)
    one(batch())
    assert is_plain(one)


def test_a_copy_made_inside_a_pass():
    copies = []
    model = Failing(nn.LSTM(6, 6))
    explicit, *_ = perturbed(model)
    model.first.register_forward_hook(lambda *_: copies.append(copy.deepcopy(model)), prepend=True)
    model(batch())
    one = copies[0].eval()
    for module in one.modules():
        module._forward_hooks.clear()
    assert same(one(batch()), explicit.at_z().eval()(batch()))
    assert all(same(a, b) for a, b in zip(one.parameters(), model.parameters(), strict=True))


def test_averages_are_of_clean_weights():
    model, twin = mlp(), mlp()
    averages = {}
    for one, noisy in ((model, True), (twin, False)):
        optimizer = sgd(one)
        if noisy:
            perturb(one, optimizer, SIGMA, seed=SEED)
        average = ema = None
        for step in range(4):
            weighted(one(batch())).backward()
            for p in one.parameters():
                p.grad = torch.full_like(p, step)  # the same for both
            optimizer.step()
            if average is None:
                average = AveragedModel(one)
                ema = AveragedModel(one, multi_avg_fn=get_ema_multi_avg_fn(0.9))
            average.update_parameters(one)
            ema.update_parameters(one)
        averages[noisy] = [*average.parameters(), *ema.parameters()]
        assert same(average(batch()), average.module(batch()))
    assert all(same(a, b) for a, b in zip(averages[True], averages[False], strict=True))


# Tracers


def test_fx_records_names_not_noise():
    model = Failing()
    explicit, *_ = perturbed(model)
    traced = torch.fx.symbolic_trace(model)
    assert {node.target for node in traced.graph.nodes if node.op == "get_attr"} == {"w"}
    traced.eval()
    assert same(traced(batch()), explicit.at_z().eval()(batch()))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_jit_trace():
    model = mlp()
    explicit, noise, _ = perturbed(model)
    with pytest.raises(RuntimeError, match=r"torch.jit.trace of a model in training mode"):
        torch.jit.trace(model, batch())
    assert noise._passes.depth == 0
    model.eval()
    traced = torch.jit.trace(model, batch())
    assert same(traced(batch()), explicit.at_z()(batch()))


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict):
    model = mlp()
    explicit, noise, _ = perturbed(model)
    with pytest.raises(Exception, match="one draw of the noise for ever"):
        torch.export.export(model, (batch(),), strict=strict)
    assert noise._passes.depth == 0
    model.eval()
    exported = torch.export.export(model, (batch(),), strict=strict)
    assert same(exported.module()(batch()), explicit.at_z()(batch()))
    assert "antipgd" not in str(exported.graph)
    model.train()
    assert same(model(batch()), explicit.carrier(batch()))


# Refused before anything changes


def refused():
    lazy = nn.Sequential(nn.LazyLinear(3))
    return {
        "has no shape yet; call the model once": lazy,
        "0 has max_norm=1.0: it writes its weights while": nn.Sequential(
            nn.Embedding(4, 3, max_norm=1.0)
        ),
        "has max_norm=2.0": nn.EmbeddingBag(4, 3, max_norm=2.0),
        "the model is a torch.nn.DataParallel": nn.DataParallel(mlp()),
        "is on the meta device": nn.Linear(3, 3, device="meta"),
    }


@pytest.mark.parametrize("message", refused())
def test_refused(message):
    model = refused()[message]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(TypeError, match=message):
        perturb(model, optimizer, SIGMA, seed=SEED)
    assert is_plain(model) or "no shape" in message
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.filterwarnings("ignore:.torch.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("old", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_old_norms_are_refused(old):
    model = nn.Sequential(old(nn.Linear(6, 4)))
    with pytest.raises(
        TypeError, match=rf"0 has torch.nn.utils.{old.__name__}, which reads .* use "
    ):
        perturb(model, torch.optim.SGD(model.parameters(), lr=0.01), SIGMA)
    new = getattr(parametrizations, old.__name__)
    model = nn.Sequential(new(nn.Linear(6, 4)))
    perturb(model, torch.optim.SGD(model.parameters(), lr=0.01), SIGMA, seed=SEED)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_script_module_is_refused():
    model = torch.jit.script(mlp())
    with pytest.raises(TypeError, match="the model is a ScriptModule, whose weights Python does"):
        perturb(model, torch.optim.SGD(model.parameters(), lr=0.01), SIGMA)


def test_a_lazy_module_once_it_has_a_shape():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    model(batch())
    explicit, *_ = perturbed(model)
    assert same(model(batch()), explicit.carrier(batch()))


def test_replicas_of_data_parallel_are_refused():
    model = mlp()
    optimizer = sgd(model)
    perturb(model, optimizer, SIGMA, seed=SEED)
    replica = model._replicate_for_data_parallel()
    with pytest.raises(RuntimeError, match=r"torch.nn.DataParallel hands its replicas"):
        replica(batch())
