"""What must be set before any test imports what it depends on."""

import os

from hypothesis import settings

os.environ.setdefault("TRITON_INTERPRET", "1")  # read once, when something first imports Triton

# Hypothesis draws the same examples every time: a test that fails must fail again.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
