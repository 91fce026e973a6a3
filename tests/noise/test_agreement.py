"""One stream in five libraries: words equal everywhere, draws bitwise but for JAX (4 ulp)."""

import pytest

from antipgd.noise import as_law, stream_key
from stream_backends import BACKENDS, LAWS, compare, has

ALLOWED_ULP = {"numba": 0, "torch": 0, "jax": 4, "triton": 0}
PLACES = [(1, 0), (3, 7), (2**32 + 9, 2**32 - 20)]  # (step, first block), across both carries


@pytest.mark.parametrize(
    ("backend", "law"), [(b, law) for b in list(BACKENDS)[1:] for law in LAWS if has(b, law)]
)
def test_agrees_with_numpy(backend, law):
    for seed, (step, first_block) in enumerate(PLACES):
        key = stream_key(seed, "layer1.weight")
        words, draws, ulp, _ = compare(backend, key, step, first_block, 200, as_law(law))
        assert words == 0
        assert ulp <= ALLOWED_ULP[backend]
        assert draws == 0 or ALLOWED_ULP[backend] > 0
