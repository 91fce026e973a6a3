"""What must be set before any test imports what it depends on, and what many tests need."""

import os

import pytest
from hypothesis import settings

# Two workers whose torch has two threads each spend most of their time waiting for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # read once, when something first imports Triton

# Hypothesis draws the same examples every time: a test that fails must fail again.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def no_lines(monkeypatch):
    """A log says what takes long, which on a busy machine anything does."""
    monkeypatch.setattr("antipgd.paper.progress.SELDOM", float("inf"))
