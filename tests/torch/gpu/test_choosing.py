"""A kernel that cannot be launched is found before it is needed; plain torch draws then."""

import logging
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from antipgd.noise import as_law
from antipgd.torch import attach, kernel, perturb
from antipgd.torch.gpu import choosing, launching
from antipgd.torch.gpu.tables import place_of
from interpreted import KEY, as_if_on_gpus

FORMS = ("weights", "forward")
WORDS = "plain torch, slower and with the same bits: the kernel does not run on cpu: "


@pytest.fixture
def broken(monkeypatch):
    """Launches of Triton without a C compiler."""

    def fails(*given):
        raise RuntimeError("Failed to find C compiler. Please specify via CC")

    monkeypatch.setattr(launching, "launch", fails)
    choosing._runs_on.cache_clear()
    yield
    choosing._runs_on.cache_clear()


def trained(form):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    given = (optimizer,) if form == "weights" else (model, optimizer)
    noise = {"weights": attach, "forward": perturb}[form](*given, sigma=0.05, seed=1)
    for _ in range(3):
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
    found = [p.detach().clone() for p in model.parameters()]
    noise.stop()
    return [*found, *(p.detach().clone() for p in model.parameters())]


@pytest.mark.parametrize("form", FORMS)
def test_plain_torch_draws_where_the_kernel_does_not_run(form, broken, caplog):
    wanted = trained(form)
    with as_if_on_gpus(), caplog.at_level(logging.WARNING, "antipgd"):
        found = trained(form)
    assert all(map(torch.equal, found, wanted))
    said = [record.message for record in caplog.records]
    assert len(said) == 1
    assert WORDS + "RuntimeError: Failed to find C compiler" in said[0]


@pytest.mark.parametrize("form", FORMS)
def test_it_is_tried_before_any_step(form, monkeypatch):
    choosing._runs_on.cache_clear()
    tried = []
    monkeypatch.setattr(launching, "try_on", lambda *given: tried.append(given))
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    given = (optimizer,) if form == "weights" else (model, optimizer)
    with as_if_on_gpus():
        {"weights": attach, "forward": perturb}[form](*given, sigma=0.05, seed=1)
        assert tried == [(torch.device("cpu"), as_law("gaussian"))]
    choosing._runs_on.cache_clear()


def test_an_old_gpu_is_refused_by_its_capability(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    with pytest.raises(RuntimeError, match=r"must be at least \(7, 0\); got \(6, 1\)"):
        launching.check_device(torch.device("cuda", 0))
    launching.check_device(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    launching.check_device(torch.device("cuda", 0))


def test_an_old_gpu_is_asked_before_a_launch(monkeypatch, caplog):
    choosing._runs_on.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    monkeypatch.setattr(launching, "try_on", lambda *given: pytest.fail("launched"))
    with caplog.at_level(logging.WARNING, "antipgd"):
        assert choosing.draws_on(torch.device("cuda", 0), as_law("gaussian")) is None
    assert "got (6, 1)" in caplog.text
    choosing._runs_on.cache_clear()


# How it is launched


class Launched:
    """A kernel that keeps what it is given."""

    def __init__(self):
        self.given = []

    def __getitem__(self, grid):
        return lambda *given, **named: self.given.append((given, named))


def test_a_launch_gives_all_options_to_the_compiler_and_is_on_the_device_of_its_target(monkeypatch):
    seen = []

    @contextmanager
    def on(device):
        seen.append(device)
        yield

    kept = Launched()
    monkeypatch.setattr(launching, "_on", on)
    monkeypatch.setattr(launching, "add_draws", kept)
    target = torch.zeros(5)
    place = place_of(KEY, 1, (0.3,), target.device)
    launching.Template(target, None, as_law("laplace")).inject(target, place)
    ((_, named),) = kept.given
    assert named["enable_fp_fusion"] is False
    assert named["num_warps"] == 4
    assert named["ONE_RUN"] is True
    assert seen == [target.device]


def test_a_gpu_is_made_the_current_one():
    there = launching._on(torch.device("cuda", 3))
    assert isinstance(there, torch.cuda.device)
    assert there.idx == 3
    with launching._on(torch.device("cpu")):
        pass


def test_the_parts_of_a_draw_begin_at_16_bytes():
    place = place_of(KEY, 3, (0.3, -0.2, 0.1), torch.device("cpu"))
    first = place.facts.data_ptr()
    assert [(part.data_ptr() - first) % 16 for part in place] == [0, 0, 0]
    assert place.table.tolist() == [[0.3, -0.2, 0.1]]
    assert int(place.newest) == 3


def test_plain_torch_is_the_same_noise():
    w = torch.zeros(5)
    kernel.inject(w, 0, 1, [1.0], as_law("gaussian"), None)
    with as_if_on_gpus():
        found = torch.zeros(5)
        launching.Template(found, None, as_law("gaussian")).inject(
            found, place_of(0, 1, (1.0,), found.device)
        )
    assert torch.equal(found, w)
