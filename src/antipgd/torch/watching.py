"""Weights that are replaced behind the noise's back are found before the noise acts on them.

After every step a few elements of each tensor are kept, with its version, address and type. If one
of the three has changed by the next step, or whenever clean weights are asked for or saved, the
elements are compared: version counters miss what goes through `.data`, and cry wolf where the same
values are loaded. The elements are saved with the optimizer, so that a resume is silent where
weights and noise belong together, in whatever order they were loaded, and loud where they do not.
Knows when weights are not as they were left; `replaced` judges what that means.
"""

from collections.abc import Sequence
from math import hypot

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise.injection import carried_coefficients
from antipgd.noise.laws import Law
from antipgd.noise.taps import Taps, telescopes
from antipgd.torch import kernel, replaced
from antipgd.torch.members import Member
from antipgd.torch.parts import is_sharded
from antipgd.torch.sampling import Marks, Sampler, as_row, as_text, elements
from antipgd.torch.shares import beside, sampled


class Watch:
    """What the weights of the members were when the noise last left them."""

    def __init__(self, law: Law, taps: Taps) -> None:
        self._law, self._taps = law, taps
        self.forget()

    def forget(self) -> None:
        """Know nothing of any weights."""
        self._members: list[Member] = []
        self._sampler = Sampler([])
        self._marks: Marks | None = None
        self._taken: list[Tensor] = []
        self._expected: list[NDArray[np.float64]] = []  # by a checkpoint, until it is compared
        self._turn = 0

    def remember(
        self, members: Sequence[Member] | None = None, may_have_moved: bool = True
    ) -> None:
        """Keep what the weights are now, of the members as they were unless they are given."""
        members = self._members if members is None else members
        if not telescopes(self._taps):  # there are no clean weights that could be wrong
            return
        if (may_have_moved or members != self._members) and not self._sampler.fits(members):
            self._sampler = Sampler(members)
        self._members, self._expected = self._sampler.members, []
        self._marks, self._taken = self._sampler.marks_in_place(), self._sampler.take()

    def expect(self, members: Sequence[Member], samples: Sequence[str]) -> None:
        """Keep what a checkpoint says that the weights are, or will be once they are loaded."""
        self.forget()
        pairs = zip(members, samples, strict=True)
        known = [(m, text) for m, text in pairs if text and not is_sharded(m.parameter)]
        self._members = [member for member, _ in known]
        self._expected = [as_row(text) for _, text in known]

    def samples(self, members: Sequence[Member]) -> tuple[str, ...]:
        """What is kept of each member, as a checkpoint has it; () where nothing is known.

        Of a sharded tensor nothing: each rank has another part, and a checkpoint is of them all.
        """
        rows = {id(m): row for m, row in zip(self._members, self._then(), strict=True)}
        found = [
            as_text(rows[id(m)]) if id(m) in rows and not is_sharded(m.parameter) else ""
            for m in members
        ]
        return tuple(found) if any(found) else ()

    def is_changed(self, thorough: bool) -> bool:
        """Whether any weights are others than were kept; `thorough`: also those that look alike."""
        if not self._members:
            return False
        marks = self._sampler.marks()
        if not (thorough or self._expected) and marks == self._marks and self._looks_alike():
            return False
        if not replaced.is_same(self._then(), self._now()):
            return True
        self.remember()  # the same values, elsewhere or written again
        return False

    def judge(self, step: int) -> None:
        """Refuse weights that were replaced; take those that were modified as they are."""
        then, now = self._then(), self._now()
        coefficients = [carried_coefficients(self._taps, m.sigmas) for m in self._members]
        sigmas = [hypot(*row) * sampled(m.shares, elements(m.parameter), m.parameter.shape)
                  for m, row in zip(self._members, coefficients, strict=True)]  # fmt: skip
        found = replaced.suspects(then, now, sigmas)
        if found:
            every = replaced.changed_ones(then, now, sigmas)
            xi = {i: self._drawn(self._members[i], step, coefficients[i]) for i in every}
            slopes = [
                replaced.slope([then[i] for i in of], [now[i] for i in of], [xi[i] for i in of])
                for of in (found, every)
            ]
            if replaced.is_gone(*slopes):
                raise RuntimeError(self._message([self._members[i].name for i in found]))
        self.remember()

    def _then(self) -> Sequence[NDArray[np.float64]]:
        return self._expected or self._sampler.rows(self._taken)

    def _now(self) -> list[NDArray[np.float64]]:
        sampler = Sampler(self._members)
        return sampler.rows(sampler.take())

    def _looks_alike(self) -> bool:
        """Whether the next tensor in turn has the values that were kept.

        What writes past the version counters mostly writes to all tensors: one at a step will do.
        """
        self._turn = (self._turn + 1) % len(self._members)
        return self._sampler.is_like(self._turn, self._taken)

    def _drawn(
        self, member: Member, step: int, coefficients: Sequence[float]
    ) -> NDArray[np.float64]:
        """The noise in the elements that are kept of a member."""
        places = torch.from_numpy(elements(member.parameter))
        total = np.zeros(len(places))
        for lag, coefficient in enumerate(coefficients):
            if coefficient and step - lag >= 1:
                xi = kernel.draw_at(places, member.key, step - lag, self._law)
                total += coefficient * xi.to(torch.float64).numpy()
        return total * beside(member.shares, places.numpy(), member.parameter.shape)

    def _message(self, names: Sequence[str]) -> str:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        if self._expected:
            what = f"the loaded noise does not belong to the weights that are there: {shown}"
        else:
            what = f"weights were replaced since the last step: {shown}"
        return (
            f"{what} do not carry the noise that would be taken out of them. Where they are "
            f"clean, call noise.reset(); where they are a checkpoint's, load the state of its "
            f"optimizer, too; where they do carry it, call noise.vouch(). Or use "
            f"antipgd.torch.perturb(model, optimizer, sigma=…), whose weights are always clean"
        )
