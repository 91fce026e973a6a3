"""Derivations of the formulas of `antipgd.theory`, run by sympy: `make proofs`.

One file for each module of the theory, one function for each derivation; docs/theory.md has its
name beside each formula. A derivation begins with the recursion, the definition or the law of the
draws, never with the formula, and ends with what the code returns: `comparing`.
"""
