"""What libraries do to model and optimizer: followed, refused or said, never silent."""

import gc
import logging

import pytest
import torch

from antipgd.noise import Window
from antipgd.torch import attach, noise_of, perturb
from antipgd.torch.forward.listening import UNHEARD, UNREAD
from job import batch, make_model, sgd

WORDS = "has made no step: its draw stands still"


def train(model, optimizer, steps=1):
    x, y = batch()
    for _ in range(steps):
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


class TestNoiseOf:
    def test_the_noise_that_acts(self):
        model, other = make_model(), make_model()
        optimizer, theirs = sgd(model), sgd(other)
        assert noise_of(optimizer) is None
        noise = perturb(model, optimizer, 0.1)
        added = attach(theirs, 0.1)
        assert noise_of(optimizer) is noise
        assert noise_of(theirs) is added
        noise.stop()
        assert noise_of(optimizer) is None
        assert noise_of(theirs) is added

    def test_one_of_several(self):
        model = make_model()
        named = list(model.named_parameters())
        each = [torch.optim.SGD(part, lr=0.1) for part in (named[:2], named[2:])]
        noise = perturb(model, each, 0.1)
        assert [noise_of(one) for one in each] == [noise, noise]

    def test_a_wrapper_is_asked_about_its_inner_one(self):
        class Wrapper:
            def __init__(self, inner):
                self.optimizer = inner

        model = make_model()
        optimizer = sgd(model)
        noise = perturb(model, Wrapper(optimizer), 0.1)
        assert noise_of(Wrapper(optimizer)) is noise


class TestAnOptimizerMadeAnew:
    def test_beside_the_old_one_is_warned_of_once(self):
        model = make_model()
        optimizer = sgd(model)
        noise = perturb(model, optimizer, 0.1)
        train(model, optimizer, 3)
        other = sgd(model)
        with pytest.warns(UserWarning, match=WORDS):
            train(model, other, UNHEARD + 1)
        train(model, other, 3 * UNHEARD)  # warnings are errors here
        noise.stop()

    def test_so_many_changes_and_not_one_less(self):
        model = make_model()
        optimizer = sgd(model)
        perturb(model, optimizer, 0.1)
        other = sgd(model)
        for _ in range(5):
            train(model, optimizer)
            train(model, other, UNHEARD - 1)
        with pytest.warns(UserWarning, match=WORDS):
            train(model, other, UNHEARD)

    def test_who_looks_along_a_line_trains_nothing(self):
        model = make_model()
        perturb(model, sgd(model), 0.1)
        with torch.no_grad():
            for _ in range(3 * UNHEARD):
                model[0].weight.mul_(0.9)
                model(batch()[0])  # statistics of norms, say

    @pytest.mark.parametrize("kind", ["accumulation", "paused", "resting", "lbfgs", "loaded"])
    def test_nothing_is_said_where_all_is_well(self, kind):
        model = make_model()
        optimizer = torch.optim.LBFGS(model.parameters()) if kind == "lbfgs" else sgd(model)
        noise = perturb(model, optimizer, 0.01)
        x, y = batch()

        def closure():
            model.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        if kind == "paused":
            noise.pause()
        if kind == "resting":
            optimizer.param_groups[0]["lr"] = 0.0
        before = {name: w.clone() for name, w in model.state_dict().items()}
        for _ in range(5):
            if kind == "accumulation":
                for _ in range(5):
                    closure()
            if kind == "loaded":
                model.load_state_dict(before)
            optimizer.step(closure) if kind == "lbfgs" else train(model, optimizer)

    def test_in_its_place_before_a_step(self, caplog):
        """skorch's fit makes both anew: nothing would tell, but that the first one is gone."""
        model = make_model()
        optimizer = sgd(model)
        perturb(model, optimizer, 0.1)
        del model, optimizer
        gc.collect()
        assert "is gone and has made no step with it" in caplog.text

    @pytest.mark.parametrize("steps", [0, 2])
    @pytest.mark.parametrize("order", ["before", "after"])
    def test_a_training_that_was_over_when_it_was_loaded(self, order, steps, caplog):
        """A script that is started again makes no step where there is none left to make."""
        first = make_model()
        its_own = sgd(first)
        noise = perturb(first, its_own, 0.1)
        for _ in range(steps):
            train(first, its_own)
        state = its_own.state_dict()
        noise.stop()
        model = make_model()
        optimizer = sgd(model)
        if order == "before":
            optimizer.load_state_dict(state)
        perturb(model, optimizer, 0.1)
        if order == "after":
            optimizer.load_state_dict(state)
        del model, optimizer
        gc.collect()
        assert ("has made no step with it" in caplog.text) == (steps == 0)

    @pytest.mark.parametrize("how", ["stepped", "stopped", "kept"])
    def test_nothing_is_said_of_one_that_was_used(self, how, caplog):
        caplog.set_level(logging.WARNING)
        model = make_model()
        optimizer = sgd(model)
        noise = perturb(model, optimizer, 0.1)
        if how == "stepped":
            train(model, optimizer)
        if how == "stopped":
            noise.stop()
        kept = optimizer if how == "kept" else None
        del model, optimizer
        gc.collect()
        assert "has made no step with it" not in caplog.text
        del kept


class TestFlattened:
    """As DeepSpeed's ZeRO does, with stand-ins: stage 3 in the model, 1 and 2 in the optimizer."""

    def test_partitioned_parameters(self):
        model = make_model()
        model[0].weight.ds_id = 0
        with pytest.raises(TypeError, match=r"'0.weight' is partitioned by DeepSpeed's ZeRO-3"):
            perturb(model, sgd(model), 0.1)

    @pytest.mark.parametrize(("linked", "words"), [(True, "DeepSpeed's ZeRO has"), (False, "give")])
    def test_before_perturb(self, linked, words):
        model = make_model()
        optimizer = self.flattened(model, sgd(model), linked)
        with pytest.raises(
            ValueError, match=rf"of shape \(\d+,\) that is not in the model; {words}"
        ):
            perturb(model, optimizer, 0.1)

    def test_after_perturb_is_refused_before_the_weights_move(self):
        model = make_model()
        optimizer = sgd(model)
        noise = perturb(model, optimizer, 0.1)
        self.flattened(model, optimizer, True)
        flat = optimizer.param_groups[0]["params"][0]
        before = flat.detach().clone()
        flat.grad = torch.ones_like(flat)
        for _ in range(2):
            with pytest.raises(ValueError, match="that is not in the model; DeepSpeed's ZeRO has"):
                train(model, optimizer)
            assert torch.equal(flat, before)
        with pytest.raises(ValueError, match="that is not in the model"):
            optimizer.state_dict()
        assert noise.step_count == 0
        noise.stop()

    @staticmethod
    def flattened(model, optimizer, linked):
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        optimizer.param_groups[0].pop("param_names")
        optimizer.param_groups[0]["params"] = [torch.nn.Parameter(flat)]
        for parameter in model.parameters() if linked else ():
            parameter._hp_mapping = None
        return optimizer


def test_parameters_that_model_and_optimizer_get_together_are_followed():
    """As Accelerate does when it shards: others in both, under the old names."""
    trained = []
    for swapped in (False, True):
        model = make_model()
        optimizer = sgd(model)
        noise = perturb(model, optimizer, 0.1, seed=3)
        if swapped:
            for module in model:
                for name, parameter in list(module.named_parameters()):
                    setattr(module, name, torch.nn.Parameter(parameter.detach().clone()))
            optimizer.param_groups[0]["params"] = list(model.parameters())
        train(model, optimizer, 5)
        assert noise.step_count == 5
        trained.append(model)
    for p, q in zip(*(model.parameters() for model in trained), strict=True):
        assert torch.equal(p, q)


class TestTrainedInEvalMode:
    """As `from_pretrained` leaves a model, or an evaluation after which nobody calls train()."""

    WORDS = "no pass in training mode since step"

    def test_is_warned_of_once(self):
        model = make_model()
        optimizer = sgd(model)
        noise = perturb(model, optimizer, 0.1)
        train(model, optimizer, 3)
        model.eval()
        train(model, optimizer, UNREAD - 1)
        with pytest.warns(UserWarning, match=rf"{self.WORDS} 3: .* call model.train\(\) before"):
            train(model, optimizer)
        train(model, optimizer, 2 * UNREAD)
        assert noise.step_count == 3 + 3 * UNREAD

    def test_of_several_optimizers(self):
        model = make_model().eval()
        named = list(model.named_parameters())
        each = [torch.optim.SGD(part, lr=0.1) for part in (named[:2], named[2:])]
        perturb(model, each, 0.1)

        class Both:
            @staticmethod
            def step():
                for optimizer in each:
                    optimizer.step()

        with pytest.warns(UserWarning, match=f"{self.WORDS} 0"):
            train(model, Both, UNREAD)

    def test_compiled(self):
        """Which the audit refuses at once, where there is one."""
        model = make_model().eval()
        optimizer = sgd(model)
        perturb(model, optimizer, 0.1, audit=False)
        with pytest.warns(UserWarning, match=f"{self.WORDS} 0"):
            train(torch.compile(model, backend="aot_eager", fullgraph=True), optimizer, UNREAD)

    @pytest.mark.parametrize("case", ["paused", "no sigma", "window", "looks", "part", "compiled"])
    def test_no_alarm(self, case):
        """Where there is no noise to be read, or passes in training mode are made between."""
        model, call = make_model(), None
        optimizer = sgd(model)
        sigma = 0.0 if case == "no sigma" else 0.1
        noise = perturb(model, optimizer, sigma, schedule=Window(0, 2))
        if case in ("looks", "part", "compiled"):
            noise.stop()
            noise = perturb(model, optimizer, sigma)
        if case == "paused":
            noise.pause()
        if case == "compiled":
            call = torch.compile(model, backend="aot_eager")
        if case in ("paused", "no sigma", "window"):
            model.eval()
        if case == "part":
            model.eval()[0].train()
        for _ in range(2 * UNREAD):
            if case == "looks":
                model.eval()(batch()[0]).sum().item()
                model.train()
            train(call or model, optimizer)

    def test_passes_of_which_nobody_hears(self):
        """As a CUDA graph replays them, and an evaluation between."""
        model = make_model()
        optimizer = sgd(model)
        perturb(model, optimizer, 0.1, audit=False)
        for _ in range(2 * UNREAD):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            with torch.no_grad():
                model.eval()(batch()[0])
            optimizer.step()
