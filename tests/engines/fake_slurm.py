"""The four commands of SLURM that submitit needs, for one machine and tests.

`sbatch` starts a script in the background, `srun` is one task, `sacct` says who lives, `scancel`
ends them.
"""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scancel")


def install(folder):
    """The commands in a folder, for the front of PATH."""
    folder.mkdir()
    # Submitit remembers jobs by number for as long as the process lives: none comes twice.
    (folder / "base").write_text(str(time.time_ns() // 1000 * 100))
    for name in COMMANDS:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} {folder} "$@"\n')
        path.chmod(0o755)
    return folder


def scripts(folder):
    """What was submitted, in turn."""
    return [path.read_text() for path in sorted(folder.glob("*.job"), key=lambda p: int(p.stem))]


def turn(folder, number):
    """A job's place in the order of submission, from 1."""
    return int(number) - int((folder / "base").read_text())


def sbatch(folder, *words):
    script = Path(words[-1]).read_text()
    if "partition=none" in script:
        print("sbatch: error: invalid partition specified: none", file=sys.stderr)
        return 1
    count = len(scripts(folder)) + 1
    number = count + int((folder / "base").read_text())
    path = folder / f"{count}.job"
    path.write_text(script)
    node = {"JOB_ID": number, "NTASKS": 1, "PROCID": 0, "NODEID": 0, "LOCALID": 0,
            "JOB_NUM_NODES": 1, "JOB_NODELIST": "here"}  # fmt: skip
    env = os.environ | {f"SLURM_{key}": str(value) for key, value in node.items()}
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL,
             "stderr": subprocess.DEVNULL}  # fmt: skip
    job = subprocess.Popen(["bash", str(path)], env=env, start_new_session=True, **quiet)
    (folder / f"{count}.pid").write_text(str(job.pid))
    print(f"Submitted batch job {number}")
    return 0


def srun(folder, *words):
    words, files = list(words), {}
    while words[0].startswith("-"):
        flag = words.pop(0)
        if flag in ("--output", "--error"):
            files[flag] = words.pop(0).replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0")
    with open(files["--output"], "a") as out, open(files["--error"], "a") as err:
        return subprocess.run(words, stdout=out, stderr=err, check=False).returncode


def alive(folder, count):
    try:
        pid = (folder / f"{count}.pid").read_text()
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def sacct(folder, *words):
    print("JobID|State|NodeList")
    for flag, number in pairwise(words):
        if flag == "-j":
            state = "RUNNING" if alive(folder, turn(folder, number)) else "OUT_OF_MEMORY"
            print(f"{number}|{state}|here")
    return 0


def scancel(folder, number):
    count = turn(folder, number)
    if alive(folder, count):
        os.killpg(int((folder / f"{count}.pid").read_text()), signal.SIGKILL)
    return 0


if __name__ == "__main__":
    name, place, *rest = sys.argv[1:]
    sys.exit({"sbatch": sbatch, "srun": srun, "sacct": sacct, "scancel": scancel}[name](
        Path(place), *rest
    ))  # fmt: skip
