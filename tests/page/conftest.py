"""The browser test is collected only when asked for: `make test PAGE=1`."""

import json
import math
import os
import shutil

import numpy as np
import pytest

from antipgd.noise import draws

collect_ignore_glob = [] if os.environ.get("PAGE") == "1" else ["test_*.py"]


@pytest.fixture(scope="module")
def chromium():
    """Debian's chromium, headless."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium")
    assert found, "the page needs Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lib(chromium):
    """A function that runs JavaScript in which the playground's modules are stream_js, …"""
    from antipgd.paper.playground import joined

    page = chromium.new_page()

    def run(code, given=None):
        body = f'"use strict"; {joined()} return JSON.stringify((() => {{ {code} }})())'
        return json.loads(page.evaluate(f"(given) => {{ {body} }}", given))

    yield run
    page.close()


@pytest.fixture(scope="session")
def regression():
    """The playground's data, as its page says: inputs are draws, a tenth of the target is one."""
    from antipgd.paper.simulation.problems import QuadraticRegression
    from antipgd.paper.simulation.problems.quadratic_regression import Data

    def made(seed, d):
        n, nonzero = math.ceil(2 * d / 5), math.ceil(d / 10)
        X = np.array([draws(seed, "X", i + 1, 0, d, purpose="data") for i in range(n)], np.float64)
        target = (np.arange(d) < nonzero).astype(np.float64)
        return QuadraticRegression(d=d, n=n, nonzero=nonzero), Data(X, X @ target, X, X @ target)

    return made
