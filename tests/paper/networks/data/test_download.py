"""Downloads: whole and checked, or resumed, or refused. The server is on this machine."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from antipgd.paper.networks.data import DataError
from antipgd.paper.networks.data.download import download

CONTENT = bytes(range(256)) * 2000
MD5 = hashlib.md5(CONTENT).hexdigest()
CHECKED = {"size": len(CONTENT), "md5": MD5}


class Server(ThreadingHTTPServer):
    content = CONTENT
    ranges = True  # whether it can resume
    stop_after = None  # bytes, then the connection ends
    stall = None  # an event to wait for after half of the file
    status = 200

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/file"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.asked.append(asked)
        begin = int(asked[6:-1]) if asked and server.ranges else 0
        if begin and begin >= len(server.content):
            self.send_error(416)
            return
        if server.status != 200:
            self.send_error(server.status)
            return
        body = server.content[begin:]
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.stop_after is not None:
            body = body[: server.stop_after]
        if server.stall is not None:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            server.stall.wait(30)
            return
        self.wfile.write(body)


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "file"


def part_of(target):
    return target.with_name("file.part")


def test_a_file_arrives_whole(server, target):
    download(server.url, target, **CHECKED)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_lost_connection_goes_on_where_it_was_lost(server, target, ranges):
    server.ranges, server.stop_after = ranges, 100_000
    with pytest.raises(DataError, match="100,000 of 512,000 bytes; the same command goes on"):
        download(server.url, target, **CHECKED)
    assert not target.exists()
    server.stop_after = None
    download(server.url, target, **CHECKED)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-"]


def test_a_killed_download_goes_on(server, target):
    server.stall = threading.Event()
    call = f"download({server.url!r}, Path({str(target)!r}), size={len(CONTENT)}, md5={MD5!r})"
    room = "antipgd.paper.networks.data.download"
    code = f"from pathlib import Path; from {room} import download; {call}"
    child = subprocess.Popen([sys.executable, "-c", code])
    part, deadline = part_of(target), time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    server.stall.set()
    server.stall = None
    assert 0 < part.stat().st_size < len(CONTENT)
    download(server.url, target, **CHECKED)
    assert target.read_bytes() == CONTENT
    assert server.asked[1].startswith("bytes=")


@pytest.mark.parametrize(
    "left", [b"something else", bytes(len(CONTENT)), bytes(len(CONTENT) + 1), b""]
)
def test_what_was_left_by_something_else_is_thrown_away(server, target, left):
    part_of(target).write_bytes(left)
    download(server.url, target, **CHECKED)
    assert target.read_bytes() == CONTENT
    assert not part_of(target).exists()


def test_a_server_that_has_less_than_was_left(server, target):
    part_of(target).write_bytes(bytes(1000))
    server.content = CONTENT[:500]
    with pytest.raises(DataError, match="500 of 512,000 bytes"):
        download(server.url, target, **CHECKED)
    assert server.asked == ["bytes=1000-", None]


def test_a_wrong_checksum_is_refused_with_both_values(server, target):
    server.content = bytes(len(CONTENT))
    found = hashlib.md5(server.content).hexdigest()
    with pytest.raises(DataError, match=f"expected MD5 {MD5}, found {found}; thrown away"):
        download(server.url, target, **CHECKED)
    assert list(target.parent.iterdir()) == []


def test_more_than_expected_is_refused(server, target):
    server.content = CONTENT + bytes(10**6)
    with pytest.raises(DataError, match="has more than the expected 512,000 bytes"):
        download(server.url, target, **CHECKED)
    assert list(target.parent.iterdir()) == []


def test_what_the_server_refuses(server, target):
    server.status = 404
    with pytest.raises(DataError, match=f"cannot download {server.url}: Not Found"):
        download(server.url, target, **CHECKED)


def test_nobody_answers(target):
    with pytest.raises(DataError, match=r"cannot download http://127.0.0.1:9/file: .*refused"):
        download("http://127.0.0.1:9/file", target, **CHECKED)


def test_a_server_that_falls_silent(server, target):
    server.stall = threading.Event()
    with pytest.raises(DataError, match=r"timed out after .* the same command goes on"):
        download(server.url, target, **CHECKED, timeout=0.2)
    server.stall.set()


def test_a_folder_that_is_not_there(server, tmp_path):
    with pytest.raises(DataError, match="No such file"):
        download(server.url, tmp_path / "none" / "file", **CHECKED)
