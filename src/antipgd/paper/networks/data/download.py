"""One file from the web, whole and checked, or not at all.

It grows as `NAME.part`; what a killed download left there is taken up where it stopped, and thrown
away if it turns out to be the beginning of something else.
"""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from antipgd.paper.networks.data.errors import DataError

_CHUNK = 2**16
_RANGE_REFUSED = 416


def _ask(url: str, have: int, timeout: float) -> http.client.HTTPResponse:
    headers = {"User-Agent": "antipgd"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if have and error.code == _RANGE_REFUSED:
            error.close()
            return _ask(url, 0, timeout)
        raise


def _bar(size: int, have: int) -> tqdm:
    # disable=None: on a terminal only
    return tqdm(total=size, initial=have, unit="B", unit_scale=True, disable=None)


def _append(answer: http.client.HTTPResponse, part: Path, size: int) -> None:
    """Write what comes, after what is there if the server resumed; stop where it is too much."""
    resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
    with open(part, "ab" if resumed else "wb") as file, _bar(size, file.tell()) as bar:
        while file.tell() <= size and (chunk := answer.read(_CHUNK)):
            file.write(chunk)
            bar.update(len(chunk))


def _fill(url: str, part: Path, size: int, timeout: float) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have == size:
        return
    try:
        with _ask(url, have if have < size else 0, timeout) as answer:
            _append(answer, part, size)
        reason = "the connection ended"
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or repr(error)
    found = part.stat().st_size if part.exists() else 0
    if found > size:
        part.unlink()
        raise DataError(f"{url} has more than the expected {size:,} bytes")
    if found < size:
        kept = f" after {found:,} of {size:,} bytes; the same command goes on" if found else ""
        raise DataError(f"cannot download {url}: {reason}{kept}")


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(url: str, target: Path, *, size: int, md5: str, timeout: float = 20) -> None:
    """Put the file at `url` to `target`, once its size and MD5 are the expected ones."""
    part = target.with_name(f"{target.name}.part")
    left_over = part.exists()
    try:
        _fill(url, part, size, timeout)
        found = _md5(part)
        if found != md5 and left_over:
            part.unlink()
            _fill(url, part, size, timeout)
            found = _md5(part)
        if found != md5:
            part.unlink()
            raise DataError(f"{url}: expected MD5 {md5}, found {found}; thrown away")
        os.replace(part, target)
    except OSError as error:
        raise DataError(f"cannot write {part}: {error.strerror}") from error
