"""Learning rates over a training, against torch's own schedulers and against the steps taken."""

from contextlib import suppress

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, SequentialLR

from antipgd.paper.networks.rates import rate_factor
from antipgd.paper.networks.spec import make_training
from antipgd.paper.networks.train import StoppedError, train

EPOCHS, PER_EPOCH = 6, 5


def spec(method="gd", **changes):
    values = {"batch": 40, "epochs": 4, "seed": 0, "images": 200, "width": 3, "sigma": 0.02}
    return make_training("digits", "mlp", method, **(values | changes))


def factors(schedule, warmup=0):
    steps = range(EPOCHS * PER_EPOCH)
    return [rate_factor(schedule, warmup, EPOCHS, step, PER_EPOCH) for step in steps]


def by_torch(make, warmup=0):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    after = make(optimizer)
    if warmup:
        count = warmup * PER_EPOCH
        rising = LinearLR(optimizer, 1 / count, 1.0, count - 1)
        after = SequentialLR(optimizer, [rising, after], [count])
    found = []
    for _ in range(EPOCHS * PER_EPOCH):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        after.step()
    return found


@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")
@pytest.mark.parametrize("warmup", [0, 1, 2])
def test_rates_are_those_of_torch(warmup):
    left = (EPOCHS - warmup) * PER_EPOCH
    cosine = by_torch(lambda optimizer: CosineAnnealingLR(optimizer, left), warmup)
    assert factors("cosine", warmup) == pytest.approx(cosine)
    milestones = [3 * PER_EPOCH - warmup * PER_EPOCH, 5 * PER_EPOCH - warmup * PER_EPOCH]
    steps = by_torch(lambda optimizer: MultiStepLR(optimizer, milestones, 0.3), warmup)
    assert factors("step:3,5:0.3", warmup) == pytest.approx(steps)
    constant = factors("constant", warmup)
    assert constant[warmup * PER_EPOCH :] == [1.0] * left
    assert all(factor > 0 for factor in factors("cosine", warmup) + constant)


def test_steps_go_down_after_their_epoch_not_before():
    found = factors("step:2:0.5")
    assert found[2 * PER_EPOCH - 1 : 2 * PER_EPOCH + 1] == [1.0, 0.5]


@pytest.mark.parametrize("schedule", ["cosine", "step:1,3:0.1"])
def test_every_step_has_its_rate(schedule, monkeypatch):
    seen = []
    step = torch.optim.SGD.step

    def watched(self, closure=None):
        seen.append(self.param_groups[0]["lr"])
        return step(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    run = spec(schedule=schedule, warmup=1, lr=0.2)
    train(run)
    expected = [0.2 * rate_factor(run.schedule, 1, 4, n, 5) for n in range(20)]
    assert seen == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("method", ["gd", "anti"])
def test_a_schedule_goes_on_after_a_stop_with_the_same_bits(method, tmp_path):
    run = spec(method, schedule="cosine", warmup=1, augment="flip_crop")
    whole, left = train(run), [7]

    def tick(epochs):
        left[0] -= 1
        if left[0] < 0:
            left[0] = 7
            raise StoppedError

    record = None
    while record is None:
        with suppress(StoppedError):
            record = train(run, tmp_path, tick=tick)
    assert record == whole


def test_one_spelling():
    assert spec(schedule="step:1,3:.10") == spec(schedule="step:1,3:0.1")
    assert spec(schedule="constant") == spec()
    names = {spec(schedule=s, warmup=w).name for s in ("constant", "cosine", "step:2:0.1")
             for w in (0, 1)}  # fmt: skip
    assert len(names) == 6


def test_a_cosine_shares_no_beginning():
    """Its first epochs depend on how many there will be."""
    noisy = {"noise_start": 2, "epochs": 6}
    assert spec("anti", schedule="cosine", **noisy).prefix() is None
    assert spec("anti", schedule="step:1:0.1", **noisy).prefix().schedule == "step:1:0.1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "cos"}, "unknown schedule 'cos'; did you mean 'cosine'?"),
        ({"schedule": "step:1"}, "step:EPOCH,…:FACTOR, such as step:30,45:0.1; got 'step:1'"),
        ({"schedule": "step:a:0.1"}, "got 'step:a:0.1'"),
        ({"schedule": "step:3,1:0.1"}, r"must rise, from 1 to less than epochs=4; got 'step:3,1"),
        ({"schedule": "step:4:0.1"}, "less than epochs=4; got 'step:4:0.1'"),
        ({"schedule": "step:0:0.1"}, "must rise, from 1"),
        ({"schedule": "step:2:0"}, "the factor of a schedule must be a finite number > 0; got 0"),
        ({"schedule": 3}, "unknown schedule 3"),
        ({"warmup": 4}, "warmup must be less than epochs=4; got 4"),
        ({"warmup": -1}, "warmup must be a whole number >= 0; got -1"),
        ({"warmup": 0.5}, "warmup must be a whole number >= 0; got 0.5"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        spec(**changes)
