"""A live page about a run: its report, and a browser in which episodes are played, marked and saved.

A `Session` is the content of the page; a `Server` serves it on the loopback address until it is stopped.
"""

from __future__ import annotations

import secrets
import socket
from typing import final

from ileed.errors import SettingsError, require, whole_number
from ileed.serve.session import Destination, Marks, Session

__all__ = ["Destination", "Marks", "Server", "Session", "require_server"]


def require_server() -> None:
    """Refuse to serve if the extra `serve` is not installed."""
    for package in ("starlette", "uvicorn"):
        require(package, extra="serve")


@final
class Server:
    """Serves one session at `address`, which contains the token that every request needs."""

    def __init__(self, session: Session, *, port: int = 0) -> None:
        require_server()
        import uvicorn

        from ileed.serve.application import HEADERS, application

        port = whole_number(
            "port", port, least=0, most=65_535, rule="choose one from 1 to 65,535, or 0 for any free port"
        )
        token, shown = secrets.token_urlsafe(32), session.page()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
        except OSError as error:
            self._socket.close()
            message = f"port {port} is not available ({error.strerror}): choose another, or 0 for any free port"
            raise SettingsError(message, code="port-taken") from error
        self._socket.listen()
        self.port = int(self._socket.getsockname()[1])
        self.address = f"http://127.0.0.1:{self.port}/?token={token}"
        """The address of the page; it gives access to the data and the marks."""
        answers = application(session, shown, token=token, port=self.port)
        settings = uvicorn.Config(
            answers,
            headers=[*HEADERS.items(), ("Content-Security-Policy", f"{shown.policy}; frame-ancestors 'none'")],
            access_log=False,  # it would contain the token
            log_level="warning",
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=3,
        )
        self._server = uvicorn.Server(settings)

    def run(self) -> None:
        """Serve until `stop` is called or the process is interrupted."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """End `run`, which runs in another thread."""
        self._server.should_exit = True
