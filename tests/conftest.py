"""Shared by all tests: the benchmarks folder is importable, hypothesis does not hurry."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

settings.register_profile("antipgd", deadline=None)
settings.load_profile("antipgd")
