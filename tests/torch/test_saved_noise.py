"""The saved noise: its fields, its keys, and what stands for it in a live optimizer."""

import copy
import io
import json
import math
import pickle

import numpy as np
import pytest
import torch

from antipgd.torch import AntiPGD, attach, clean_state_dict, matching
from antipgd.torch.record import CHECKS, read_record
from antipgd.torch.saved import read_groups
from training import SEED, flat, make_model, train

PLACE = "the noise of param group 0"
GOOD = {
    "format": 1, "stream": 1, "law": "gaussian", "taps": [1.0, -1.0], "seed": 3, "sigma": 0.1,
    "step": 4, "clock": 0.5, "names": ["a", "b"], "shapes": [[2, 3], []], "first_lrs": [0.1, None],
    "scales": [1.0, 1.0], "sigmas": [[0.1], [0.0]],
}  # fmt: skip
BAD = {
    "stream": [0, True, "1", None, 1.0],
    "law": ["normal", "student-t", None, 3],
    "taps": [[], [0.0], [1.0, True], [float("nan")], "1", 1.0, None],
    "seed": [-1, 2**64, 1.5, True, "1", None],
    "sigma": [-0.1, float("nan"), float("inf"), True, "0.1", None, 10**400],
    "step": [-1, 2**63, 4.0, True, None],
    "clock": [-1.0, float("nan"), True, "0"],
    "names": ["ab", None, ["a", 3], {}],
    "shapes": [[[2, 3]], [[2, -3], []], [[2.0], []], [2, 3], None, [[True], []]],
    "first_lrs": [[0.1], [-0.1, 0.1], [float("inf"), 0.1], [True, 0.1], None],
    "scales": [[1.0], [1.0, -1.0], [1.0, None], 1.0],
    "sigmas": [[[0.1]], [[0.1], []], [[0.1], [0.1, 0.1]], [[0.1], [-0.1]], [0.1, 0.1]],
    "form": ["backward", None, 1],
    "namespace": [None, 3],
    "relative": [0, 1, None, "no"],
    "paused": [0, "no", None],
    "hold": [0, 1.5, "2", True],
    "draws": ["batch", 1, None],
    "antithetic": [0, "no", None],
    "layers": ["two", 1, None],
    "scheduled": [0, "no", None],
    "clocks": [
        [["sgd"]],
        [["lion", 0.5]],
        [["sgd", -0.5]],
        [["sgd", 0.5], ["sgd", 0.5]],
        [["sgd", "0"]],
        [[None, 0.5]],
        ["sgd", 0.5],
        {"sgd": 0.5},
        0.5,
        None,
    ],
    "plateau": [
        [1.0, 2],
        ["1", 0, None],
        [float("nan"), 0, None],
        [None, -1, None],
        [None, 1.5, None],
        [None, 0, -1],
        [None, 0, True],
        "3",
        3,
        None,
    ],
    "shares": [["0000"], ["0000803f", ""], ["000080bf", ""], ["0000807f", ""], [3, ""], 3, None],
    "samples": [["0000"], ["0000000g", ""], ["00000000"], [3, ""], "00000000", None],
}


@pytest.mark.parametrize("field", BAD)
def test_every_field_has_its_check(field):
    assert set(BAD) == set(CHECKS)
    assert read_record(GOOD, PLACE).step == 4
    for value in BAD[field]:
        with pytest.raises(ValueError, match=rf"^the noise of param group 0: {field}\b.*; got"):
            read_record(GOOD | {field: value}, PLACE)


def test_entries_belong_to_names():
    for names in (["a"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match=f"{PLACE}: shapes must have {len(names)} entries"):
            read_record(GOOD | {"names": names}, PLACE)


def test_formats_and_fields_that_are_not_known():
    for message, change in (
        ("format is 2; .*: use a newer antipgd", {"format": 2}),
        (r"format must be a whole number >= 1; got 'x'", {"format": "x"}),
        ("'held' is not known; accepted: stream, law", {"held": 1}),
    ):
        with pytest.raises(ValueError, match=f"{PLACE}: {message}"):
            read_record(GOOD | change, PLACE)
    for field in set(GOOD) - {"format"}:
        with pytest.raises(ValueError, match=f"{PLACE}: {field} is missing"):
            read_record({k: v for k, v in GOOD.items() if k != field}, PLACE)
    with pytest.raises(ValueError, match=f"{PLACE}: 'format'|'stream' is not known"):
        read_record({k: v for k, v in GOOD.items() if k != "format"}, PLACE)  # is format 0 then
    for value in (None, 3, "{", "[1]", "[" * 100_000):
        with pytest.raises(ValueError, match=f"{PLACE}: antipgd must be the JSON text"):
            read_record(value, PLACE)


def test_a_record_is_what_it_was_after_writing_and_reading():
    changes = ({}, {"clock": None}, {"clocks": [["adam", None], ["sgd", 0.5]]},
               {"samples": ["3f80000000000000", ""]},
               {"namespace": "a", "relative": True, "paused": True},
               {"form": "forward", "hold": 2, "draws": "rank", "antithetic": True},
               {"law": "student-t:2.5", "seed": 2**64 - 1, "sigma": 0.1 + 0.2})  # fmt: skip
    for change in changes:
        record = read_record(GOOD | change, PLACE)
        assert read_record(record.text(), PLACE) == record
        assert json.loads(record.text()) == GOOD | change


def named(model):
    return torch.optim.AdamW(model.named_parameters(), lr=0.01)


def unnamed(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.mark.parametrize("order", ["attach, load", "load, attach"])
@pytest.mark.parametrize(("first", "then"), [(named, unnamed), (unnamed, named)])
def test_names_and_positions_load_into_each_other(first, then, order):
    model = make_model(torch.float32)
    optimizer = first(model)
    noise = attach(optimizer, sigma=0.1, seed=SEED)
    train(model, optimizer, 3)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    train(model, optimizer, 3)
    whole, keys = flat(model), [member.key for member in noise.members]
    noise.stop()
    clean = flat(model)

    for _ in range(2):  # the second time from what the other kind has saved
        model = make_model(torch.float32)
        optimizer = then(model)
        if order == "attach, load":
            noise = attach(optimizer, sigma=0.1, seed=1)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        if order == "load, attach":
            noise = attach(optimizer, sigma=0.1, seed=1)
        saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        train(model, optimizer, 3)
        assert [member.key for member in noise.members] == keys
        assert np.array_equal(flat(model), whole)
        noise.stop()
        assert np.array_equal(flat(model), clean)
        first, then = then, first


def test_where_positions_do_not_tell_names_are_asked_for():
    """Some tensors are excluded, and the checkpoint does not say which: it had model=."""
    model = make_model(torch.float32)
    optimizer = unnamed(model)
    attach(optimizer, sigma=0.1, model=model, exclude="0.bias").pause()
    state = optimizer.state_dict()
    other = make_model(torch.float32)
    second = unnamed(other)
    attach(second, sigma=0.1, exclude="3")  # as many, of the same shapes
    with pytest.raises(ValueError, match=r"in param group 0 its names is \['0.weight', '2.weight'"):
        second.load_state_dict(state)


def test_other_names_are_refused():
    model = make_model(torch.float32)
    optimizer = named(model)
    noise = attach(optimizer, sigma=0.1)
    state = optimizer.state_dict()
    noise.stop()
    renamed = [(f"net.{name}", parameter) for name, parameter in model.named_parameters()]
    attach(optimizer := torch.optim.AdamW(renamed, lr=0.01), sigma=0.1)
    with pytest.raises(ValueError, match=r"its names is \['0.weight'.*this optimizer's is \['net"):
        optimizer.load_state_dict(state)


def test_clean_weights_of_an_optimizer_without_names():
    model = make_model(torch.float32)
    optimizer = unnamed(model)
    noise = attach(optimizer, sigma=0.1, exclude="1")
    train(model, optimizer, 3)
    weights, state = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    names = [name for name, _ in model.named_parameters()]
    clean = clean_state_dict(weights, state, names=names)
    noise.stop()
    assert all(torch.equal(clean[name], value) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match=r"param group 0: names has '0'.*give names="):
        clean_state_dict(weights, state)
    with pytest.raises(ValueError, match=r"names must have 6 entries.*got 5"):
        clean_state_dict(weights, state, names[:5])
    for wrong in ("0.weight", [0, 1, 2, 3, 4, 5]):
        with pytest.raises(ValueError, match="names must be a list of the parameters' names"):
            clean_state_dict(weights, state, wrong)
    with pytest.raises(ValueError, match=r"names has '0.bias', but the model's state has no"):
        clean_state_dict(weights, state, ["0.bias", *names[1:]])


def test_clean_state_dict_of_the_wrong_dictionaries():
    model = make_model(torch.float32)
    optimizer = named(model)
    attach(optimizer, sigma=0.1)
    weights, state = model.state_dict(), optimizer.state_dict()
    with pytest.raises(
        ValueError, match="an optimizer's state_dict has 'param_groups'; got a dict"
    ):
        clean_state_dict(weights, weights)
    for wrong in (state, None, {}, model):
        with pytest.raises(ValueError, match="the first argument is a model's state_dict"):
            clean_state_dict(wrong, state)
    with pytest.raises(ValueError, match="'param_groups'; got None"):
        clean_state_dict(weights, None)


@pytest.mark.parametrize("order", ["attach, load", "load, attach"])
def test_a_schedule_that_follows_a_learning_rate_that_is_0_when_saved(order):
    def begin():
        model = make_model(torch.float32)
        return model, torch.optim.SGD(model.named_parameters(), lr=0.08)

    def go(model, optimizer, rates):
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            train(model, optimizer, 1)

    model, optimizer = begin()
    noise = attach(optimizer, sigma=0.1, seed=SEED, schedule="lr")
    go(model, optimizer, [0.08, 0.04, 0.0])
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    go(model, optimizer, [0.02, 0.04])
    noise.stop(remove=False)
    whole = flat(model)

    model, optimizer = begin()
    if order == "attach, load":
        noise = attach(optimizer, sigma=0.1, seed=SEED, schedule="lr")
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    if order == "load, attach":
        noise = attach(optimizer, sigma=0.1, seed=SEED, schedule="lr")
    assert noise.members[0].first_lr == 0.08
    go(model, optimizer, [0.02, 0.04])
    assert np.array_equal(flat(model), whole)


def copies(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    yield copy.deepcopy(thing)
    yield pickle.loads(pickle.dumps(thing))
    yield torch.load(file, weights_only=False)


def test_a_copied_optimizer_has_the_record_and_goes_on_when_attached():
    model = make_model(torch.float32)
    optimizer = named(model)
    noise = attach(optimizer, sigma=0.1, seed=SEED)
    train(model, optimizer, 3)
    both = list(copies([model, optimizer]))
    train(model, optimizer, 3)
    for other, second in both:
        goes_on = attach(second, sigma=0.7, seed=1)
        assert (goes_on.step_count, goes_on.sigma) == (3, 0.1)
        train(other, second, 3)
        assert np.array_equal(flat(other), flat(model))
        goes_on.stop()
    with noise.clean():
        assert np.array_equal(flat(other), flat(model))


def test_the_mark_in_live_groups_disturbs_nothing():
    model = make_model(torch.float32)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.08)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    noise = attach(optimizer, sigma=0.1, seed=SEED)
    assert "antipgd: attached" in repr(optimizer)
    new = torch.nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [("new", new)]})
    train(model, optimizer, 1)
    scheduler.step()
    state = optimizer.state_dict()
    assert json.loads(state["param_groups"][1]["antipgd"])["names"] == ["new"]
    assert all(group["antipgd"] == "attached" for group in optimizer.param_groups)
    optimizer.load_state_dict(state)
    assert all(type(group["antipgd"]) is not str for group in optimizer.param_groups)
    noise.stop()
    assert all("antipgd" not in group for group in optimizer.param_groups)
    assert all("antipgd" not in group for group in optimizer.state_dict()["param_groups"])


def test_a_refused_state_does_not_wait_for_the_next_one():
    """A parameter was added and nothing was stepped since: a refusal must not take it in."""
    model = make_model(torch.float32)
    optimizer = named(model)
    noise = attach(optimizer, sigma=0.1, seed=SEED)
    train(model, optimizer, 2)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.add_param_group({"params": [("new", torch.nn.Parameter(torch.ones(3)))]})
    with pytest.raises(ValueError, match="the checkpoint has 1 param groups, this optimizer 2"):
        optimizer.load_state_dict(state)
    assert len(noise.members) == 6
    train(model, optimizer, 1)
    assert len(noise.members) == 7
    assert noise.step_count == 3


def in_two_groups():
    model = make_model(torch.float32)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2:].parameters())}]
    optimizer = torch.optim.SGD(groups, lr=0.05)
    noise = attach(optimizer, sigma=0.05, seed=SEED, model=model)
    train(model, optimizer, 2)
    return model, optimizer, noise


@pytest.mark.parametrize("field", ["seed", "sigma", "step", "clock", "paused"])
def test_groups_that_tell_of_different_noise_are_refused(field):
    model, optimizer, noise = in_two_groups()
    state = copy.deepcopy(optimizer.state_dict())
    other = {"seed": 4, "sigma": 0.2, "step": 5, "clock": 1.0, "paused": True}[field]
    second = json.loads(state["param_groups"][1]["antipgd"]) | {field: other}
    state["param_groups"][1]["antipgd"] = json.dumps(second)
    message = (
        f"the noise of param group 1: {field} is {other}, but .* in the noise of param group 0"
    )
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match=message):
        clean_state_dict(model.state_dict(), state)
    assert noise.step_count == 2


def test_names_that_repeat_over_groups_are_refused():
    model, optimizer, _ = in_two_groups()
    state = copy.deepcopy(optimizer.state_dict())
    second = json.loads(state["param_groups"][1]["antipgd"])
    second["names"][0] = "module.0.bias"  # which is the other group's 0.bias
    state["param_groups"][1]["antipgd"] = json.dumps(second)
    with pytest.raises(ValueError, match=r"group 1: names must not repeat; 'module.0.bias' does"):
        clean_state_dict(model.state_dict(), state)


def test_a_load_that_fails_after_ours_was_checked_changes_nothing():
    model, optimizer, noise = in_two_groups()
    state = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, 3)

    def fail(optimizer, state):
        raise OSError("the disk is gone")

    optimizer.register_load_state_dict_pre_hook(fail)
    sigmas, clock = [member.sigmas for member in noise.members], noise.clock
    with pytest.raises(OSError, match="the disk is gone"):
        optimizer.load_state_dict(state)
    assert (noise.step_count, noise.clock) == (5, clock)
    assert [member.sigmas for member in noise.members] == sigmas


def pair(**of_second):
    """Two tensors in two param groups, which have made two steps with noise."""
    first, second = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second], **of_second}], lr=0.1)
    noise = attach(optimizer, sigma=0.1, seed=SEED)
    for _ in range(2):
        optimizer.step()
    return optimizer, noise, first, second


@pytest.mark.parametrize("options", ["none", "another group's"])
def test_a_copy_has_the_record_of_groups_that_were_added(options):
    optimizer, *_ = pair()
    new = torch.nn.Parameter(torch.ones(5))
    others = {} if options == "none" else optimizer.param_groups[0]
    optimizer.add_param_group({**others, "params": [new]})
    for steps in (2, 3):
        for second in copies(optimizer):
            goes_on = attach(second, sigma=0.7)
            assert [member.name for member in goes_on.members] == ["0", "1", "2"]
            with goes_on.clean():
                for group in second.param_groups:
                    assert torch.allclose(group["params"][0], torch.ones(5), atol=1e-6)
            assert goes_on.step_count == steps
        optimizer.step()


def test_anti_pgd_is_copied_with_a_group_that_was_added():
    optimizer = AntiPGD([torch.nn.Parameter(torch.ones(5))], lr=0.1, sigma=0.1, seed=SEED)
    optimizer.step()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(5))]})
    optimizer.step()
    second = copy.deepcopy(optimizer)
    optimizer.step()
    second.step()
    for group, other in zip(optimizer.param_groups, second.param_groups, strict=True):
        assert torch.equal(group["params"][0], other["params"][0])


def test_a_copy_has_no_record_of_a_group_that_was_removed():
    optimizer, _, first, _ = pair(sigma=0.9)
    gone = optimizer.param_groups.pop(0)
    for second in copies(optimizer):
        goes_on = attach(second, sigma=0.7)
        goes_on.stop()
        assert torch.allclose(second.param_groups[0]["params"][0], torch.ones(5), atol=1e-6)
    assert torch.allclose(first, torch.ones(5), atol=1e-6)
    assert read_groups([copy.deepcopy(gone)]) == []


def test_a_state_saved_inside_clean_knows_the_groups_of_that_moment():
    optimizer, noise, *_ = pair(sigma=0.9)
    with noise.clean():
        optimizer.param_groups.pop(0)
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(5))]})
        records = read_groups(optimizer.state_dict()["param_groups"])
    assert [record.names for record in records] == [("1",), ("2",)]  # not "1" again
    assert [record.sigmas for record in records] == [((0.0,),), ((0.0,),)]


def test_many_groups_are_copied_in_one_pass_each(monkeypatch):
    tensors = [torch.nn.Parameter(torch.ones(2)) for _ in range(30)]
    optimizer = torch.optim.SGD([{"params": [p]} for p in tensors], lr=0.1)
    attach(optimizer, sigma=0.1, seed=SEED)
    made = []
    monkeypatch.setattr(matching, "record_of", count(made, matching.record_of))
    copy.deepcopy(optimizer)
    assert len(made) == 30


def count(calls, function):
    def counted(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return counted


def test_what_is_saved_can_be_loaded():
    """Whatever the learning rate and the momentum were."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(5))], lr=0.1, momentum=1.5)
    noise = attach(optimizer, sigma=0.1, seed=SEED, schedule="lr")
    optimizer.step()
    assert math.isnan(noise.clock)
    optimizer.param_groups[0].update(lr=-0.05, momentum=0.0)  # a decay that ran past its end
    noise.clock = 0.0
    optimizer.step()
    assert noise.members[0].sigmas == [0.05]
    assert noise.clock == pytest.approx(0.05 * 0.05**2)
    optimizer.load_state_dict(optimizer.state_dict())
    noise.stop()
    assert torch.allclose(optimizer.param_groups[0]["params"][0], torch.ones(5), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"relative": 1}, "relative must be True, False, 'filter' or 'element'; got 1"),
        ({"relative": np.True_}, "relative must be True, False, 'filter' or 'element'"),
        ({"namespace": None}, "namespace must be text; got None"),
    ],
)
def test_what_a_record_cannot_hold_is_refused_when_attaching(settings, message):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(5))], lr=0.1)
    with pytest.raises(ValueError, match=message):
        attach(optimizer, sigma=0.1, **settings)


class Bare(torch.optim.Optimizer):
    """Momentum whose state of a parameter is a tensor, which torch loads, too."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            velocity = 0.9 * self.state.get(parameter, 0) + parameter.grad
            self.state[parameter] = velocity
            parameter -= 0.1 * velocity


def test_an_optimizer_whose_state_is_no_dictionary_goes_on():
    model, other = make_model(torch.float32), make_model(torch.float32, seed=5)
    optimizer, second = Bare(model.named_parameters()), Bare(other.named_parameters())
    attach(optimizer, sigma=0.1, seed=SEED)
    attach(second, sigma=0.1, seed=1)
    train(model, optimizer, 3)
    other.load_state_dict(model.state_dict())
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 3)
    train(other, second, 3)
    assert np.array_equal(flat(other), flat(model))


def test_a_load_without_noise_refuses_new_members_before_torch_loads():
    weights = torch.nn.Parameter(torch.ones(5))
    half = torch.nn.Parameter(torch.ones(5, dtype=torch.float16))
    plain = torch.optim.SGD([{"params": [weights]}, {"params": [half]}], lr=0.7)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    attach(optimizer, sigma=0.1, seed=SEED)
    optimizer.add_param_group({"params": [half]})
    with pytest.raises(TypeError, match=r"torch\.float16"):
        optimizer.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_positions_of_tensors_that_left_are_nobody_elses_names():
    optimizer, noise, *_ = pair()
    optimizer.param_groups.pop(0)
    for _ in range(2):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(5))]})
    optimizer.step()
    assert [member.name for member in noise.members] == ["1", "2", "3"]
    assert len({member.key for member in noise.members}) == 3
    tensors = [torch.nn.Parameter(g["params"][0].detach().clone()) for g in optimizer.param_groups]
    second = torch.optim.SGD([{"params": [tensor]} for tensor in tensors], lr=0.1)
    second.load_state_dict(optimizer.state_dict())
    attach(second, sigma=0.1, seed=1).stop()
    assert all(torch.allclose(tensor, torch.ones(5), atol=1e-6) for tensor in tensors)


def test_options_of_another_optimizers_group_bring_no_noise_along():
    optimizer, *_ = pair()
    own = torch.nn.Parameter(torch.ones(5))
    second = torch.optim.SGD([{**optimizer.param_groups[0], "params": [own]}], lr=0.1)
    noise = attach(second, sigma=0.1, seed=1)
    assert noise.step_count == 0
    second.step()
    noise.stop()
    assert torch.allclose(own, torch.ones(5), atol=1e-6)
    assert optimizer.param_groups[0]["antipgd"] == "attached"


def test_a_shallow_copy_whose_original_is_gone_is_refused():
    optimizer, noise, *_ = pair()
    shallow = copy.copy(optimizer)
    del optimizer, noise
    with pytest.raises(ValueError, match="of an earlier attach, whose optimizer is gone"):
        attach(shallow, sigma=0.1)


def test_a_state_loaded_before_a_step_that_decides_late_keys_its_draws():
    """A closure may resume() what was paused when the step began."""
    weights, other = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    optimizer, second = torch.optim.SGD([weights], lr=0.1), torch.optim.SGD([other], lr=0.1)
    attach(optimizer, sigma=0.1, seed=SEED)
    noise = attach(second, sigma=0.1, seed=1)
    optimizer.step()
    second.step()
    with torch.no_grad():
        other.copy_(weights)
    second.load_state_dict(optimizer.state_dict())
    noise.pause()
    second.step(lambda: noise.resume() or 0.0)
    assert noise.step_count == 2
    noise.stop()
    assert torch.allclose(other, torch.ones(5), atol=1e-6)


def test_a_group_added_and_saved_in_the_middle_of_a_step():
    optimizer, noise, first, _ = pair()
    noise.sigma = 0.7

    def closure():
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(5))]})
        optimizer.state_dict()
        return 0.0

    optimizer.step(closure)
    noise.stop()
    assert torch.allclose(first, torch.ones(5), atol=1e-6)
