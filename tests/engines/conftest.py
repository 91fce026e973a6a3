"""What must be set before Ray starts; and what submitit and Ray leave open is theirs, not ours."""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # else they starve beside other tests


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")
    config.addinivalue_line("filterwarnings", "ignore::ResourceWarning")
