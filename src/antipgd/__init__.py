"""Anticorrelated noise for training: flatter minima, one line of code.

w ← w − η∇L(w) + (ξ_{n+1} − ξ_n), eq:def_antiPGD of "Anticorrelated Noise Injection for
Improved Generalization" (Orvieto et al., ICML 2022).

Importing this package loads NumPy and nothing else; `antipgd.torch` and
`antipgd.optax` load torch and JAX when first used.
"""

import importlib
from types import ModuleType

from antipgd import noise

__version__ = "0.1.0"
__all__ = ["__version__", "noise", "optax", "torch"]


def __getattr__(name: str) -> ModuleType:
    if name in ("optax", "torch"):
        return importlib.import_module(f"antipgd.{name}")
    raise AttributeError(f"module 'antipgd' has no attribute {name!r}")
