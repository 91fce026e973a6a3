"""The noise on GPUs, as Triton kernels with the bits of the CPU kernels.

Needs triton (the `gpu` extra). Importing this package imports none; `choosing` says who draws.
"""
