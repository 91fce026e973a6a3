"""Probes: random signs for Hutchinson's estimator, from the stream's purpose `probe`.

Probe k of a parameter is a pure function of (seed, parameter's name, k): the same on every machine
and rank, and common to all estimates made with one seed, so that differences of two models are
measured with common probes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from antipgd.noise.laws import Law, as_law
from antipgd.noise.stream import philox, stream_key
from antipgd.noise.transforms import NUMPY, unit_draws
from antipgd.torch.kernel import draw_range

# Each use of probes has its own steps of the stream.
SKETCH, RESIDUAL, LANCZOS, SHARPNESS, HOLDING, FAR = (use << 32 for use in range(1, 7))
# Eight signs for each value of a byte, +1 where a bit is not set.
_SIGNS = np.float32(1) - 2 * np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
).astype(np.float32)
_CHUNK = 2**20  # elements at a time, which bounds the temporaries


class Probes:
    """Probe vectors over several parameters, laid end to end."""

    def __init__(
        self,
        seed: int,
        names: Sequence[str],
        sizes: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        law: Law | str = "rademacher",
    ) -> None:
        self.keys = [stream_key(seed, name, "probe") for name in names]
        self.sizes = list(sizes)
        self.law = as_law(law)
        self.dtype, self.device = dtype, device

    def rows(self, use: int, first: int, count: int) -> Tensor:
        """Probes first … first+count−1 of a use, one in each row, of unit standard deviation."""
        rows = torch.empty(count, sum(self.sizes), dtype=self.dtype, device=self.device)
        steps = use + first + np.arange(count, dtype=np.uint64)
        parts = rows.split(self.sizes, dim=1)
        for key, part in zip(self.keys, parts, strict=True):
            at_once = max(1, _CHUNK // max(1, count) // self.law.per_block) * self.law.per_block
            for start in range(0, part.shape[1] if count else 0, at_once):
                stop = min(part.shape[1], start + at_once)
                part[:, start:stop] = self._draw(key, steps, start, stop)
        return rows

    def _draw(self, key: int, steps: np.ndarray, start: int, stop: int) -> Tensor:
        if self.device.type == "cpu":  # all rows in one go: many probes of small models
            return torch.from_numpy(_draws(key, steps, start, stop, self.law))
        rows = [draw_range(key, int(k), start, stop, self.law, self.device) for k in steps]
        return torch.stack(rows)


def _draws(key: int, steps: np.ndarray, start: int, stop: int, law: Law) -> np.ndarray:
    """Unit draws at several steps, elements start … stop−1; start is the first of a block."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    blocks = np.arange(start // law.per_block, -(-stop // law.per_block), dtype=np.uint64)
    counter = np.empty((len(steps), len(blocks), 4), np.uint32)
    counter[..., 0], counter[..., 1] = blocks & low, blocks >> half
    counter[..., 2], counter[..., 3] = (steps & low)[:, None], (steps >> half)[:, None]
    words = philox(counter, key)
    if law.name == "rademacher":
        drawn = _SIGNS.take(words.astype("<u4", copy=False).view(np.uint8), axis=0)
    else:
        signed = words.view(np.int32)
        drawn = np.stack(unit_draws(tuple(np.moveaxis(signed, -1, 0)), law, NUMPY), axis=-1)
    return drawn.reshape(len(steps), -1)[:, : stop - start]
