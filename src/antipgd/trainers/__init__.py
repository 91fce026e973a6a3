"""Callbacks for trainers: `trainers.lightning` and `trainers.transformers`, each with an extra.

Conveniences: all they do can be done with `antipgd.torch` and `antipgd.flatness` in a loop by hand.
Nothing is imported here: each module brings its host.
"""
