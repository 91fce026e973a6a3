"""Text that is made: short tales of a small grammar, whose entropy is known.

A tale introduces two names and goes on with sentences that need what came before: verbs that agree
with a subject before a clause, names that are referred to by what they are, brackets and quotes
that must be closed, sums that are right. Every choice is a word of the noise stream, and a whole
tale tells which were made: −ln p of a text is the sum of ln k over its choices among k, but for
the last one where a text is cut off. That is the floor: no model has a smaller expected loss.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from antipgd.noise.stream import stream_key, stream_words

ALPHABET = '\n abcdefghijklmnopqrstuvwxyz0123456789.+-="()[]{}'
_CONSONANTS, _VOWELS = "bdfgklmnrz", "aeiou"
_SEEN = ("see", "hear", "fear", "like")
_BRACKETS = ("()", "[]", "{}")
_DEEPEST = 4
_BLOCKS = 4  # of four words of the stream for a character: more than choices take

T = TypeVar("T")


@dataclass(frozen=True)
class Grammar:
    """What two grammars differ in: words, their order, and the arithmetic."""

    nouns: Sequence[str]
    verbs: Sequence[str]
    verb_first: bool = False
    minus: bool = False


FIRST = Grammar(
    ("hen", "duck", "cat", "bear", "crow", "toad", "goat", "lamb"),
    ("run", "sleep", "sing", "jump", "wait", "hide", "eat", "dream"),
)
SECOND = Grammar(
    ("king", "cook", "monk", "maid", "smith", "miner", "judge", "poet"),
    ("fight", "laugh", "kneel", "row", "climb", "swear", "pray", "dig"),
    verb_first=True,
    minus=True,
)


class Teller:
    """Writes tales until there are `length` characters, and keeps what its choices cost."""

    def __init__(self, grammar: Grammar, seed: int, name: str, length: int) -> None:
        key = stream_key(seed, name, "data")
        self._words = iter(stream_words(key, 1, 0, _BLOCKS * length).reshape(-1).tolist())
        self._grammar, self._open = grammar, 0.0
        self.text, self.nats, self._length = "\n", 0.0, length
        while len(self.text) < length:
            self._tale()
        self.text = self.text[:length]

    def _choose(self, among: Sequence[T]) -> T:
        self._open += math.log(len(among))
        return among[next(self._words) * len(among) >> 32]

    def _say(self, text: str) -> None:
        """Goes on; what has been chosen since the last time costs if this is still within."""
        self.text += text
        if len(self.text) <= self._length:
            self.nats += self._open
        self._open = 0.0

    def _tale(self) -> None:
        people = self._people()
        sentences: Sequence[Callable[[], None]] = (
            self._agreement, self._arithmetic, self._brackets,
            lambda: self._reference(people), lambda: self._speech(people),
        )  # fmt: skip
        told = 0
        while told < 2 or (told < 5 and self._choose((True, False))):
            self._choose(sentences)()
            self._say(". ")
            told += 1
        self._say("\n")

    def _people(self) -> dict[str, str]:
        """Two names with what they are."""
        people: dict[str, str] = {}
        for _ in range(2):
            taken = {name[0] for name in people}
            name = self._choose([c for c in _CONSONANTS if c not in taken])
            name += self._choose(_VOWELS) + self._choose(_CONSONANTS) + self._choose(_VOWELS)
            self._say(f"{name} is a ")
            noun = self._choose([n for n in self._grammar.nouns if n not in people.values()])
            self._say(f"{noun}. ")
            people[name] = noun
        return people

    def _agreement(self) -> None:
        """Verb and subject, perhaps with a clause between them that has a number of its own."""
        plural = self._choose((True, False))
        if self._grammar.verb_first:
            self._verb(self._grammar.verbs, plural)
            self._say(" ")
        self._subject(plural)
        if self._choose((True, False)):
            self._say(" that ")
            many = self._choose((True, False))
            self._subject(many)
            self._say(" ")
            self._verb(_SEEN, many)
        if not self._grammar.verb_first:
            self._say(" ")
            self._verb(self._grammar.verbs, plural)

    def _verb(self, verbs: Sequence[str], plural: bool) -> None:
        self._say(self._choose(verbs) + ("" if plural else "s"))

    def _subject(self, plural: bool) -> None:
        self._say(f"the {self._choose(self._grammar.nouns)}" + ("s" if plural else ""))

    def _reference(self, people: dict[str, str]) -> None:
        name, noun = self._choose(list(people.items()))
        self._say(f"{name} is the {noun}" if self._grammar.verb_first else f"the {noun} is {name}")

    def _speech(self, people: dict[str, str]) -> None:
        self._say(f'{self._choose(list(people))} says "')
        self._agreement()
        self._say('"')

    def _arithmetic(self) -> None:
        first = self._choose(range(10))
        second = self._choose(range(first + 1 if self._grammar.minus else 10))
        sign, result = ("-", first - second) if self._grammar.minus else ("+", first + second)
        self._say(f"{first}{sign}{second}={result}")

    def _brackets(self) -> None:
        waiting: list[str] = []
        while True:
            deeper = not waiting or (len(waiting) < _DEEPEST and self._choose((True, False)))
            if deeper:
                pair = self._choose(_BRACKETS)
                waiting.append(pair[1])
                self._say(pair[0])
            else:
                self._say(waiting.pop())
            if not waiting:
                return


def tell(grammar: Grammar, seed: int, name: str, length: int) -> tuple[str, float]:
    """A text of so many characters, from the beginning of a tale on, and its floor in nats."""
    teller = Teller(grammar, seed, name, length)
    return teller.text, teller.nats
