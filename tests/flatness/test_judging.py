"""Wrong answers, read off the call of a loss, against plain counts."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from antipgd.flatness.judging import Errors

SCORES = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 5.0], [0.0, 0.0, 1.0]])
TARGETS = torch.tensor([0, 2, 2, 0])  # right, wrong, right, wrong


def share(loss):
    errors = Errors(loss)
    value = float(errors())
    return value if errors.seen else None


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda: functional.cross_entropy(SCORES, TARGETS), 0.5),
        (lambda: functional.cross_entropy(input=SCORES, target=TARGETS), 0.5),
        (lambda: nn.CrossEntropyLoss(label_smoothing=0.1)(SCORES, TARGETS), 0.5),
        (lambda: functional.nll_loss(SCORES.log_softmax(1), TARGETS), 0.5),
        (lambda: functional.cross_entropy(SCORES, functional.one_hot(TARGETS, 3).float()), 0.5),
        (lambda: functional.cross_entropy(SCORES, torch.tensor([0, 2, -100, -100])), 0.5),
        (lambda: functional.cross_entropy(SCORES, torch.tensor([0, 7, 2, 7]), ignore_index=7), 0.0),
        (lambda: functional.cross_entropy(SCORES, torch.tensor([7, 2, 7, 0]), None, None, 7), 1.0),
        (lambda: functional.cross_entropy(SCORES[0], torch.tensor(1)), 1.0),
        (lambda: functional.cross_entropy(SCORES.T[None], TARGETS[None]), 0.5),
        (lambda: functional.binary_cross_entropy_with_logits(
            torch.tensor([1.0, -1.0, 0.3]), torch.tensor([1.0, 1.0, 0.0])), 2 / 3),
        (lambda: functional.binary_cross_entropy(
            torch.tensor([0.9, 0.2, 0.6]), torch.tensor([1.0, 1.0, 0.0])), 2 / 3),
        # two heads count together, each by its answers
        (lambda: functional.cross_entropy(SCORES, TARGETS)
         + functional.cross_entropy(SCORES[:1], TARGETS[:1]), 0.4),
        # equal scores are answered by chance, whichever class comes first
        (lambda: functional.cross_entropy(torch.zeros(4, 3), torch.tensor([0, 0, 0, 1])), 2 / 3),
        (lambda: functional.cross_entropy(torch.zeros(4, 3), torch.tensor([2, 2, 2, 1])), 2 / 3),
        (lambda: functional.cross_entropy(SCORES.clamp(max=1), TARGETS), 0.625),
        (lambda: functional.binary_cross_entropy_with_logits(torch.zeros(3), torch.zeros(3)), 0.5),
        (lambda: functional.binary_cross_entropy(torch.full((3,), 0.5), torch.ones(3)), 0.5),
        (lambda: SCORES.square().mean(), None),
        (lambda: functional.mse_loss(SCORES, SCORES), None),
    ],
)  # fmt: skip
def test_the_share_of_wrong_answers(loss, expected):
    assert share(loss) == (None if expected is None else pytest.approx(expected))


def test_a_loss_that_is_not_finite_gives_no_answer():
    assert torch.isnan(Errors(lambda: functional.cross_entropy(SCORES * torch.nan, TARGETS))())


def test_the_loss_is_computed_as_it_always_is():
    plain = functional.cross_entropy(SCORES, TARGETS)
    seen = []
    Errors(lambda: seen.append(functional.cross_entropy(SCORES, TARGETS)) or seen[0])()
    assert torch.equal(seen[0], plain)


def test_a_batch_without_answers_does_not_hide_those_of_others():
    errors = Errors(lambda targets: functional.cross_entropy(SCORES, targets, reduction="sum"))
    assert float(errors(TARGETS)) == 0.5
    assert float(errors(torch.full((4,), -100))) == 0
    assert errors.seen


def test_a_loss_of_single_examples_under_vmap_is_judged_by_itself():
    def loss():
        return torch.func.vmap(functional.cross_entropy)(SCORES, TARGETS).mean()

    errors = Errors(loss)
    assert float(errors()) == 0
    assert not errors.seen


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_loss_is_counted(whole):
    loss = torch.compile(
        lambda scores: functional.cross_entropy(2 * scores, TARGETS), backend="eager",
        fullgraph=whole,
    )  # fmt: skip
    before = loss(SCORES)
    errors = Errors(loss)
    assert [float(errors(SCORES)), float(errors(-SCORES))] == [0.5, 0.875]
    assert errors.seen
    assert torch.equal(loss(SCORES), before)


@pytest.mark.parametrize(
    ("loss", "single"),
    [
        (lambda: functional.cross_entropy(SCORES, TARGETS), False),
        (lambda: functional.cross_entropy(SCORES, TARGETS, reduction="sum"), False),
        (lambda: functional.cross_entropy(SCORES, TARGETS, reduction="none").mean(), True),
        (lambda: nn.CrossEntropyLoss(reduction="none")(SCORES, TARGETS).mean(), True),
        (lambda: functional.nll_loss(SCORES, TARGETS, None, None, -100, None, "none").mean(), True),
        (lambda: nn.BCEWithLogitsLoss(reduction="none")(SCORES, 0 * SCORES).mean(), True),
        (lambda: nn.BCEWithLogitsLoss()(SCORES, 0 * SCORES), False),
    ],
)  # fmt: skip
def test_whether_answers_may_be_masked_out(loss, single):
    errors = Errors(loss)
    errors()
    assert errors.single == single
