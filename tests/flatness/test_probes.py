"""Probes are draws of the published stream, in any grouping."""

import numpy as np
import pytest
import torch

from antipgd.flatness import probes
from antipgd.flatness.probes import LANCZOS, RESIDUAL, SHARPNESS, SKETCH, Probes
from antipgd.noise import draws

CPU = torch.device("cpu")
SIZES = {"a.weight": 300, "a.bias": 1, "b": 129}


def made(law="rademacher", dtype=torch.float64, seed=7):
    return Probes(seed, list(SIZES), list(SIZES.values()), dtype, CPU, law)


@pytest.mark.parametrize("law", ["rademacher", "gaussian", "uniform", "laplace", "student-t:5"])
@pytest.mark.parametrize("use", [SKETCH, RESIDUAL, LANCZOS, SHARPNESS])
def test_probes_are_the_stream_with_its_own_purpose(law, use):
    rows = made(law).rows(use, 3, 2).numpy()
    for k in range(2):
        expected = [draws(7, name, use + 3 + k, 0, size, law, purpose="probe")
                    for name, size in SIZES.items()]  # fmt: skip
        assert np.array_equal(rows[k], np.concatenate(expected))


@pytest.mark.parametrize("law", ["rademacher", "gaussian"])
def test_any_grouping_gives_the_same_probes(law, monkeypatch):
    whole = made(law).rows(SKETCH, 0, 5)
    monkeypatch.setattr(probes, "_CHUNK", 600)
    assert torch.equal(made(law).rows(SKETCH, 0, 5), whole)
    assert torch.equal(made(law).rows(SKETCH, 3, 2), whole[3:])
    assert made(law).rows(SKETCH, 0, 0).shape == (0, 430)


def test_the_way_of_other_devices(monkeypatch):
    """Drawn by torch, row by row."""
    expected, other = made("gaussian").rows(SKETCH, 1, 3), made("gaussian")
    monkeypatch.setattr(
        other, "_draw",
        lambda key, steps, start, stop: torch.stack(
            [probes.draw_range(key, int(k), start, stop, other.law, CPU) for k in steps]
        ),
    )  # fmt: skip
    assert torch.equal(other.rows(SKETCH, 1, 3), expected)


def test_signs():
    rows = made().rows(SKETCH, 0, 64)
    assert set(rows.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(rows.mean())) < 5 / rows.numel() ** 0.5
    assert made(dtype=torch.float32).rows(SKETCH, 0, 1).dtype == torch.float32


def test_seeds_uses_and_names_have_streams_of_their_own():
    rows = [made().rows(SKETCH, 0, 1), made(seed=8).rows(SKETCH, 0, 1), made().rows(RESIDUAL, 0, 1),
            made().rows(SKETCH, 1, 1)]  # fmt: skip
    for k, one in enumerate(rows):
        for other in rows[:k]:
            assert abs(float((one * other).mean())) < 5 / 430**0.5
    assert not torch.equal(*(made().rows(SKETCH, 0, 1)[0, part] for part in
                             (slice(129), slice(301, 430))))  # fmt: skip


def test_bad_seeds():
    for seed in (-1, 2**64, 1.5, "0", True):
        with pytest.raises(ValueError, match=r"seed must be an integer from 0 to 2\*\*64 - 1"):
            made(seed=seed)
