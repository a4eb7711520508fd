"""A live page about a run: its report, with a browser of episodes in which these are played, marked and saved.

A `Session` is what the page is about; a `Server` serves it on the loopback address until it is stopped.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, final

from ileed import stores
from ileed.checking import whole_number
from ileed.curation import Curated
from ileed.curation.outputs import version
from ileed.demonstrations import Demonstrations
from ileed.errors import DemonstrationError, SettingsError, require_all
from ileed.fitted import Fitted
from ileed.report import page
from ileed.report.evidence import data_of_run
from ileed.report.layout import Live, Page
from ileed.report.people import labels_of
from ileed.report.sections import Content
from ileed.serve.marks import Marks
from ileed.serve.playback import Playback

__all__ = ["Destination", "Marks", "Server", "Session", "require_server"]

_HOME = Path(__file__).parent
_LOOPBACK = "127.0.0.1"


def require_server() -> None:
    """Refuse in one sentence where the server is not installed."""
    require_all({"starlette": "serve", "uvicorn": "serve"})


@final
@dataclass(frozen=True)
class Destination:
    """Where the result is written and for which trainer, as `Curated.write` takes it."""

    out: Path
    format: str | None = None
    source: Path | None = None
    overwrite: bool = False


@final
@dataclass(frozen=True, eq=False)
class Session:
    """A run, its scored episodes, the marks that somebody gives them, and where the result goes."""

    run: Path
    fitted: Fitted
    curated: Curated
    marks: Marks
    destination: Destination
    _saving: Lock = field(default_factory=Lock)

    @cached_property
    def playback(self) -> Playback:
        """The episodes, step by step."""
        return Playback(self.fitted, self.curated)

    def page(self) -> Page:
        """The report of the run with the browser of episodes; without the data where they are not those of the run."""
        data: Demonstrations | None
        try:
            data = data_of_run(self.fitted, self.curated.data)
        except DemonstrationError:
            data = None
        title = f"Demonstrator report: {labels_of([stores.base_name(self.run)])[0]}"
        live = Live(*((_HOME / f"live.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")))
        return page(title, self.fitted, Content.of(self.fitted, {}, {}, data), command=None, live=live)

    def save(self, *, replace: bool | str = False) -> Mapping[str, Any]:
        """Write what is kept by the rule and the marks of this moment, as `ileed curate` does.

        A folder of curated episodes that exists is replaced if `replace` is True, or if it is still the version of
        that name, which an earlier call returned.
        """
        to = self.destination
        with self._saving:
            curated = self.curated.marked(self.marks.read().kept)
            replace = replace is True or replace == version(to.out)
            written = curated.write(to.out, format=to.format, source=to.source, overwrite=to.overwrite or replace)
            saved = version(to.out)
        files = [path.name for path in written]
        return {"sentence": curated.sentence, "folder": str(to.out), "files": files, "version": saved}


@final
class Server:
    """Serves one session at `address`, which has the token that every request needs; needs the extra `serve`.

    A connection whose client sends no whole request, or does not read the response, for `patience` seconds is closed.
    """

    def __init__(self, session: Session, *, port: int = 0, patience: float = 10.0) -> None:
        require_server()
        import uvicorn

        from ileed.serve.application import application
        from ileed.serve.connections import PatientProtocol

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
            http=PatientProtocol,
            access_log=False,
            log_level="warning",
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=3,
            timeout_keep_alive=patience,  # type: ignore[arg-type]  # asyncio takes fractions of a second
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
