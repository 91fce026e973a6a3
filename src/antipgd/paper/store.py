"""Hash → record: results on disk that are never lost and never half written.

One file per run, named by the run's hash and written once, atomically: a line with the digest of
the rest, one that says what it is and which code made it, one with the record, one with its
provenance. A file that is not what it should be is moved aside, named, and computed again. Failures
are kept apart.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import antipgd
from antipgd.checks import whole
from antipgd.paper.files import (
    FilesError,
    FilesUsageError,
    make_folder,
    move_aside,
    remove_abandoned,
    write,
)
from antipgd.paper.record import Failure, Record, Spec, failure_from, record_from

FORMAT = 1  # of the files, not of what is in them


class NewerStoreError(FilesUsageError):
    """The store was made by a newer version of this package."""


@cache
def code_digest() -> str:
    """A digest of this package's source, whatever its version number says."""
    digest = hashlib.blake2b(digest_size=8)
    root = Path(antipgd.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def provenance() -> dict[str, Any]:
    """Which code made a record, on what and when."""
    return {
        "antipgd": antipgd.__version__,
        "code": code_digest(),
        "python": platform.python_version(),
        **{package: _version_of(package) for package in ("numpy", "numba", "torch")},
        "host": platform.node(),
        "platform": platform.platform(),
        "processor": _processor(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def together(values: Iterable[str]) -> str:
    """What one key of many provenances says, the least first; of many values the least, the largest
    and their number. What says so already, of records that had been shipped, stays as it is."""
    every = sorted(set(values))
    before = [one for one in every if one.endswith(" different)")]
    found = [one for one in every if one not in before]
    if len(found) > 2:
        found = [f"{found[0]} to {found[-1]} ({len(found)} different)"]
    return ", ".join(before + found)


def _versions(run: Spec) -> dict[str, int]:
    """The versions of the code that a run's result depends on."""
    try:
        return run.versions
    except (ValueError, TypeError, AttributeError) as error:  # a problem that is gone, or no name
        raise FilesUsageError(str(error)) from error


class _NotOursError(Exception):
    """A file that is not what its name says."""


class _Found(NamedTuple):
    result: Record | Failure
    current: bool  # made by code of the present versions
    made: dict[str, Any]


class Store:
    """Records of runs in a folder. Several processes may use it at the same time."""

    def __init__(self, root: Path, warn: Callable[[str], None] = lambda message: None) -> None:
        self.root = Path(root)
        self._warn = warn
        make_folder(self.root)
        self._check_format()
        remove_abandoned(self.root)

    def _check_format(self) -> None:
        path = self.root / "format.json"
        try:
            found = whole("format", json.loads(path.read_bytes())["format"], 1)
        except FileNotFoundError:
            write(path, json.dumps({"antipgd": "store", "format": FORMAT}).encode() + b"\n")
            return
        except (ValueError, KeyError, TypeError, RecursionError):
            self._move_aside(path, "it does not say which format this store has")
            return self._check_format()
        except OSError as error:
            raise FilesError(f"cannot read {path}: {error.strerror}") from error
        if found != FORMAT:
            raise NewerStoreError(
                f"{self.root} has format {found}, this version of antipgd knows {FORMAT}: use a "
                f"newer version, or another --out"
            )

    def _path(self, kind: str, name: str) -> Path:
        return self.root / kind / name[:2] / f"{name}.json"

    def _put(self, kind: str, run: Spec, body: str, by: Mapping[str, Any] | None) -> None:
        header = json.dumps({"antipgd": kind, "format": FORMAT, "versions": _versions(run)})
        made = json.dumps(provenance() if by is None else by, sort_keys=True)
        content = f"{header}\n{body}\n{made}\n".encode()
        digest = hashlib.sha256(content).hexdigest().encode()
        write(self._path(kind, run.name), digest + b"\n" + content)

    def put(self, record: Record, by: Mapping[str, Any] | None = None) -> None:
        """Keep a record, made by this machine unless told otherwise; a failure of the same run is
        forgotten."""
        self._put("record", record.run, record.to_json(), by)
        try:
            self._path("failure", record.run.name).unlink(missing_ok=True)
        except OSError as error:
            raise FilesError(f"cannot remove {error.filename}: {error.strerror}") from error

    def put_failure(self, failure: Failure, by: Mapping[str, Any] | None = None) -> None:
        """Keep a failure, apart from the results."""
        self._put("failure", failure.run, failure.to_json(), by)

    def _parts(self, kind: str, name: str, content: bytes) -> tuple[dict, dict, dict]:
        """Header, body and provenance of a file, or `_NotOursError` with what is wrong with it."""
        digest, _, rest = content.partition(b"\n")
        if hashlib.sha256(rest).hexdigest().encode() != digest:
            raise _NotOursError("its digest does not match: it is truncated, changed or not ours")
        lines = [json.loads(line) for line in rest.splitlines()]
        header = lines[0]
        if header["antipgd"] != kind:
            raise _NotOursError(f"it is not a {kind} of antipgd")
        if whole("format", header["format"], 1) > FORMAT:
            raise NewerStoreError(
                f"{self._path(kind, name)} has format {header['format']}, this version of antipgd "
                f"knows {FORMAT}: use a newer version, or another --out"
            )
        _, values, made = lines
        if not isinstance(made, dict):
            raise _NotOursError("it does not say what made it")
        return header, values, made

    def _move_aside(self, path: Path, why: str) -> None:
        try:
            target = move_aside(path, self.root / "aside")
        except OSError as error:
            raise FilesError(f"{path}: {why}; cannot move it aside: {error.strerror}") from error
        if target is not None:  # else another process was faster
            self._warn(f"{path}: {why}; moved to {target}, to be computed again")

    def _read(self, kind: str, run: Spec) -> _Found | None:
        path, current = self._path(kind, run.name), _versions(run)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            self._move_aside(path, "it is a folder")
            return None
        except OSError as error:
            raise FilesError(f"cannot read {path}: {error.strerror}") from error
        try:
            header, values, made = self._parts(kind, run.name, content)
            read = record_from if kind == "record" else failure_from
            result = read(values, run.from_plain)
            versions = header["versions"]
            newer = {name: n for name, n in versions.items() if n > current.get(name, 0)}
            name = result.run.name
        except _NotOursError as error:
            self._move_aside(path, str(error))
            return None
        except (
            AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError,
        ) as error:  # fmt: skip
            self._move_aside(path, f"it cannot be understood ({error!r:.200})")
            return None
        if name != run.name:
            self._move_aside(path, f"it belongs to the run {name}")
            return None
        if newer:
            raise NewerStoreError(
                f"{path} has {newer}, newer than {current} of this antipgd: use a newer version, "
                f"or another --out"
            )
        return _Found(result, versions == current, made)

    def get(self, run: Spec) -> Record | None:
        """The record of a run; None if it is missing or stale."""
        found = self._read("record", run)
        return found.result if found is not None and found.current else None  # type: ignore[return-value]

    def runs(self, from_plain: Callable[[Mapping[str, Any]], Spec]) -> list[Spec]:
        """What there are current records of, by their names."""
        found = []
        for path in sorted((self.root / "record").glob("*/*.json")):
            try:
                run = from_plain(json.loads(path.read_bytes().splitlines()[2])["run"])
            except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
                self._warn(f"{path}: it is left out, for it cannot be understood ({error!r:.200})")
                continue
            if self.get(run) is not None:
                found.append(run)
        return found

    def provenance(self, run: Spec) -> dict[str, Any] | None:
        """Which code made the record of a run, on what and when."""
        found = self._read("record", run)
        return None if found is None else found.made

    def failure(self, run: Spec) -> Failure | None:
        """How a run failed, if the present code was what failed."""
        found = self._read("failure", run)
        return found.result if found is not None and found.current else None  # type: ignore[return-value]

    def state(self, run: Spec) -> str:
        """done, stale (made by other code), failed or missing."""
        found = self._read("record", run)
        if found is not None and found.current:
            return "done"
        if self.failure(run) is not None:
            return "failed"
        return "missing" if found is None else "stale"
