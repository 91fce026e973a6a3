"""What a fight is made of, fixed for each budget before anything is run: problems, methods, seeds.

Tuning has the same seeds at every budget, so that the same values are found; the judged seeds of a
smaller budget are the first of a larger one's. Grids and sizes were chosen on seeds from 5000 on.
Problems that are dear have six methods and few seeds, and say so.
"""

from dataclasses import dataclass, replace

from antipgd.paper.fight.six import IMAGES, TEXT

TUNING_SEEDS, JUDGED_SEEDS = 1000, 20_000  # the first of them; below them some were looked at
TUNED = 3  # seeds a value


@dataclass(frozen=True)
class Card:
    """A problem of a fight: who is tried on it, on how many seeds."""

    problem: str
    seeds: int
    tuning: int = TUNED
    methods: tuple[str, ...] | None = None  # all

    @property
    def few(self) -> bool:
        """Whether it carries only some of the methods."""
        return self.methods is not None

    @property
    def judged_seeds(self) -> range:
        return range(JUDGED_SEEDS, JUDGED_SEEDS + self.seeds)

    @property
    def tuning_seeds(self) -> range:
        return range(TUNING_SEEDS, TUNING_SEEDS + self.tuning)


CHEAP = ("regression", "sensing", "student_teacher", "digits")
DEAR = (
    Card("fashion", 10, 2),
    Card("fashion_batch_norm", 10, 2),
    Card("cifar10", 5, 2, IMAGES),
    Card("cifar10_batch_norm", 5, 2, IMAGES),
)
BUDGETS: dict[str, tuple[Card, ...]] = {
    "25m": tuple(Card(name, 15) for name in CHEAP),
    "3h": (*(Card(name, 20) for name in CHEAP),
           *(replace(card, seeds=3, methods=IMAGES) for card in DEAR)),
    "night": (*(Card(name, 30) for name in CHEAP), *DEAR,
              Card("char_gpt", 3, 2, TEXT)),
}  # fmt: skip
