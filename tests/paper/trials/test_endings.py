"""How a command and its workers end, each in the middle of a call: nothing is lost or left over."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MODULE = """
import multiprocessing, os, time


def call(seed, seconds=0.0, folder=None):
    part = folder / "part"
    part.write_text(str(os.getpid()))
    os.replace(part, folder / "pid")
    time.sleep(seconds)
    return {"pid": os.getpid()}


def double(value, queue):
    queue.put(2 * value)


def parent(seed):
    here = multiprocessing.get_context("spawn")
    queue = here.Queue()
    child = here.Process(target=double, args=(seed, queue))
    child.start()
    found = queue.get(timeout=60)
    child.join()
    return {"twice": found}
"""


# Shells that start us in the background, and nohup, let signals be ignored. A `preexec_fn` would
# mend that by a fork, of which JAX warns once another test has loaded it.
HEED = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def start(tmp_path):
    """A command in a session of its own, with the module beside it."""
    (tmp_path / "calls.py").write_text(MODULE)
    begun = []

    def command(*words):
        process = subprocess.Popen(
            [sys.executable, "-c", HEED, *words],
            cwd=tmp_path, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        begun.append(process)
        return process

    yield command
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def trying(start, seconds, *more):
    words = f"-m antipgd try calls:call --seeds 1 --threads 1 --set seconds={seconds} --out out"
    return start(*words.split(), *more)


def within(seconds, found):
    until = time.monotonic() + seconds
    while not (there := found()):
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)
    return there


def caller(tmp_path):
    """The process that is in the call, once it is."""
    pid = within(60, lambda: list((tmp_path / "out").rglob("pid")))[0]
    return int(pid.read_text())


def alive(pid):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def stored(tmp_path, kind="record"):
    return list((tmp_path / "out" / "store").rglob(f"{kind}/*/*.json"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_call_that_ends_soon_is_waited_for_and_kept(number, start, tmp_path):
    """The signal goes to all, as a terminal's does; a second command finds the call stored."""
    command = trying(start, 3)
    worker = caller(tmp_path)
    if number == signal.SIGTERM:
        command.send_signal(number)
    else:
        os.killpg(command.pid, number)
    said = command.communicate(timeout=30)[1]
    assert command.returncode == 130, said
    assert "interrupted; the same command goes on" in said
    assert "waiting up to 15 s for calls:call seconds=3" in said
    assert not alive(worker)
    assert (len(stored(tmp_path)), len(stored(tmp_path, "failure"))) == (1, 0)
    assert "1 found stored and 0 run" in trying(start, 3).communicate(timeout=60)[0]


def test_a_second_ctrl_c_ends_a_long_call_at_once(start, tmp_path):
    command = trying(start, 600)
    worker, began = caller(tmp_path), time.monotonic()
    command.send_signal(signal.SIGINT)
    time.sleep(2)
    assert alive(worker)
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=30)
    assert command.returncode == 130
    assert time.monotonic() - began < 12
    assert not alive(worker)
    assert not stored(tmp_path)
    assert not stored(tmp_path, "failure")


def test_a_killed_command_leaves_nobody_behind(start, tmp_path):
    """Else the same command, started again, would work beside it in the same folder."""
    command = trying(start, 600)
    worker = caller(tmp_path)
    command.kill()
    command.wait()
    within(5, lambda: not alive(worker))


def test_two_commands_do_not_try_in_one_folder(start, tmp_path):
    first = trying(start, 600)
    caller(tmp_path)
    plan = (tmp_path / "out" / "plan.json").read_bytes()
    second = trying(start, 5)
    said = second.communicate(timeout=60)[1]
    assert second.returncode == 1
    assert "another command is running in" in said
    assert (tmp_path / "out" / "plan.json").read_bytes() == plan
    assert first.poll() is None


def test_a_function_may_start_processes(start, tmp_path):
    command = start(*"-m antipgd try calls:parent --seeds 3 --threads 1 --out out".split())
    out, said = command.communicate(timeout=120)
    assert "3 of 3 trials done" in out, said


SCRIPT = """
from antipgd.paper import try_function
{guard}try_function("calls:call", seeds=2, out="out", threads=1, show_progress=False)
"""


def test_a_script_without_a_guard_is_told_so_and_nothing_is_stored(start, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(guard=""))
    command = start("script.py")
    said = command.communicate(timeout=60)[1]
    assert command.returncode != 0
    assert 'put the call below `if __name__ == "__main__":`' in said
    assert "EngineError: a worker never began: the process ended with exit code 1" in said
    assert not stored(tmp_path, "failure")
    (tmp_path / "script.py").write_text(SCRIPT.format(guard='if __name__ == "__main__": '))
    assert start("script.py").wait(60) == 0
    assert len(stored(tmp_path)) == 2
