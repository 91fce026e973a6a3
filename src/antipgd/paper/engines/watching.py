"""Nobody works for nobody: a process ends when its work is wanted no more, even inside a call that
tells nothing; and a driver that is told to end takes the way of Ctrl-C, which stops its workers.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_SECONDS = 1.0  # between two looks
PATIENCE = 15.0  # seconds, for whoever can be expected to notice by himself


@contextlib.contextmanager
def watched(unwanted: Callable[[], bool], telling: Callable[[], bool]) -> Iterator[None]:
    """Inside, this process ends once its work is unwanted: at once if it does not tell, else after
    the time that it may need to notice and leave a checkpoint."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SECONDS):
            if unwanted() and not (telling() and done.wait(PATIENCE)):
                os._exit(1)  # an exception would wait for the call to return

    threading.Thread(target=watch, name="antipgd-watch", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP are what Ctrl-C is; what ignores or handles them already stays."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
