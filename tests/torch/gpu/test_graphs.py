"""Passes in a captured CUDA graph, of which the launches are kept and made again."""

import gc

import pytest
import torch
from torch import nn

from antipgd.torch import perturb
from antipgd.torch.gpu import tables
from interpreted import Graph, as_if_on_gpus, capturing

X = torch.ones(1, 3)


@pytest.fixture(autouse=True)
def _on_gpus():
    with as_if_on_gpus():
        yield
    torch.compiler.reset()


class Training:
    def __init__(self, **options):
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        options = {"sigma": 0.1, "seed": 1} | options
        self.noise = perturb(self.model, self.optimizer, **options)

    def step(self, count=1):
        for _ in range(count):
            self.model(X).sum().backward()
            self.optimizer.step()

    def captured(self, call=None):
        graph = Graph()
        with graph.capture():
            (self.model if call is None else call)(X)
        assert len(graph.launches) == 2
        return graph

    def is_right(self, graph):
        wanted = [self.noise.injected(p) for p in (self.model.weight, self.model.bias)]
        return all(map(close, graph.replay(), wanted))


def close(a, b):
    return torch.allclose(a, b, atol=1e-6)


def fading_in(step):
    return 0.0 if step <= 3 else 1.0


@pytest.mark.parametrize(
    "options",
    [{}, {"memory": "recompute"}, {"schedule": fading_in}],
    ids=["plain", "recompute", "schedule"],
)
def test_a_graph_draws_anew_at_every_step_also_where_sigma_was_0(options):
    training = Training(**options)
    training.step(2)
    graph, seen = training.captured(), []
    for _ in range(4):
        training.step()
        assert training.is_right(graph)
        seen.append(graph.replay()[0])
    assert seen[-1].any()
    assert not close(*seen[-2:])


def test_a_graph_of_a_compiled_pass_draws_anew():
    training = Training()
    call = torch.compile(training.model, backend="aot_eager", fullgraph=True)
    call(X).sum().backward()
    training.step(2)
    graph = training.captured(call)
    training.step()
    assert training.is_right(graph)
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    training.model.other = training.optimizer.param_groups[1]["params"][0]
    with pytest.raises(RuntimeError, match="a CUDA graph was captured while 2 parameters"):
        training.step()


def test_other_parameters_are_refused_before_the_step_where_a_graph_was_captured():
    training = Training()
    training.step(2)
    graph = training.captured()
    before, count = [p.detach().clone() for p in training.model.parameters()], 2
    training.model.other = nn.Linear(2, 2)
    training.optimizer.add_param_group({"params": list(training.model.other.parameters())})
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"while 2 parameters .* \(4 now\).*capture anew"):
            training.step()
    assert all(map(torch.equal, before, training.model.parameters()))
    assert training.noise.step_count == count
    assert training.is_right(graph)
    training.noise.stop()
    training.noise = perturb(training.model, training.optimizer, sigma=0.1, seed=2)
    training.step(2)


def test_other_parameters_are_welcome_where_none_was():
    training = Training()
    training.step(2)
    training.model.other = nn.Linear(2, 2)
    training.optimizer.add_param_group({"params": list(training.model.other.parameters())})
    training.step()
    assert training.noise.step_count == 3


def test_after_stop_a_graph_adds_nothing():
    training = Training()
    training.step(2)
    graph = training.captured()
    assert graph.replay()[0].any()
    training.noise.stop()
    assert not any(added.any() for added in graph.replay())


def test_what_a_graph_reads_outlives_the_noise():
    training = Training()
    training.step()
    place = training.captured().launches[0][3]
    address = place.table.data_ptr()
    del place, training
    gc.collect()
    assert address in [kept.table.data_ptr() for kept in tables._in_graphs.values()]


def test_copies_that_a_compiler_makes_are_not_kept():
    copy = tables.place_of(1, 1, (0.1,), torch.device("cpu"))
    tables.keep_for_graph(copy)
    assert not tables.is_in_graph(copy)


def test_a_draw_for_each_micro_batch_is_refused():
    training = Training(draws="micro-batch")
    training.step()
    with capturing(), pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"):
        training.model(X)


def test_nothing_is_audited_while_a_graph_is_captured(monkeypatch):
    """Which would read numbers off the device; the first step after it looks."""
    training = Training()
    looked = []
    monkeypatch.setattr("antipgd.torch.forward.auditing._norm", looked.append)
    monkeypatch.setattr("antipgd.torch.forward.formed.Formed.differs", looked.append)
    graph = Graph()
    with graph.capture():
        training.model(X).sum().backward()
    assert looked == []
    monkeypatch.undo()
    training.step(2)
    assert training.noise.step_count == 2
    assert training.noise._passes.audit is None
