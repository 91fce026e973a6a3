"""Which parameter each entry of a checkpoint's noise is about, and whether it fits there.

torch matches by order; so does this, and compares what it can: names, or positions where one side
has no names, and shapes. The checkpoint's names stay the keys of the draws.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from antipgd.noise import canonical_name
from antipgd.noise.injection import check_sigma
from antipgd.torch.members import Member, check_fits_type
from antipgd.torch.record import Record
from antipgd.torch.shares import as_text, from_text


def check_records(
    records: Sequence[Record],
    members: Sequence[Member],
    groups: Sequence[Mapping[str, Any]],
    expected: Mapping[str, Any],
    follows_lr: bool,
    first: int = 0,
) -> None:
    """Refuse records that are not about this noise (`expected`) on these parameters.

    `groups` are the checkpoint's param groups, the members' from number `first` on; `follows_lr`
    says that σ follows the learning rate.
    """
    for index, (record, group) in enumerate(zip(records, groups, strict=True)):
        own = [member for member in members if member.group == first + index]
        for name, value in expected.items():
            if getattr(record, name) != value:
                raise _misfit(index, name, getattr(record, name), value)
        if not _same_parameters(record.names, own, group):
            raise _misfit(index, "names", list(record.names), [m.name for m in own])
        shapes = tuple(tuple(member.parameter.shape) for member in own)
        if record.shapes != shapes:
            raise _misfit(index, "shapes", list(record.shapes), list(shapes))
        _check_sigmas(record, own, group, f"the noise of param group {index}")
        if follows_lr and not all(record.first_lrs):
            raise ValueError(
                f"the noise of param group {index}: first_lrs must be > 0 for schedule='lr'; "
                f"got {list(record.first_lrs)}"
            )


_OTHER_FORM = {
    "weights": "its noise is in the weights (attach): go on with attach, or take it out first with "
    "antipgd.torch.clean_state_dict",
    "forward": "its weights are clean (perturb): go on with perturb, or delete 'antipgd' from its "
    "param groups to begin anew",
}


def _misfit(index: int, name: str, theirs: object, ours: object) -> ValueError:
    if name == "form":
        return ValueError(f"the checkpoint's noise does not fit: {_OTHER_FORM[str(theirs)]}")
    return ValueError(
        f"the checkpoint's noise does not fit: in param group {index} its {name} is {theirs!r}, "
        f"this optimizer's is {ours!r}"
    )


def _same_parameters(names: Sequence[str], own: Sequence[Member], group: Mapping[str, Any]) -> bool:
    given = list(names)
    positions = [member.position for member in own]
    ours = [member.name for member in own]
    if given in (ours, [member.drawn_as for member in own], positions):
        return True
    return ours == positions and _places(given, group) == [m.place for m in own]


def _places(names: Sequence[str], group: Mapping[str, Any]) -> list[int] | None:
    """Where in its param group each name of a checkpoint stands, None where it does not say."""
    every = group.get("param_names")
    if isinstance(every, list | tuple) and len(every) == len(group["params"]):
        order = {canonical_name(str(name)): i for i, name in enumerate(every)}
        return [order.get(name, -1) for name in names]
    return list(range(len(names))) if len(names) == len(group["params"]) else None


def _largest_shares(record: Record) -> list[float]:
    found = map(from_text, record.shares or ("",) * len(record.names))
    return [1.0 if shares is None else float(shares.max()) for shares in found]


def _check_sigmas(
    record: Record, own: Sequence[Member], group: Mapping[str, Any], where: str
) -> None:
    sigma = check_sigma(group.get("sigma", record.sigma), f"{where}: sigma")
    rows = zip(own, record.sigmas, record.scales, _largest_shares(record), strict=True)
    for member, row, scale, share in rows:
        check_fits_type(max(row, default=0.0) * share, record.taps, member, f"{where}: sigmas")
        check_fits_type(
            sigma * scale * share, record.taps, member, f"{where}: sigma times its scale"
        )


def take_over(records: Sequence[Record], members: Sequence[Member], first: int = 0) -> None:
    """Give the members what the records have of them, the first of which is of group `first`."""
    for index, record in enumerate(records, first):
        own = [member for member in members if member.group == index]
        for i, member in enumerate(own):
            member.drawn_as = record.names[i]
            member.first_lr, member.scale = record.first_lrs[i], record.scales[i]
            member.sigmas = list(record.sigmas[i])
            member.shares = from_text(record.shares[i]) if record.shares else None


def samples_of(records: Sequence[Record]) -> list[str]:
    """The elements of each parameter's weights that the records have, "" where they have none."""
    return [text for r in records for text in r.samples or ("",) * len(r.names)]


def _shares_of(members: Sequence[Member]) -> tuple[str, ...]:
    """Those of each member as they are saved; () where no tensor has any."""
    shares = tuple(as_text(member.shares) for member in members)
    return shares if any(shares) else ()


def record_of(
    common: Mapping[str, Any], members: Sequence[Member], carried: bool, samples: tuple[str, ...]
) -> Record:
    """The record of one param group; not `carried`: of weights that the noise was taken out of."""
    return Record(
        **common,
        names=tuple(member.drawn_as for member in members),
        shapes=tuple(tuple(member.parameter.shape) for member in members),
        first_lrs=tuple(member.first_lr for member in members),
        scales=tuple(member.scale for member in members),
        sigmas=tuple(tuple(s * carried for s in member.sigmas) for member in members),
        shares=_shares_of(members),
        samples=samples if carried else (),
    )
