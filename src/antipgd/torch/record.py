"""What a checkpoint keeps of the noise on one param group, as a type: every field is checked.

Plain numbers, text and lists, written as one JSON text. One, because what loads a checkpoint entry
by entry (torch.distributed.checkpoint) takes the entries that it expects and drops the others:
a field that is left out while it has its default could get lost that way. Knows neither
optimizers nor tensors.
"""

import json
import math
import reprlib
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from math import prod
from typing import Any

from antipgd.checks import number, whole
from antipgd.noise import as_law, as_taps, canonical_name
from antipgd.noise.schedules import PlateauState
from antipgd.noise.taps import Taps

FORMAT = 1
"""Format 0 had no `format`, wrote every field, and called the version of the stream `version`."""
LAST_STEP = 2**62  # so that there are steps left to take

FORMS = ("weights", "forward")
"""Where the noise is: in the weights that are saved beside it, or only in passes that read them."""
DRAWS = ("step", "micro-batch", "rank")
"""What gets a draw of its own."""
LAYERS = ("all", "one")
"""Which layers take a draw: all of them, or one after the other."""
FILTER, ELEMENT = "filter", "element"
"""What σ may be relative to beside the whole tensor: each of its filters, or elements."""

CLOCKS = ("sgd", "adam", "muon", "unknown")
"""Kinds of clocks."""

Row = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The noise on one param group. Fields at their default are not written."""

    stream: int
    law: str
    taps: Taps
    seed: int
    sigma: float
    step: int
    clock: float | None  # None: unknown
    names: tuple[str, ...]  # that key the draws
    shapes: tuple[tuple[int, ...], ...]
    first_lrs: tuple[float | None, ...]  # None: the group has no learning rate
    scales: Row
    sigmas: tuple[Row, ...]  # of the last len(taps) − 1 draws, newest first
    form: str = "weights"
    namespace: str = ""
    relative: bool | str = False
    paused: bool = False
    hold: int = 1
    draws: str = "step"
    antithetic: bool = False
    layers: str = "all"
    scheduled: bool = False  # a schedule is code: that there was one is all that is kept
    plateau: PlateauState | None = None  # but of a Plateau, what it was told
    clocks: tuple[tuple[str, float | None], ...] = ()  # by kind; (): nothing counted, or older
    shares: tuple[str, ...] = ()  # of σ, by filter; "": the tensor is one
    samples: tuple[str, ...] = ()  # elements of the weights that carry the noise; "": unknown

    def text(self) -> str:
        """As it is written."""
        defaults = {field.name: field.default for field in fields(self)}
        own = {key: value for key, value in asdict(self).items() if value != defaults[key]}
        return json.dumps({"format": FORMAT, **own}, allow_nan=False)


BY_PARAMETER = ("names", "shapes", "first_lrs", "scales", "sigmas")
LEFT_OUT = ("shares", "samples")  # which belong to the parameters, too, but are not always there
COMMON = tuple(f.name for f in fields(Record) if f.name not in (*BY_PARAMETER, *LEFT_OUT))

Check = Callable[[str, object], Any]


def _flag(label: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{label} must be True or False; got {value!r}")
    return value


def _text(label: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{label} must be text; got {value!r}")
    return value


def _law(label: str, value: object) -> str:
    text = _text(label, value)
    try:
        return str(as_law(text))
    except ValueError as error:
        raise ValueError(f"{label} is refused: {error}; got {text!r}") from None


def _taps(label: str, value: object) -> Taps:
    numbers = _listed(_signed)(label, value)
    try:
        return as_taps(numbers)
    except ValueError as error:
        raise ValueError(f"{label} is refused: {error}") from None


def _one_of(*accepted: str) -> Check:
    def check(label: str, value: object) -> str:
        if not isinstance(value, str) or value not in accepted:
            raise ValueError(f"{label} must be {' or '.join(map(repr, accepted))}; got {value!r}")
        return value

    return check


def _listed(each: Check) -> Check:
    def check(label: str, value: object) -> tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{label} must be a list; got {value!r}")
        return tuple(each(f"{label}[{i}]", item) for i, item in enumerate(value))

    return check


def _or_none(each: Check) -> Check:
    return lambda label, value: None if value is None else each(label, value)


def _whole(least: int, most: int) -> Check:
    return lambda label, value: whole(label, value, least, most)


def _signed(label: str, value: object) -> float:
    return number(label, value)


def _natural(label: str, value: object) -> float:
    return number(label, value, 0)


def _sample(label: str, value: object) -> str:
    """Some float32 numbers, as the text of their bytes."""
    text = _text(label, value)
    if len(text) % 8 or set(text) - set("0123456789abcdef"):
        raise ValueError(f"{label} must be eight hexadecimal digits a number; got {text!r}")
    return text


def _shares(label: str, value: object) -> str:
    """Some float32 numbers ≥ 0, as the text of their bytes."""
    text = _sample(label, value)
    numbers = [each for (each,) in struct.iter_unpack("<f", bytes.fromhex(text))]
    if not all(0 <= each < math.inf for each in numbers):
        raise ValueError(f"{label} must be finite numbers >= 0; got {reprlib.repr(numbers)}")
    return text


def _relative(label: str, value: object) -> bool | str:
    if isinstance(value, bool) or (isinstance(value, str) and value in (FILTER, ELEMENT)):
        return value
    raise ValueError(f"{label} must be True, False, {FILTER!r} or {ELEMENT!r}; got {value!r}")


def _by_kind(label: str, value: object) -> tuple[tuple[str, float | None], ...]:
    """What each kind of clock shows."""
    pairs = _listed(_listed(lambda _, item: item))(label, value)
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{label} must be pairs of a kind and a number; got {value!r}")
    kinds = _listed(_one_of(*CLOCKS))(label, [kind for kind, _ in pairs])
    if len(set(kinds)) < len(kinds):
        raise ValueError(f"{label} must have each kind once; got {list(kinds)}")
    shown = _listed(_or_none(_natural))(label, [number for _, number in pairs])
    return tuple(zip(kinds, shown, strict=True))


def _plateau(label: str, value: object) -> PlateauState:
    """The best loss, the reports since then, the last step without noise."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise ValueError(f"{label} must be a loss, a count and a step; got {value!r}")
    checks = _or_none(_signed), _whole(0, LAST_STEP), _or_none(_whole(0, LAST_STEP))
    best, waited, begun = (
        check(f"{label}[{i}]", item)
        for i, (check, item) in enumerate(zip(checks, value, strict=True))
    )
    return best, waited, begun


CHECKS: dict[str, Check] = {
    "stream": _whole(1, 2**31),
    "law": _law,
    "taps": _taps,
    "seed": _whole(0, 2**64 - 1),
    "sigma": _natural,
    "step": _whole(0, LAST_STEP),
    "clock": _or_none(_natural),
    "names": _listed(_text),
    "shapes": _listed(_listed(_whole(0, 2**63 - 1))),
    "first_lrs": _listed(_or_none(_natural)),
    "scales": _listed(_natural),
    "sigmas": _listed(_listed(_natural)),
    "form": _one_of(*FORMS),
    "namespace": _text,
    "relative": _relative,
    "paused": _flag,
    "scheduled": _flag,
    "plateau": _plateau,
    "hold": _whole(1, LAST_STEP),
    "draws": _one_of(*DRAWS),
    "antithetic": _flag,
    "layers": _one_of(*LAYERS),
    "clocks": _by_kind,
    "shares": _listed(_shares),
    "samples": _listed(_sample),
}


def read_record(value: object, where: str) -> Record:
    """A record from what a checkpoint has; every refusal names the place and the field."""
    given = _opened(value, where)
    renamed = _as_format(given, where)
    found = {}
    for name, (label, item) in renamed.items():
        try:
            found[name] = CHECKS[name](f"{where}: {label}", item)
        except (TypeError, OverflowError, RuntimeError) as error:  # odd types inside
            shown = reprlib.repr(item)
            raise ValueError(f"{where}: {label} is refused: {error}; got {shown}") from None
    record = Record(**found)
    _check_lengths(record, where)
    _check_shares(record, where)
    return record


def _opened(value: object, where: str) -> Mapping[str, object]:
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{where}: antipgd must be the JSON text of a dictionary; got {reprlib.repr(value)}"
        )
    return value


def _as_format(given: Mapping[str, object], where: str) -> dict[str, tuple[str, object]]:
    """(name in the file, value) by field; formats, missing and unknown fields are judged here."""
    names = {field.name: field.name for field in fields(Record)}
    needed = {field.name for field in fields(Record) if field.default is MISSING}
    if "format" not in given:
        for later in (
            "form", "hold", "draws", "antithetic", "layers", "scheduled", "plateau", "clocks",
            "shares", "samples",
        ):  # fmt: skip
            del names[later]
        names["stream"] = "version"
        needed = set(names)
    else:
        stated = whole(f"{where}: format", given["format"], 1)
        if stated > FORMAT:
            raise ValueError(
                f"{where}: format is {stated}; this antipgd reads formats up to {FORMAT}: "
                f"use a newer antipgd"
            )
    for label in given:
        if label != "format" and label not in names.values():
            raise ValueError(
                f"{where}: {label!r} is not known; accepted: {', '.join(names.values())}"
            )
    for name in needed:
        if names[name] not in given:
            raise ValueError(f"{where}: {names[name]} is missing")
    return {name: (label, given[label]) for name, label in names.items() if label in given}


def _check_lengths(record: Record, where: str) -> None:
    count = len(record.names)
    for name in (*BY_PARAMETER, *(f for f in LEFT_OUT if getattr(record, f))):
        if len(getattr(record, name)) != count:
            raise ValueError(
                f"{where}: {name} must have {count} entries, one for each name; "
                f"got {len(getattr(record, name))}"
            )
    for row in record.sigmas:
        if len(row) != len(record.taps) - 1:
            raise ValueError(
                f"{where}: sigmas must have {len(record.taps) - 1} numbers for each name, one less "
                f"than taps; got {list(row)}"
            )


def has_filters(shape: Sequence[int]) -> bool:
    """Whether a tensor has rows to share its noise out over: a bias or a scale is one filter."""
    return len(shape) > 1 and prod(shape) > 0


def _check_shares(record: Record, where: str) -> None:
    """Refuse shares that are not one for each filter."""
    shaped = record.relative == FILTER
    for i, (name, shape) in enumerate(zip(record.names, record.shapes, strict=True)):
        wanted = shape[0] if shaped and has_filters(shape) else 0
        got = len(record.shares[i]) // 8 if record.shares else 0
        if got != wanted:
            raise ValueError(
                f"{where}: shares must have {wanted} numbers for {name!r}, one for each filter; "
                f"got {got}"
            )


def facts_of(records: Sequence[Record]) -> dict[str, Any]:
    """All that the records of one optimizer say, by field."""
    common = {name: getattr(records[0], name) for name in COMMON}
    of_each = (*BY_PARAMETER, "shares")  # samples are of the part that a rank has
    return common | {name: [getattr(r, name) for r in records] for name in of_each}


def check_alike(records: Sequence[Record], where: Sequence[str]) -> None:
    """Refuse groups that tell of different noise, or of one parameter twice."""
    for record, place in zip(records[1:], where[1:], strict=True):
        for name in COMMON:
            ours, first = getattr(record, name), getattr(records[0], name)
            if ours != first:
                raise ValueError(f"{place}: {name} is {ours!r}, but {first!r} in {where[0]}")
    seen: set[str] = set()
    for record, place in zip(records, where, strict=True):
        for name in record.names:
            if canonical_name(name) in seen:
                raise ValueError(f"{place}: names must not repeat; {name!r} does")
            seen.add(canonical_name(name))
