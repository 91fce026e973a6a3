"""Archives of strangers: what is wanted is read, what is odd is refused by name."""

import gzip
import io
import tarfile

import pytest

from antipgd.paper.networks.data import DataError, DataUsageError
from antipgd.paper.networks.data.unpacking import read_archive, read_folder

LIMITS = {"largest": 1000, "limit": 100_000}


def write(path, *members):
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def member(name, kind=tarfile.REGTYPE, target=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def test_only_what_is_wanted_is_read(tmp_path):
    path = write(
        tmp_path / "a.tar.gz",
        (member("top", tarfile.DIRTYPE), b""),
        (member("top/a"), b"one"),
        (member("top/readme"), b"no"),
        (member("./b"), b"two"),
    )
    assert read_archive(path, {"a", "b", "c"}, **LIMITS) == {"a": b"one", "b": b"two"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (member("../a"), r"member '\.\./a' would leave its folder"),
        (member("top/../../a"), r"member 'top/\.\./\.\./a' would leave its folder"),
        (member("/etc/a"), r"member '/etc/a' would leave its folder"),
        (member("a", tarfile.SYMTYPE, "/etc/passwd"), "member 'a' is a link"),
        (member("a", tarfile.LNKTYPE, "top/b"), "member 'a' is a link"),
        (member("other", tarfile.SYMTYPE, ".."), "member 'other' is a link"),
        (member("a", tarfile.FIFOTYPE), "member 'a' is neither file nor folder"),
        (member("a", tarfile.CHRTYPE), "member 'a' is neither file nor folder"),
    ],
)
def test_members_that_lead_elsewhere_are_refused(tmp_path, bad, message):
    path = write(tmp_path / "a.tar.gz", (member("b"), b"good"), (bad, b""))
    with pytest.raises(DataError, match=f"{path}: {message}.*refused"):
        read_archive(path, {"a", "b"}, **LIMITS)


def test_the_same_name_twice_is_refused(tmp_path):
    path = write(tmp_path / "a.tar.gz", (member("x/a"), b"one"), (member("y/a"), b"two"))
    with pytest.raises(DataError, match="has more than one a; refused"):
        read_archive(path, {"a"}, **LIMITS)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = write(tmp_path / "a.tar.gz", (member("a"), bytes(1001)))
    with pytest.raises(DataError, match="a has 1,001 bytes; at most 1,000 are accepted"):
        read_archive(path, {"a"}, **LIMITS)


@pytest.mark.parametrize("name", ["a", "unwanted", "long" * 100])
def test_an_archive_that_swells_is_refused(tmp_path, name):
    path = write(tmp_path / "a.tar.gz", (member(name), bytes(10**7)))
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match="unpacks to more than 100,000 bytes"):
        read_archive(path, {"a"}, largest=10**8, limit=100_000)


def test_a_swelling_header_is_refused(tmp_path):
    """A pax header is read by tarfile itself, into memory, before any member is seen."""
    header = member("a")
    header.pax_headers = {"comment": "x" * 10**6}
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(header, io.BytesIO())
    with pytest.raises(DataError, match="unpacks to more than 100,000 bytes"):
        read_archive(path, {"a"}, **LIMITS)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_archive(tmp_path, part):
    noise = bytes(range(256)) * 3
    path = write(tmp_path / "a.tar.gz", *((member(f"f{i}"), noise) for i in range(40)))
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(DataError, match=f"{path} is truncated or damaged"):
        read_archive(path, {"f0", "f39"}, **LIMITS)


def test_a_truncated_archive_in_a_whole_compression(tmp_path):
    path = write(tmp_path / "a.tar.gz", (member("a"), bytes(900)))
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:1000]))
    with pytest.raises(DataError, match=f"{path} is truncated or damaged: unexpected end of data"):
        read_archive(path, {"a"}, **LIMITS)


def test_something_else_than_an_archive(tmp_path):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=f"{path} is not a .tar.gz archive, or is damaged"):
        read_archive(path, {"a"}, **LIMITS)
    path.write_bytes(gzip.compress(b"no tar" * 500))
    with pytest.raises(DataError, match=f"{path} is truncated or damaged"):
        read_archive(path, {"a"}, **LIMITS)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=f"{path} is truncated or damaged"):
        read_archive(path, {"a"}, **LIMITS)


def test_an_archive_that_is_not_there(tmp_path):
    with pytest.raises(DataUsageError, match=r"cannot read .*none: No such file"):
        read_archive(tmp_path / "none", {"a"}, **LIMITS)


def test_a_folder_and_the_folders_in_it(tmp_path):
    (tmp_path / "inner" / "deep").mkdir(parents=True)
    (tmp_path / "a").write_bytes(b"outer")
    (tmp_path / "inner" / "a").write_bytes(b"inner")
    (tmp_path / "inner" / "b").write_bytes(b"two")
    (tmp_path / "inner" / "deep" / "c").write_bytes(b"too deep")
    assert read_folder(tmp_path, {"a", "b", "c"}, largest=10) == {"a": b"outer", "b": b"two"}
    with pytest.raises(DataError, match="a has 5 bytes; at most 4 are accepted"):
        read_folder(tmp_path, {"a"}, largest=4)
