"""The idea: noise with a colour (taps), a law, a schedule, and no state.

A draw ξ is a pure function of (seed, parameter, step, element): see `stream`. An injection is
ε = Σ_j taps[j] · σ · ξ_{n+1−j}: see `injection`. `reference` holds the paper's equations in
plain NumPy; `kernels` (needs numba, the `numba` extra) adds injections to arrays in place.
"""

from antipgd.noise.laws import LAWS, Law, as_law
from antipgd.noise.schedules import Constant, Cosine, Linear, Plateau, Schedule, Steps, Window
from antipgd.noise.stream import PURPOSES, STREAM_VERSION, canonical_name, draws, stream_key
from antipgd.noise.taps import ANTI, WHITE, as_taps

__all__ = [
    "ANTI",
    "LAWS",
    "PURPOSES",
    "STREAM_VERSION",
    "WHITE",
    "Constant",
    "Cosine",
    "Law",
    "Linear",
    "Plateau",
    "Schedule",
    "Steps",
    "Window",
    "as_law",
    "as_taps",
    "canonical_name",
    "draws",
    "stream_key",
]
