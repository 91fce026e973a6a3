"""What a long command shows while it works: the stage, how much is done, how long it will take.

A bar on a terminal; elsewhere a line for every tenth, if tenths take long, so that a log tells as
much. Knows amounts and names, not what is done.
"""

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

SURE = 0.01  # of all is done before the rest is estimated
SELDOM = 20.0  # seconds, at least, between two lines of a log

_shown: list["Progress"] = []  # the bar on the terminal, which messages must not break


def say(message: str) -> None:
    """To the user, above the bar if there is one."""
    if _shown and _shown[-1].console is not None:
        _shown[-1].console.print(message, markup=False, highlight=False, soft_wrap=True)
    else:
        print(message, file=sys.stderr)


def spoken(seconds: float) -> str:
    """A time as one says it.

    >>> [spoken(s) for s in (8, 100, 3599, 9000)]
    ['8 s', '2 min', '60 min', '2.5 h']
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


class Progress:
    """Amounts done of a total, things done of a count, and the time that is left.

    The rate is that of all that is done: `total` weighs the parts by the time they take.
    """

    def __init__(
        self, stage: str, total: float, count: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stage, self.total, self.count, self._clock = stage, total, count, clock
        self.done, self.ended, self.name = 0.0, 0, ""
        self.console: Any = None
        self._began = clock()
        self._lock = threading.Lock()
        self._change: Callable[[], None] = lambda: None

    def tick(self, amount: float) -> None:
        """So much more is done; from any thread."""
        with self._lock:
            self.done += amount
        self._change()

    def finish(self, name: str = "") -> None:
        """One of the things is done; `name` says what it belongs to."""
        with self._lock:
            self.ended, self.name = self.ended + 1, name or self.name
        self._change()

    @property
    def share(self) -> float:
        """Of all that is to be done."""
        return min(1.0, self.done / self.total) if self.total else 1.0

    @property
    def took(self) -> float:
        """Seconds up to now."""
        return self._clock() - self._began

    @property
    def left(self) -> float | None:
        """Seconds to go, None before anything can be said."""
        if self.share < SURE:
            return None
        return self.took * (1 - self.share) / self.share

    def line(self) -> str:
        """All of it in a line."""
        left = "" if self.left is None else f", about {spoken(self.left)} left"
        name = f", {self.name}" if self.name else ""
        count = f"{self.ended:,} of {self.count:,}"
        return f"{self.stage}: {self.share:.0%}, {count}{name}, {spoken(self.took)}{left}"


@contextmanager
def progress(stage: str, total: float, count: int, show: bool | None = None) -> Generator[Progress]:
    """A bar or lines while the context lasts; `show=False` shows nothing."""
    it = Progress(stage, total, count)
    if show is False:
        yield it
    elif sys.stderr.isatty() or show:
        with _bar(it):
            yield it
    else:
        it._change = _lines(it)
        yield it


def _lines(it: Progress) -> Callable[[], None]:
    """A line at every tenth, if the last one is some time ago."""
    told = [0, 0.0]

    def change() -> None:
        tenth = int(it.share * 10)
        if tenth > told[0] and it.took - told[1] >= SELDOM:
            told[:] = tenth, it.took
            say(it.line())

    return change


@contextmanager
def _bar(it: Progress) -> Generator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    it.console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
    with Bar(*columns, console=it.console, transient=True, refresh_per_second=4) as bar:
        task = bar.add_task(it.stage, total=1.0, told="")

        def change() -> None:
            told = it.line().partition(": ")[2]
            bar.update(task, completed=it.share, told=told)

        it._change = change
        change()
        _shown.append(it)
        try:
            yield
        finally:
            _shown.remove(it)
