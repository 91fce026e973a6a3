"""The one loop: specs in, results out as they finish, on any engine.

An attempt that is lost is made again, on the same checkpoint, and so probably elsewhere. After so
many losses in a row without a step of progress it is a failure, which says why.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol

from antipgd.paper.engines.engine import (
    Done,
    Engine,
    Future,
    Lost,
    NoRoomError,
    Result,
    Work,
    called,
    failures,
)
from antipgd.paper.pipeline import Made, Tick

_PAUSE, _ASKED = 15.0, 6  # seconds, doubled each time; how often while others are under way


class Specs(Protocol):
    """Which spec comes next, and how its steps count."""

    asked: set[str]

    @property
    def ready(self) -> bool: ...
    def next(self) -> Any: ...
    def done(self, name: str) -> None: ...
    def counted(self, name: str, steps: int) -> int: ...


class Line:
    """Specs in their order, none waiting for another."""

    def __init__(self, specs: Iterable[Any]) -> None:
        self._left = deque(specs)
        self.asked = {spec.name for spec in self._left}

    @property
    def ready(self) -> bool:
        """Whether there is another one."""
        return bool(self._left)

    def next(self) -> Any:
        """The one that comes next."""
        return self._left.popleft()

    def done(self, name: str) -> None:
        """Nobody waits for it."""

    def counted(self, name: str, steps: int) -> int:
        """Steps count as they are."""
        return steps


class _Attempts:
    """What is known of the attempts at each spec."""

    def __init__(self) -> None:
        self._told: Counter[str] = Counter()  # in the present attempt
        self._furthest: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()  # in a row

    def progress(self, name: str, steps: int) -> int:
        """Steps that no attempt before had told of."""
        self._told[name] += steps
        new = max(0, self._told[name] - self._furthest[name])
        self._furthest[name] += new
        if new:
            self._lost[name] = 0
        return new

    def rest(self, name: str, steps: int) -> int:
        """All steps of an attempt that ended without having told of any."""
        return 0 if self._furthest[name] else self.progress(name, steps)

    def lose(self, name: str) -> int:
        """How many were lost in a row, this one included."""
        self._told[name] = 0
        self._lost[name] += 1
        return self._lost[name]


class _Refusals:
    """Of an engine that takes no more: asked again after a while, and then less and less often."""

    def __init__(self) -> None:
        self._count, self._until = 0, 0.0

    @property
    def waiting(self) -> bool:
        """Whether it is not to be asked yet."""
        return time.monotonic() < self._until

    def taken(self) -> None:
        """It has taken something."""
        self._count = 0

    def refused(self) -> float:
        """How many seconds it is left alone now; so often, and then until nothing is under way."""
        self._count += 1
        pause = _PAUSE * 2 ** (self._count - 1) if self._count <= _ASKED else math.inf
        self._until = time.monotonic() + pause
        return pause


class _Hearing:
    """Futures under way on an engine, and those that are to be tried again."""

    def __init__(
        self, specs: Specs, engine: Engine, work: Work, warn: Callable[[str], None]
    ) -> None:
        self.running: list[Future] = []
        self._specs, self._engine, self._work, self._warn = specs, engine, work, warn
        self._again: deque[Any] = deque()
        self._attempts, self._refusals = _Attempts(), _Refusals()

    def give(self) -> bool:
        """Fill the engine; whether anything is under way."""
        while (self._again or self._specs.ready) and len(self.running) < self._engine.slots:
            if self.running and self._refusals.waiting:
                break
            spec = self._again.popleft() if self._again else self._specs.next()
            try:
                self.running.append(self._engine.submit(spec, self._work))
            except NoRoomError as error:
                self._refused(spec, error)
            else:
                self._refusals.taken()
        return bool(self.running)

    def _refused(self, spec: Any, error: NoRoomError) -> None:
        """Keep it for later, if there is anything under way to wait for."""
        if not self.running:
            raise error
        self._again.appendleft(spec)
        pause = self._refusals.refused()
        when = f"in {pause:g} s" if pause < math.inf else "when nothing is under way"
        self._warn(f"{error}; it is asked again {when}, {len(self.running)} jobs go on")

    def progress(self, future: Future, steps: int) -> int:
        """Steps to tell of."""
        name = future.spec.name
        return self._specs.counted(name, self._attempts.progress(name, steps))

    def lost(self, future: Future, lost: Lost) -> Done | None:
        """Try again, or its end as a failure."""
        count = self._attempts.lose(future.spec.name)
        if count < self._engine.tries:
            self.running.remove(future)
            self._again.append(future.spec)
            self._warn(f"{called(future.spec)}: {lost.reason}; it is tried again")
            return None
        often = "" if count == 1 else f" ({count} times in a row, without a step of progress)"
        return Done(failures(future.spec, f"{lost.reason}{often}"))

    def done(self, future: Future, done: Done, tick: Tick) -> list[Result | Made]:
        """The results that were asked for."""
        name = future.spec.name
        self.running.remove(future)
        tick(self._specs.counted(name, self._attempts.rest(name, future.spec.steps)))
        self._specs.done(name)
        if name not in self._specs.asked:
            return []
        return [one if done.made is None else Made(one, done.made) for one in done.results]


def results(
    specs: Specs,
    engine: Engine,
    work: Work,
    tick: Tick = lambda steps: None,
    warn: Callable[[str], None] = lambda message: None,
) -> Generator[Result | Made]:
    """Results as they finish; `tick` is told of steps, `warn` of warnings and of what was lost.

    Whoever stops listening stops what is under way. After Ctrl-C or an error, what is done before
    the engine has stopped comes, too.
    """
    hearing = _Hearing(specs, engine, work, warn)
    try:
        while hearing.give():
            engine.wait(hearing.running)
            for future in list(hearing.running):
                for said in future.heard():
                    if isinstance(said, int):
                        tick(hearing.progress(future, said))
                    elif isinstance(said, str):
                        warn(said)
                    else:
                        end = said if isinstance(said, Done) else hearing.lost(future, said)
                        if end is not None:
                            yield from hearing.done(future, end, tick)
    except BaseException as error:
        late = engine.stop(hearing.running)
        if not isinstance(error, GeneratorExit):
            for future, done in late:
                yield from hearing.done(future, done, tick)
        raise
    engine.stop(())
