"""A missing host names its extra; the package itself brings none."""

import subprocess
import sys

import pytest


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("host", ["lightning", "transformers"])
def test_a_missing_host_names_the_extra(host):
    found = run(f"import sys; sys.modules['{host}'] = None; import antipgd.trainers.{host}")
    message = found.stderr.strip().splitlines()[-1]
    assert message.startswith("antipgd.extras.MissingPackageError: antipgd.trainers.")
    assert f"pip install '.[{host}]'" in message


def test_what_the_callbacks_share_brings_no_host_and_no_flatness():
    names = ["lightning", "pytorch_lightning", "transformers", "accelerate", "scipy",
             "antipgd.flatness"]  # fmt: skip
    found = run(
        "import sys, antipgd.trainers.within_steps, antipgd.trainers.measures; "
        f"print([name for name in {names} if name in sys.modules])"
    )
    assert found.stdout.strip() == "[]", found.stderr


def test_the_callbacks_are_found_from_the_package_when_first_used():
    found = run("import sys, antipgd; sys.modules['lightning'] = None; antipgd.trainers.lightning")
    assert "antipgd.trainers.lightning needs lightning" in found.stderr
    assert "no attribute 'others'" in run("import antipgd; antipgd.trainers.others").stderr
