"""Clients of the live page that misbehave: they hold no connection for long and cause no traceback."""

from __future__ import annotations

import errno
import http.client
import logging
import os
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from strategies import follows

import ileed
from ileed.errors import RunError
from ileed.serve import Destination, Marks, Server, Session

pytest.importorskip("starlette", reason="starlette is absent: pip install 'ileed[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is absent: pip install 'ileed[serve]'")

PATIENCE = 0.6  # seconds


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    data = follows([0.9, 0.5], steps=60, actions=3, seed=1)
    fitted = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=1, steps=5).fit(data, seed=0, device="cpu")
    run = tmp_path_factory.mktemp("clients") / "run"
    fitted.save(run)
    marks = Marks.of(run, data.fingerprint(), data.episode_count)
    return Session(run, fitted, ileed.curate(fitted, data, keep=0.5), marks, Destination(run.parent / "out"))


@pytest.fixture(scope="module")
def server(session):
    server = Server(session, patience=PATIENCE)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    server.stop()
    thread.join(timeout=30)
    assert not thread.is_alive()


@pytest.fixture
def logged(server):
    """What the server has logged, of which a traceback would be a part."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    yield records
    for logger in loggers:
        logger.removeHandler(handler)


def request_head(server, method="GET", path="/marks", **headers) -> bytes:
    token = urlsplit(server.address).query.removeprefix("token=")
    origin = f"http://127.0.0.1:{server.port}"
    usual = {"Host": f"127.0.0.1:{server.port}", "Authorization": f"Bearer {token}", "Origin": origin}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (usual | headers).items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def status(server, path="/marks") -> int:
    token = urlsplit(server.address).query.removeprefix("token=")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    finally:
        connection.close()


def open_socket(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def is_closed_by_the_server(client: socket.socket) -> bool:
    """Waits for the server to close a connection; false if it has not within 10 seconds."""
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("digits", [19, 100, 5_000])
@pytest.mark.parametrize("path", ["/episodes/{}/0", "/episodes/0/{}", "/frames/{}/0"])
def test_an_episode_number_of_very_many_digits_is_not_found(server, logged, path, digits):
    assert status(server, path.format("9" * digits)) == 404
    assert status(server, path.format("0" * digits)) in (200, 404)
    assert not logged


@pytest.mark.parametrize("path", ["/marks", "/save"])
def test_a_client_that_disconnects_in_the_middle_of_its_request_leaves_no_traceback(server, session, logged, path):
    before = session.marks.read()
    for _ in range(3):
        with open_socket(server) as client:
            client.sendall(request_head(server, "POST", path, **{"Content-Length": "100"}) + b'{"episode"')
    assert status(server) == 200
    time.sleep(0.2)  # the server handles the end of a connection after that
    assert not logged
    assert session.marks.read() == before
    assert not session.destination.out.exists()


HALVES = {
    "nothing": lambda server: b"",
    "half a head": lambda server: request_head(server)[:40],
    "half a body": lambda server: request_head(server, "POST", "/marks", **{"Content-Length": "100"}) + b"{",
    "half of the next request": lambda server: request_head(server) + request_head(server)[:40],
}


@pytest.mark.parametrize("sent", HALVES.values(), ids=HALVES)
def test_a_connection_that_waits_for_its_client_is_closed(server, logged, sent):
    with open_socket(server) as client:
        client.sendall(sent(server))
        began = time.monotonic()
        assert is_closed_by_the_server(client)
        assert time.monotonic() - began < 20 * PATIENCE  # not an exact limit: the machine may be busy
    assert not logged


def test_a_byte_now_and_then_does_not_keep_a_connection_open(server):
    with open_socket(server) as client:
        for byte in request_head(server):
            try:
                client.sendall(bytes([byte]))
            except ConnectionError:
                return
            time.sleep(PATIENCE / 5)
    pytest.fail("the server has waited for all bytes of a slow request")


def test_half_open_connections_do_not_use_up_the_files_of_the_process(server, logged):
    files = Path("/proc/self/fd")
    if not files.exists():
        pytest.skip("this system has no /proc/self/fd")
    before = len(os.listdir(files))
    clients = [open_socket(server) for _ in range(300)]
    try:
        time.sleep(0.2)
        assert len(os.listdir(files)) - before - len(clients) <= 110  # what the server holds, in the same process
        assert all(is_closed_by_the_server(client) for client in clients)
        assert status(server) == 200
    finally:
        for client in clients:
            client.close()
    assert not logged


def test_a_client_that_never_reads_the_response_is_disconnected(server, logged):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        page = f"/?{urlsplit(server.address).query}"
        client.sendall(request_head(server, path=page) * 20)  # more than the buffers of both sides hold
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            time.sleep(PATIENCE)
            try:
                client.sendall(b"x")  # fails once the server has given up
            except ConnectionError:
                break
        else:
            pytest.fail("the server still waits for a client that reads nothing")
    assert status(server) == 200
    assert not logged


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.EIO, errno.EACCES, errno.EINTR])
def test_marks_that_cannot_be_read_for_the_moment_are_not_said_to_be_damaged(session, monkeypatch, reason):
    session.marks.put(0, "keep")
    content = session.marks.path.read_bytes()

    def fail(path):
        raise OSError(reason, os.strerror(reason), str(path))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(RunError) as refused:
        session.marks.read()
    assert "away" not in str(refused.value)
    assert "try again" in str(refused.value)
    monkeypatch.undo()
    assert session.marks.path.read_bytes() == content
    session.marks.put(0, None)


def test_a_damaged_file_of_marks_is_still_to_be_moved_away(session, tmp_path):
    path = tmp_path / session.marks.path.name
    path.write_text("{")
    with pytest.raises(RunError, match="move it away"):
        Marks(path, session.marks.fingerprint, session.marks.episodes).read()


@pytest.mark.parametrize("name", ["settings.json", "weights.safetensors"])
def test_a_run_that_cannot_be_read_for_the_moment_is_not_said_to_be_damaged(session, monkeypatch, name):
    def fail(path, *_, **__):
        if path.name == name:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return opened(path, *_, **__)

    opened = Path.open
    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(RunError, match="try again"):
        ileed.load(session.run)
