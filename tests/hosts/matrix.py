"""The table of hosts: what is asked of each, which tests answer, and why where none does.

A test says `@cell("lightning", "resume")`; one that shows a refusal gives the sentence to
`refused`. A cell without test has its reason in EXPLAINED. `make test-hosts` runs the tests and
writes docs/hosts.md; a cell with neither is an error. Imports no host.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import pytest

QUALITIES = {
    "resume": "resumes bit for bit",
    "evaluation": "evaluates clean",
    "weights": "best and exported weights clean",
    "accumulation": "accumulation counted right",
    "averages": "EMA and SWA right",
    "bad_input": "bad input refused",
}
FORMS = ("forward", "weights")


@dataclass(frozen=True)
class Host:
    """One host: its name in words, and the distribution whose version the page shows."""

    title: str
    package: str


HOSTS = {
    "lightning": Host("Lightning", "lightning"),
    "hf_trainer": Host("Hugging Face Trainer", "transformers"),
    "peft": Host("peft (LoRA)", "peft"),
    "trl": Host("TRL", "trl"),
    "accelerate": Host("Accelerate", "accelerate"),
    "ignite": Host("ignite", "pytorch-ignite"),
    "skorch": Host("skorch", "skorch"),
    "torchrun": Host("torchrun (DDP, FSDP2)", "torch"),
    "torchtitan": Host("TorchTitan's optimizer container", "torchtitan"),
    "torchao": Host("torchao's optimizers", "torchao"),
    "bitsandbytes": Host("bitsandbytes' optimizers", "bitsandbytes"),
    "schedulefree": Host("schedule-free", "schedulefree"),
    "pytorch_optimizer": Host("pytorch_optimizer, all of it", "pytorch_optimizer"),
    "muon": Host("Muon with AdamW", "torch"),
    "in_backward": Host("an optimizer in backward", "torch"),
    "deepspeed": Host("DeepSpeed", "deepspeed"),
    "nnx": Host("flax nnx", "flax"),
    "linen": Host("flax linen", "flax"),
    "equinox": Host("equinox", "equinox"),
    "orbax": Host("Orbax", "orbax-checkpoint"),
}
_SAVES_ALONE = "Orbax only saves and restores"
EXPLAINED: dict[tuple[str, str], str] = {
    ("orbax", "evaluation"): _SAVES_ALONE,
    ("orbax", "accumulation"): _SAVES_ALONE,
    ("orbax", "averages"): _SAVES_ALONE,
}
"""Why a cell has no test: what the host does not have, or why it cannot be installed."""


def cell(host: str, *qualities: str, form: str = "forward") -> pytest.MarkDecorator:
    """Mark a test as the answer to these questions."""
    if host not in HOSTS or not qualities or not set(qualities) <= set(QUALITIES):
        raise ValueError(f"no cells {host!r} × {qualities}")
    if form not in FORMS:
        raise ValueError(f"form is one of {FORMS}; got {form!r}")
    return pytest.mark.cell(host, qualities, form)


@contextmanager
def refused(record_property, kind: type[Exception], match: str) -> Iterator[None]:
    """A block that must be refused; what was said goes onto the page."""
    with pytest.raises(kind, match=match) as error:
        yield
    record_property("refusal", str(error.value))


@dataclass
class Answers:
    """What the tests of one cell came to."""

    passed: set[str] = field(default_factory=set)  # forms
    failed: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


class Table:
    """The cells as they fill while tests run."""

    def __init__(self) -> None:
        self.cells = {(host, quality): Answers() for host in HOSTS for quality in QUALITIES}

    def take(self, mark: tuple, outcome: str, name: str, said: list[str]) -> None:
        host, qualities, form = mark
        for quality in qualities:
            answers = self.cells[host, quality]
            if outcome != "passed":
                answers.failed.append(name)
            elif said:
                answers.refusals += [one for one in said if one not in answers.refusals]
            else:
                answers.passed.add(form)

    def missing(self) -> list[tuple[str, str]]:
        """Cells that no test answers and nothing explains."""
        return [
            key for key, found in self.cells.items()
            if key not in EXPLAINED and not (found.passed or found.failed or found.refusals)
        ]  # fmt: skip

    def page(self) -> str:
        notes: list[str] = []

        def note(text: str) -> str:
            if text not in notes:
                notes.append(text)
            return f"[{notes.index(text) + 1}]"

        def shown(key: tuple[str, str]) -> str:
            found, words = self.cells[key], []
            if found.failed:
                return f"**fails** {note(', '.join(found.failed))}"
            if found.passed:
                words.append("tested" if len(found.passed) == 1 else "tested, both forms")
            if found.refusals:
                words.append(" ".join(["refused", *map(note, found.refusals)]))
            if not words:
                words.append(f"no {note(EXPLAINED[key])}" if key in EXPLAINED else "**untested**")
            return "; ".join(words)

        rows = [
            f"| {host.title} | {_version(host.package)} | "
            + " | ".join(shown((name, quality)) for quality in QUALITIES)
            + " |"
            for name, host in HOSTS.items()
        ]
        head = "| | version | " + " | ".join(QUALITIES.values()) + " |"
        ruler = "|---" * (len(QUALITIES) + 2) + "|"
        listed = [f"{number}. {text}" for number, text in enumerate(notes, 1)]
        return "\n".join([_OPENING, head, ruler, *rows, "", *listed]) + "\n"


_OPENING = """# Hosts

What people train with, and what was tried in each, as `make test-hosts` found it. The noise is in
the passes (`perturb`, in JAX `antipgd.optax.perturb`); "both forms" means that noise in the weights
was tried as well. "no" has its reason below the table, "refused" the sentence that the user gets.
"""


def _version(package: str) -> str:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return "not installed"
