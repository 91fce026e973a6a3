"""The same noise in JAX, as Optax transformations.

`perturb` and `perturbed` make noisy weights where the gradient is taken, and the params stay clean;
`add_correlated_noise`, last in the chain, lets the params carry the noise.
Needs optax and JAX (the `optax` extra). Draws are those of NumPy and torch: words equal, floats
within 4 ulp; see docs/optax.md.
"""

from antipgd.extras import needed_by

with needed_by("antipgd.optax", "optax"):
    import jax as _jax  # noqa: F401
    import optax as _optax  # noqa: F401

from antipgd.optax.adding import add_correlated_noise
from antipgd.optax.cleaning import clean_params
from antipgd.optax.perturbing import perturb, perturbed
from antipgd.optax.sgd import anti_pgd
from antipgd.optax.state import STATIC_ARGS, CorrelatedNoiseState

__all__ = [
    "STATIC_ARGS",
    "CorrelatedNoiseState",
    "add_correlated_noise",
    "anti_pgd",
    "clean_params",
    "perturb",
    "perturbed",
]
