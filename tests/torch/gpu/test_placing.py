"""Where the draws of a step lie on a device: written in place, and only when they change."""

import numpy as np
import pytest
import torch
from torch import nn

from antipgd.noise import as_law
from antipgd.torch import perturb
from antipgd.torch.forward.compiled import former_of, know_read, note_read
from antipgd.torch.forward.forming import Former, _place, as_draw
from antipgd.torch.forward.placing import Places
from antipgd.torch.gpu import choosing, launching
from antipgd.torch.gpu.tables import place_of
from interpreted import KEY, as_if_on_gpus, capturing, expected, same, weights

GAUSSIAN = as_law("gaussian")
CPU = torch.device("cpu")


def taken(places, parameters, sigma=0.1):
    keys = np.arange(len(parameters), dtype=np.uint64)
    return places.take(parameters, keys, np.full((len(parameters), 1), sigma))


def test_other_coefficients_are_written_where_the_last_ones_were():
    places, parameters = Places(GAUSSIAN), [torch.zeros(2), torch.zeros(3)]
    first = taken(places, parameters)
    second = taken(places, parameters, 0.3)
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert second[1].facts.tolist() == [[1, 1]]
    assert second[1].table.tolist() == [[0.3], [0.3]]
    more = taken(places, [*parameters, torch.zeros(1)])
    assert [place.facts.tolist() for place in more] == [[[0, 0]], [[1, 1]], [[2, 2]]]
    assert second[1].table.tolist() == [[0.3], [0.3]]


def test_other_keys_are_written_there_too():
    places, parameters = Places(GAUSSIAN), [torch.zeros(2)]
    places.advance(4)
    (first,) = taken(places, parameters)
    (second,) = places.take(parameters, np.array([2**64 - 1], np.uint64), np.array([[0.2]]))
    assert second is first
    assert first.facts.tolist() == [[-1, 0]]
    assert int(first.newest) == 4


def test_parameters_that_have_moved_are_noticed():
    places, parameters = Places(GAUSSIAN), [torch.zeros(2)]
    taken(places, parameters)
    assert places.fit([torch.ones(5)])
    assert not places.fit([torch.zeros(2, device="meta")])
    assert not places.fit([*parameters, torch.zeros(1)])


def moved(seen):
    """What passes draw after a parameter has gone elsewhere: Places.fit is asked at each step."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = perturb(model, optimizer, 0.1, seed=1)
    take = noise._passes._places.take
    noise._passes._places.take = lambda *given: (seen.append(given), take(*given))[1]
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        noise._passes._places._homes = [torch.device("meta")] * 2  # as if it had been there
    return noise


def test_a_step_after_they_have_moved_writes_anew():
    seen = []
    moved(seen)
    assert len(seen) == 3  # the first draw, and two of the same σ elsewhere


def test_a_draw_is_brought_to_another_device():
    elsewhere = place_of(KEY, 3, (0.3,), torch.device("meta"))
    draw = as_draw(KEY, 3, [0.3])._replace(place=elsewhere)
    found = _place(draw, CPU)
    assert found.table.device == CPU
    assert found.table.tolist() == [[0.3]]
    here = place_of(KEY, 3, (0.3,), CPU)
    assert _place(draw._replace(place=here), CPU) is here


def test_no_draw_is_brought_into_a_graph():
    draw = as_draw(KEY, 3, [0.3])
    with capturing(), pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"):
        _place(draw, CPU)


def test_a_micro_batch_needs_no_place(monkeypatch):
    monkeypatch.setattr(Places, "take", lambda *given: pytest.fail("nobody reads it"))
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    perturb(model, optimizer, 0.1, seed=1, draws="micro-batch")
    for _ in range(4):
        model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def test_how_weights_lie_is_known_before_the_first_pass(monkeypatch):
    """A compiled call allocates in the memory of its graphs, which is used again."""
    former_of.cache_clear()
    with as_if_on_gpus():
        choosing.draws_on(CPU, GAUSSIAN)  # which tries it, once
    made = []
    template = launching.Template
    monkeypatch.setattr(
        launching, "Template", lambda *given: (made.append(given), template(*given))[1]
    )
    with as_if_on_gpus():
        model = nn.Sequential(
            nn.Linear(3, 2), nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        perturb(model, optimizer, 0.1, seed=1)
        assert len(made) == 3  # two biases are alike
        call = torch.compile(model[0], backend="aot_eager", fullgraph=True)
        call(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        model[1](torch.ones(1, 1, 3, 3))
    assert len(made) == 3
    torch.compiler.reset()
    former_of.cache_clear()


def test_weights_with_gaps_are_planned_once(monkeypatch):
    planned = []
    plan = launching.planned
    monkeypatch.setattr(
        launching, "planned", lambda *given: (planned.append(given), plan(*given))[1]
    )
    holes = weights((6, 10), torch.float32)[:, ::2]
    with as_if_on_gpus():
        former = Former(GAUSSIAN)
        for step in (3, 4):
            w = former.form(holes, as_draw(KEY, step, [0.3]))
            assert same(w, expected(holes.contiguous(), KEY, step, (0.3,), "gaussian"))
    assert len(planned) == 2  # with the gaps, and without


class Asking:
    is_watching = True


def test_who_was_read_is_told_without_waiting_for_a_device(monkeypatch):
    watchers = set()
    monkeypatch.setattr("antipgd.torch.forward.compiled.watchers", watchers)
    monkeypatch.setattr("antipgd.torch.forward.compiled.compiled_reads", compiled_reads := set())
    facts = torch.zeros(2, 2, dtype=torch.int64)
    know_read(facts[1:], KEY)
    note_read(facts[1:])
    assert KEY not in compiled_reads  # nobody asks
    watchers.add(Asking())
    note_read(facts[:1])
    assert KEY not in compiled_reads
    note_read(facts[1:])  # in which the key is not
    assert KEY in compiled_reads
