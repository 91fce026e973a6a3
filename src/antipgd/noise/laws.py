"""The distribution of one draw, always with mean 0 and standard deviation 1.

A law is a value: a name, and for student-t its degrees of freedom. How words become draws is in
`transforms`; this room only names the laws and how many draws one Philox block yields.
"""

import math
from dataclasses import dataclass

LAWS = {"gaussian": 4, "rademacher": 128, "uniform": 4, "laplace": 4, "student-t": 2}
"""The laws, and the draws that one block of four 32-bit words yields."""
# Made of two words at a time, (0, 1) and (2, 3); the others make each draw of one word.
PAIRED = {"gaussian", "student-t"}

# Nearer to 2 the variance is all in draws that are never made; beyond 10⁶ student-t is gaussian.
SMALLEST_DF, LARGEST_DF = 2.001, 1e6


def accepted_laws() -> str:
    """The laws as one writes them, for messages and help."""
    return ", ".join(LAWS).replace("student-t", "student-t:DF")


@dataclass(frozen=True)
class Law:
    """A law of the draws, scaled to standard deviation 1; `df` belongs to student-t alone.

    `str(law)` is accepted wherever a law is: "gaussian", "student-t:5".
    """

    name: str
    df: float | None = None

    def __post_init__(self) -> None:
        if self.name not in LAWS:
            raise ValueError(f"unknown law {self.name!r}; accepted: {accepted_laws()}")
        if self.name == "student-t":
            try:
                df = math.nan if self.df is None or isinstance(self.df, str) else float(self.df)
            except TypeError:
                df = math.nan
            if not SMALLEST_DF <= df <= LARGEST_DF:
                raise ValueError(
                    f"student-t needs degrees of freedom df > 2 (else its variance is infinite), "
                    f"from {SMALLEST_DF} to {LARGEST_DF:g}, given as 'student-t:5' or "
                    f"Law('student-t', 5); got df={self.df}"
                )
            object.__setattr__(self, "df", df)
        elif self.df is not None:
            raise ValueError(f"df belongs to student-t only; got df={self.df} for {self.name}")

    @property
    def per_block(self) -> int:
        """Draws per Philox block."""
        return LAWS[self.name]

    @property
    def paired(self) -> bool:
        """Whether draws are made of two words at a time."""
        return self.name in PAIRED

    def __str__(self) -> str:
        return (
            self.name if self.df is None else f"{self.name}:{float(self.df)!r}".removesuffix(".0")
        )


def as_law(law: "Law | str") -> Law:
    """A `Law` from itself or from its string form."""
    if isinstance(law, Law):
        return law
    name, _, df = str(law).partition(":")
    try:
        return Law(name, float(df) if df else None)
    except ValueError as error:
        if df and str(error).startswith("could not convert"):
            raise ValueError(f"df of student-t must be a number > 2; got {df!r}") from None
        raise
