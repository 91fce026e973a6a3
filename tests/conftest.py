"""Shared by all tests: hypothesis does not hurry on a busy machine."""

from hypothesis import settings

settings.register_profile("antipgd", deadline=None)
settings.load_profile("antipgd")
