"""A live page about a run: its report, with a browser of episodes in which these are played, marked and saved.

A `Session` is what the page is about; a `Server` serves it on the loopback address until it is stopped.
"""

from __future__ import annotations

import secrets
import socket
from typing import final

from ileed.errors import SettingsError, require, whole_number
from ileed.serve.session import Destination, Marks, Session

__all__ = ["Destination", "Marks", "Server", "Session", "require_server"]

_LOOPBACK = "127.0.0.1"


def require_server() -> None:
    """Refuse in one sentence where the server is not installed."""
    for package in ("starlette", "uvicorn"):
        require(package, extra="serve")


@final
class Server:
    """Serves one session at `address`, which has the token that every request needs; needs the extra `serve`."""

    def __init__(self, session: Session, *, port: int = 0) -> None:
        require_server()
        import uvicorn

        from ileed.serve.application import application

        port = whole_number("port", port, rule="pass a whole number, or 0 for any port that is free")
        if not 0 <= port < 1 << 16:
            raise SettingsError(f"the port is {port}: it lies between 1 and 65,535, or is 0 for any that is free")
        token, shown = secrets.token_urlsafe(32), session.page()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((_LOOPBACK, port))
        except OSError as error:
            self._socket.close()
            raise SettingsError(f"port {port} is taken ({error.strerror}): choose another, or 0 for any") from error
        self._socket.listen()
        self.port = int(self._socket.getsockname()[1])
        self.address = f"http://{_LOOPBACK}:{self.port}/?token={token}"
        """Of the page; whoever knows it can read the data and mark episodes."""
        answers = application(session, shown, token=token, port=self.port)
        # no log of requests: it would hold the token
        settings = uvicorn.Config(
            answers,
            access_log=False,
            log_level="warning",
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=3,
        )
        self._server = uvicorn.Server(settings)

    def run(self) -> None:
        """Serve until `stop`, or until the process is interrupted."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """End `run`, which another thread is in."""
        self._server.should_exit = True
