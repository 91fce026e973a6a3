"""Subsets and validation parts: balanced, disjoint, the same every time."""

import hashlib
from collections import Counter

import numpy as np
import pytest

from antipgd.noise.stream import stream_key, stream_words
from antipgd.paper.networks.data import Images, load, subset, validation_split
from antipgd.paper.networks.data.choosing import held_out_beside

CLASSES, EACH = 4, 25


@pytest.fixture(scope="module")
def images():
    """The pixel of each image is its number, so that a choice can be read off."""
    count = CLASSES * EACH
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(CLASSES), EACH))
    numbers = np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1)
    return Images("made", numbers, labels, numbers[:8], labels[:8], tuple("abcd"))


def numbers(pixels):
    return pixels.reshape(-1).tolist()


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_subset_is_balanced_and_its_labels_go_with_the_images(images, seed):
    chosen = subset(images, per_class=7, seed=seed)
    rows = numbers(chosen.train_images)
    assert Counter(chosen.train_labels.tolist()) == dict.fromkeys(range(CLASSES), 7)
    assert rows == sorted(set(rows))
    assert (images.train_labels[rows] == chosen.train_labels).all()
    assert numbers(chosen.test_images) == numbers(images.test_images)


def test_without_a_seed_the_first_of_every_class(images):
    rows = numbers(subset(images, total=8).train_images)
    for label in range(CLASSES):
        first = np.flatnonzero(images.train_labels == label)[:2].tolist()
        assert [row for row in rows if images.train_labels[row] == label] == first


def test_a_seed_gives_one_subset_and_another_seed_another(images):
    chosen = [subset(images, per_class=7, seed=seed).digest for seed in (0, 0, 1, 2)]
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) == 3


def test_larger_subsets_contain_smaller_ones(images):
    sizes = [set(numbers(subset(images, per_class=n, seed=3).train_images)) for n in (1, 7, 20, 25)]
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3]
    assert len(sizes[3]) == CLASSES * EACH


def test_the_order_is_that_of_the_words_of_the_stream(images):
    words = stream_words(stream_key(5, "made.subset", "data"), 2, 0, 13).reshape(-1).tolist()
    places = [words[2 * i] + 2**32 * words[2 * i + 1] for i in range(EACH)]
    rows = np.flatnonzero(images.train_labels == 2).tolist()
    expected = {row for _, row in sorted(zip(places, rows, strict=True))[:6]}
    chosen = subset(images, per_class=6, seed=5)
    assert set(numbers(chosen.train_images[chosen.train_labels == 2])) == expected


def test_every_image_is_as_likely_as_another(images):
    """400 seeds, 5 of 25: 80 times each, standard deviation 8; the bounds are 4.5 of these."""
    found = Counter()
    for seed in range(400):
        found.update(numbers(subset(images, per_class=5, seed=seed).train_images))
    assert len(found) == CLASSES * EACH
    assert 44 <= min(found.values()) <= max(found.values()) <= 116


def test_the_global_generator_is_left_alone(images):
    def state():
        return hashlib.md5(repr(np.random.get_state()).encode()).hexdigest()  # noqa: NPY002

    before = state()
    subset(images, per_class=2, seed=0)
    validation_split(images, 0.2, seed=0)
    load("digits")
    assert state() == before


def test_a_validation_part_is_balanced_disjoint_and_complete(images):
    split = validation_split(images, 0.2, seed=0)
    kept, moved = numbers(split.train_images), numbers(split.validation_images)
    assert sorted(kept + moved) == list(range(CLASSES * EACH))
    assert Counter(split.validation_labels.tolist()) == dict.fromkeys(range(CLASSES), 5)
    assert (images.train_labels[moved] == split.validation_labels).all()
    assert (images.train_labels[kept] == split.train_labels).all()
    assert numbers(split.test_images) == numbers(images.test_images)


def test_a_validation_part_depends_on_its_seed_alone(images):
    digests = [validation_split(images, 0.2, seed=seed).digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


def test_a_subset_of_what_is_left_keeps_clear_of_the_validation_part(images):
    split = subset(validation_split(images, 0.4, seed=0), per_class=15, seed=0)
    assert not set(numbers(split.train_images)) & set(numbers(split.validation_images))


def test_validation_is_not_the_subset_of_the_same_seed(images):
    moved = numbers(validation_split(images, 0.2, seed=0).validation_images)
    assert moved != numbers(subset(images, per_class=5, seed=0).train_images)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("total", "held_out"), [(8, 12), (4, 4), (60, 40)])
def test_images_are_held_out_beside_a_subset(images, seed, total, held_out):
    made = held_out_beside(images, total, held_out, seed)
    kept, beside = numbers(made.train_images), numbers(made.validation_images)
    assert (
        made.train_images.tolist() == subset(images, total=total, seed=seed).train_images.tolist()
    )
    assert not set(kept) & set(beside)
    assert beside == sorted(set(beside))
    assert Counter(made.validation_labels.tolist()) == dict.fromkeys(range(4), held_out // 4)
    assert (images.train_labels[beside] == made.validation_labels).all()
    assert numbers(made.test_images) == numbers(images.test_images)
    both = subset(images, total=total + held_out, seed=seed)  # the very next ones, none between
    assert sorted(kept + beside) == numbers(both.train_images)


@pytest.mark.parametrize(("total", "held_out", "message"), [
    (8, 10, "held_out must be a multiple of the 4 classes; got 10"),
    (10, 8, "total must be a multiple of the 4 classes; got 10"),
    (60, 44, "from 1 to 25 training images for every class; got 26 per class"),
])  # fmt: skip
def test_impossible_images_beside(images, total, held_out, message):
    with pytest.raises(ValueError, match=message):
        held_out_beside(images, total, held_out, 0)


def test_unequal_classes_give_the_same_fraction_each():
    digits = load("digits")
    split = validation_split(digits, 0.1, seed=0)
    counts = np.bincount(digits.train_labels)
    assert np.bincount(split.validation_labels).tolist() == [
        round(0.1 * n) for n in counts.tolist()
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either per_class or total; got per_class=None, total=None"),
        ({"per_class": 1, "total": 4}, "either per_class or total; got per_class=1, total=4"),
        ({"total": 10}, "total must be a multiple of the 4 classes; got 10"),
        ({"total": 0}, "from 1 to 25 training images for every class; got 0 per class"),
        ({"per_class": 26}, "from 1 to 25 training images for every class; got 26 per class"),
        ({"per_class": 2, "seed": -1}, "seed must be an integer from 0"),
    ],
)
def test_impossible_subsets(images, arguments, message):
    with pytest.raises(ValueError, match=message):
        subset(images, **arguments)


@pytest.mark.parametrize(
    ("fraction", "message"),
    [
        (0, "between 0 and 1; got 0"),
        (1.0, "between 0 and 1; got 1.0"),
        (float("nan"), "between 0 and 1; got nan"),
        (0.01, "fraction 0.01 of the 25 training images of class 'a' is 0; both parts need"),
        (0.99, "fraction 0.99 of the 25 training images of class 'a' is 25; both parts need"),
    ],
)
def test_impossible_fractions(images, fraction, message):
    with pytest.raises(ValueError, match=message):
        validation_split(images, fraction, seed=0)


def test_a_second_validation_part_is_refused(images):
    with pytest.raises(ValueError, match="made has a validation part already, of 20"):
        validation_split(validation_split(images, 0.2, seed=0), 0.2, seed=0)
