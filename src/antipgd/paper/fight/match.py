"""What a bout is to bookkeeping: a method's file on a problem, with a value, a rate and a seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antipgd.paper.fight.problem import TEST
from antipgd.paper.fight.problems import sizes
from antipgd.paper.record import canonical, name_of

RESULTS_VERSION = 1


@dataclass(frozen=True)
class Match:
    """One training. Its record has a row for each number that was measured, at a place of that
    name; only `seconds` depends on the machine. `source` is the digest of the method's file."""

    problem: str
    method: str
    source: str
    value: float
    lr: float
    seed: int
    steps: int
    held_out: str = TEST

    measures = ("value",)
    places = ()  # whatever is measured
    settings = ()

    @property
    def measure(self) -> tuple[int, ...]:
        """At its end."""
        return (self.steps,)

    @property
    def name(self) -> str:
        """32 hexadecimal digits, the hash of its canonical JSON."""
        return name_of(self.canonical())

    @property
    def versions(self) -> dict[str, int]:
        """Of the code that its result depends on."""
        return {"fight": RESULTS_VERSION, self.problem: sizes(self.problem).version}

    @property
    def label(self) -> str:
        """As messages call it."""
        return f"{self.method} on {self.problem}, value {self.value:g}, seed {self.seed}"

    def canonical(self) -> str:
        """As JSON with one spelling."""
        return canonical(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "Match":
        """From its parsed JSON."""
        return cls(**values)
