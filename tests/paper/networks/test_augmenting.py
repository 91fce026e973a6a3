"""Flips and shifts, against images moved pixel by pixel, and by how often each happens."""

import math

import pytest
import torch

from antipgd.paper.networks.augmenting import Changes, changed, epoch_changes, margin_of
from antipgd.paper.networks.evaluate import loss_and_accuracy
from antipgd.paper.networks.examples import epoch_order, make_examples
from antipgd.paper.networks.models import make_network
from antipgd.paper.networks.spec import make_training
from antipgd.paper.networks.train import train


def pixel_by_pixel(image, mirrored, down, right):
    _, height, width = image.shape
    moved = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                moved[:, y, width - 1 - x if mirrored else x] = image[:, y - down, x - right]
    return moved


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("augment", ["flip", "flip_crop"])
def test_images_are_moved_and_then_mirrored(augment, layout):
    images = torch.randn(40, 3, 16, 8, generator=torch.Generator().manual_seed(0))
    images = images.contiguous(memory_format=layout)
    changes = epoch_changes(augment, 0, 1, 40, (16, 8))
    found = changed(images, changes)
    assert found.is_contiguous(memory_format=layout)
    rows = zip(images, changes.mirrored, changes.down.tolist(), changes.right.tolist(), strict=True)
    assert torch.equal(found, torch.stack([pixel_by_pixel(*row) for row in rows]))
    few = torch.tensor([7, 3, 31])
    assert torch.equal(changed(images[few], changes.of(few)), found[few])


def test_nothing_is_changed_where_nothing_happens():
    images = torch.randn(5, 1, 8, 8)
    still = torch.zeros(5, dtype=torch.int64)
    assert torch.equal(changed(images, Changes(still.bool(), still, still)), images)


def test_how_often_each_happens():
    """Sizes fixed beforehand; four standard deviations."""
    count, side = 40_000, 32
    found = epoch_changes("flip_crop", 3, 2, count, (side, 16))
    assert float(found.mirrored.double().mean()) == pytest.approx(0.5, abs=4 * 0.5 / count**0.5)
    for shifts, margin in ((found.down, 4), (found.right, 2)):
        counts = torch.bincount(shifts + margin, minlength=2 * margin + 1).double()
        assert len(counts) == 2 * margin + 1
        share = 1 / len(counts)
        spread = 4.5 * math.sqrt(share * (1 - share) / count)
        assert float((counts / count - share).abs().max()) < spread
    pairs = torch.corrcoef(torch.stack([x.double() for x in (found.mirrored, found.down,
                                                             found.right)]))  # fmt: skip
    assert float((pairs - torch.eye(3)).abs().max()) < 4.5 / count**0.5


def test_it_depends_on_seed_epoch_and_image_alone():
    one = epoch_changes("flip_crop", 0, 1, 100, (8, 8))
    again, fewer = (epoch_changes("flip_crop", 0, 1, n, (8, 8)) for n in (100, 60))
    assert torch.equal(one.down, again.down)
    assert torch.equal(one.down[:60], fewer.down)
    for seed, epoch in ((1, 1), (0, 2)):
        assert not torch.equal(one.down, epoch_changes("flip_crop", seed, epoch, 100, (8, 8)).down)
    assert torch.equal(epoch_changes("flip", 0, 1, 100, (8, 8)).mirrored, one.mirrored)
    assert not epoch_changes("flip", 0, 1, 100, (8, 8)).down.any()
    assert [margin_of(side) for side in (4, 8, 16, 28, 32)] == [1, 1, 2, 3, 4]


def test_a_training_sees_them_and_measures_plain_images(tmp_path):
    run = make_training(
        "digits", "mlp", "gd", batch=50, epochs=2, seed=0, images=200, width=4, momentum=0.0,
        augment="flip_crop",
    )  # fmt: skip
    record = train(run, tmp_path)
    examples = make_examples(run)
    images, labels = examples.train
    model = make_network("mlp", 4, examples.shape, 10, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in (1, 2):
        changes = epoch_changes("flip_crop", 0, epoch, 200, (8, 8))
        seen = torch.stack([
            pixel_by_pixel(image, bool(changes.mirrored[i]), int(changes.down[i]),
                           int(changes.right[i])) for i, image in enumerate(images)
        ])  # fmt: skip
        for rows in epoch_order(0, epoch, 200).reshape(-1, 50):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(seen[rows]), labels[rows]).backward()
            optimizer.step()
    found = torch.load(tmp_path / run.name / "clean-at-end.pt", weights_only=True)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=1e-4, atol=1e-5)
    loss, _ = loss_and_accuracy(model, examples.train)
    assert record.column("train_loss", "w")[1][-1] == pytest.approx(loss, rel=1e-4)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"unknown augment .crop.; .*accepted: none, flip, flip_c"):
        make_training("digits", "cnn", "gd", batch=50, epochs=1, seed=0, augment="crop")
