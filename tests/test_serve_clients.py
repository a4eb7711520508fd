"""Clients of the live page that misbehave cause no traceback, and files that cannot be read are not damaged."""

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


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    data = follows([0.9, 0.5], steps=60, actions=3, seed=1)
    fitted = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=1, steps=5).fit(data, seed=0, device="cpu")
    run = tmp_path_factory.mktemp("clients") / "run"
    fitted.save(run)
    marks = Marks.of(run, data.fingerprint, data.episode_count)
    return Session(run, fitted, ileed.curate(fitted, data, keep=0.5), marks, Destination(run.parent / "out"))


@pytest.fixture(scope="module")
def server(session):
    server = Server(session)
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


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.EIO, errno.EACCES, errno.EINTR])
def test_marks_that_cannot_be_read_for_the_moment_are_not_said_to_be_damaged(session, monkeypatch, reason):
    session.marks.put(0, "keep")
    content = session.marks.path.read_bytes()

    def fail(path, *_):
        raise OSError(reason, os.strerror(reason), str(path))

    monkeypatch.setattr(Path, "open", fail)
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
