"""Connections of the live page: few at a time, and none that waits for its client without end."""

from __future__ import annotations

import asyncio
from typing import Any, final

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 100
"""Connections that are open at once. A browser keeps six; a process may have as few as 256 open files."""


@final
class PatientProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose client keeps it waiting for longer than `Config.timeout_keep_alive`.

    uvicorn applies that limit between two requests only. A client that connects and sends nothing, that sends half a
    request, or that never reads the response would hold a file descriptor for as long as the server runs.
    """

    _timer: asyncio.TimerHandle | None = None
    _seen: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST:
            transport.abort()
        else:
            self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _check(self) -> None:
        """Close the connection if it has waited for the same thing since the last check; else check again later."""
        now = self._waits_for()
        if now is not None and now == self._seen:
            self.transport.abort()
            return
        self._seen = now
        self._timer = self.loop.call_later(self.timeout_keep_alive / 2, self._check)

    def _waits_for(self) -> tuple[Any, ...] | None:
        """What the client has yet to do: read so many bytes, or send the request after this one; None for nothing."""
        if unread := self.transport.get_write_buffer_size():
            return ("read", unread)
        answering = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        return None if answering else ("send", id(self.cycle))
