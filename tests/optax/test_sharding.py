"""On a mesh of four CPU devices, in a process of its own: JAX counts its devices only once."""

import os
import subprocess
import sys
from pathlib import Path


def test_the_same_noise_for_every_sharding():
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "mesh.py")],
        env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["auto", "explicit", "shard_map", "pmap"]
