"""The GPU kernel on CPU tensors, through Triton's interpreter: slow, and the same bits."""

from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch

from antipgd.noise import as_law, stream_key
from antipgd.noise.injection import combine
from antipgd.noise.stream import key_draws
from antipgd.torch.gpu import choosing, launching

KEY = stream_key(3, "weight")
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@contextmanager
def as_if_on_gpus():
    """Inside, CPU tensors are taken for those of a GPU."""
    with patch.object(choosing, "DEVICES", ("cuda", "cpu")):
        yield


def weights(shape, dtype, seed=0):
    made = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    return made.to(dtype)


def expected(w, key, newest, coefficients, law, start=0):
    """What the reference makes of contiguous weights, rounded to nearest by torch."""
    wide = torch.float64 if w.dtype == torch.float64 else torch.float32

    def draw(step):
        return key_draws(key, step, start, start + w.numel(), as_law(law)).reshape(w.shape)

    eps = combine(coefficients, newest, draw, np.dtype(str(wide).removeprefix("torch.")))
    return w.clone() if eps is None else (w.to(wide) + torch.from_numpy(eps)).to(w.dtype)


def injected(w, key, newest, coefficients, law, shard=None):
    """What the kernel makes of a copy that lies as `w` does."""
    out = w.clone()
    assert out.stride() == w.stride()
    targets = launching.Targets([out], [key], [shard], as_law(law))
    targets.inject(newest, np.array([coefficients], np.float64))
    return out


def same(a, b):
    """Bit for bit, signs of zeros too."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.view(integers), b.view(integers))


@contextmanager
def capturing():
    """Inside, a CUDA graph is taken to be captured."""
    with (
        patch.object(torch.cuda, "is_initialized", lambda: True),
        patch.object(torch.cuda, "is_current_stream_capturing", lambda: True),
    ):
        yield


class Graph:
    """The launches of a block, as a captured graph has them: memory, not numbers."""

    def __init__(self):
        self.launches = []

    @contextmanager
    def capture(self):
        """Keep the launches that are made inside."""
        real = launching.launch

        def kept(*given):
            self.launches.append(given)
            real(*given)

        with patch.object(launching, "launch", kept), capturing():
            yield

    def replay(self):
        """Launch all again; what each of them has added."""
        for given in self.launches:
            launching.launch(*given)
        return [(target - source).detach() for source, target, *_ in self.launches]
