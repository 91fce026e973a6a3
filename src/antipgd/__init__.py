"""Anticorrelated noise for training: flatter minima, one line of code.

w ← w − η∇L(w) + (ξ_{n+1} − ξ_n), eq:def_antiPGD of "Anticorrelated Noise Injection for
Improved Generalization" (Orvieto et al., ICML 2022).

Importing this package loads NumPy and nothing else; its other rooms load what they need, torch or
JAX among it, when first used.
"""

import importlib
from types import ModuleType

from antipgd import noise

__version__ = "0.1.0"
__all__ = ["__version__", "flatness", "noise", "optax", "paper", "theory", "torch", "trainers"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"antipgd.{name}")
    raise AttributeError(f"module 'antipgd' has no attribute {name!r}")
