"""Callbacks for trainers: `trainers.lightning` needs the `lightning` extra,
`trainers.transformers` the `transformers` extra.

Conveniences: all they do can be done with `antipgd.torch` and `antipgd.flatness` in a loop by hand.
Nothing is imported here: each module brings its host when it is first used.
"""

import importlib
from types import ModuleType

__all__ = ["lightning", "transformers"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"antipgd.trainers.{name}")
    raise AttributeError(f"module 'antipgd.trainers' has no attribute {name!r}")
