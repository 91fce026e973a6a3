"""Checkpoints of a training: a folder that survives being killed at any moment.

A checkpoint is written whole or not at all, and the one before it is kept. One that is damaged is
named, moved aside, and not used. Beside them lie the clean weights and the log.
"""

import hashlib
import io
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from antipgd.paper.files import move_aside, remove_abandoned, write_atomically
from antipgd.paper.networks.spec import Training

FORMAT = 1
_NAMES = ("checkpoint.pt", "previous.pt")  # newest first


def _bytes(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


class Checkpoints:
    """The checkpoints of one training in a folder of its own, below `root`."""

    def __init__(
        self, root: Path, spec: Training, warn: Callable[[str], None] = lambda message: None
    ) -> None:
        self._root, self._spec, self._warn = Path(root), spec, warn
        self.folder = self._root / spec.name

    def of(self, other: Training) -> "Checkpoints":
        """Those of another training beside this one."""
        return Checkpoints(self._root, other, self._warn)

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep a state; the one before it stays too."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = _bytes({"format": FORMAT, "spec": self._spec.canonical(),
                          "versions": self._spec.versions, **state})  # fmt: skip
        newest, previous = (self.folder / name for name in _NAMES)
        if newest.exists():
            os.replace(newest, previous)
        write_atomically(newest, hashlib.sha256(content).digest() + content)

    def tidy(self) -> None:
        """Remove what a killed process left half written; for the one that trains this now."""
        remove_abandoned(self.folder, older_than=-math.inf)

    def load(self) -> dict[str, Any] | None:
        """The newest state that is whole and of this training by this version; else None."""
        for name in _NAMES:
            path = self.folder / name
            if path.exists():
                state = self._read(path)
                if state is not None:
                    return state
        return None

    def _read(self, path: Path) -> dict[str, Any] | None:
        content = path.read_bytes()
        digest, rest = content[:32], content[32:]
        if hashlib.sha256(rest).digest() != digest:
            self._move_aside(path, "its digest does not match: it is truncated or changed")
            return None
        state: dict[str, Any] = torch.load(io.BytesIO(rest), map_location="cpu", weights_only=True)
        if state["spec"] != self._spec.canonical():
            self._move_aside(path, "it belongs to another training")
            return None
        if (state["format"], state["versions"]) != (FORMAT, self._spec.versions):
            self._move_aside(path, "it was made by another version")
            return None
        return state

    def _move_aside(self, path: Path, why: str) -> None:
        target = move_aside(path, path.parent, "aside-")
        if target is not None:  # else another rank was faster
            self._warn(f"{path}: {why}; moved to {target}, not used")

    def keep_weights(self, name: str, weights: Mapping[str, Any]) -> None:
        """Weights to be looked at later, as a state dict in a file of that name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / f"{name}.pt", _bytes(weights))

    def forget(self) -> None:
        """Remove the checkpoints, when the record is safe; weights and log stay."""
        for name in _NAMES:
            (self.folder / name).unlink(missing_ok=True)
