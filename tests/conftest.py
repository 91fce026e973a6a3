"""Hypothesis draws the same examples every time: a test that fails must fail again."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
