"""The same noise in JAX, as an Optax transformation that goes last in the chain.

Needs optax (the `optax` extra). Draws are those of NumPy and torch: words equal, floats within
4 ulp; see docs/optax.md.
"""

try:
    import optax as _optax  # noqa: F401
except ImportError as error:
    raise ImportError("antipgd.optax needs optax: pip install 'antipgd[optax]'") from error

from antipgd.optax.adding import CorrelatedNoiseState, add_correlated_noise
from antipgd.optax.cleaning import clean_params
from antipgd.optax.sgd import anti_pgd

__all__ = ["CorrelatedNoiseState", "add_correlated_noise", "anti_pgd", "clean_params"]
