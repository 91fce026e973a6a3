"""Which training comes next: one that others begin with is trained before them.

Trainings whose noise begins later share the noise-free epochs before it. Knows no processes.
"""

from collections import Counter, deque
from collections.abc import Iterable

from antipgd.paper.networks.spec import Training


class Queue:
    """Trainings in an order in which one that others begin with is trained before them."""

    def __init__(self, specs: Iterable[Training], share: bool) -> None:
        asked = {spec.name: spec for spec in specs}
        begins = {name: spec.prefix() if share else None for name, spec in asked.items()}
        uses = Counter(prefix.name for prefix in begins.values() if prefix is not None)
        self.asked = set(asked)
        self._ahead: Counter[str] = Counter()
        self._ready: deque[Training] = deque()
        self._waiting: dict[str, list[Training]] = {}
        for name, spec in asked.items():
            prefix = begins[name]
            if prefix is None or (uses[prefix.name] == 1 and prefix.name not in asked):
                self._ready.append(spec)
                continue
            if prefix.name not in asked and prefix.name not in self._waiting:
                self._ready.appendleft(prefix)
            self._waiting.setdefault(prefix.name, []).append(spec)

    @property
    def ready(self) -> bool:
        """Whether there is one to be trained now."""
        return bool(self._ready)

    def next(self) -> Training:
        """The one to be trained next."""
        return self._ready.popleft()

    def done(self, name: str) -> None:
        """Those that begin with a training can go on from it (or, if it failed, by themselves)."""
        self._ready.extend(self._waiting.pop(name, []))

    def counted(self, name: str, epochs: int) -> int:
        """Epochs of a training to tell of: shared ones count for each training that begins with
        them, as they are trained, and not again when it goes on from there.
        """
        again = min(epochs, self._ahead[name])
        self._ahead[name] -= again
        sharing = self._waiting.get(name, [])
        self._ahead.update({spec.name: epochs for spec in sharing})
        return epochs * len(sharing) + (epochs - again if name in self.asked else 0)
