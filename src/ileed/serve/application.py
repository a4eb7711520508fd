"""The application behind the live page: who may ask, and what each address answers.

Only this machine can ask: the server listens on the loopback address and refuses other names of it, which a page
elsewhere could have pointed here. Only who has the token may ask. It stands in the address of the page, whose script
sends it along with every request; a page of another origin never learns it, and its writes are refused besides.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ileed.errors import IleedError
from ileed.report.page import Page
from ileed.serve.session import Session

_LONGEST_BODY = 1_000  # bytes
_READS = ("GET", "HEAD")
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def application(session: Session, page: Page, *, token: str, port: int) -> ASGIApp:
    """The application: the page, its data, marks and saving, behind the guard."""
    html, playback, marked = page.html(), session.playback, session.marks

    def show(request: Request) -> Response:
        return HTMLResponse(html)

    def episodes(request: Request) -> Response:
        return JSONResponse(playback.listing())

    def episode(request: Request) -> Response:
        number, start = _index(request.path_params["episode"]), _index(request.path_params["step"])
        if not 0 <= number < marked.episodes:
            return _refusal(404, "there is no such episode: they are numbered from 0")
        if not 0 <= start < playback.steps(number):
            return _refusal(404, f"episode {number} has no such step: steps are numbered from 0")
        if request.url.path.startswith("/episodes"):
            return JSONResponse(playback.part(number, start))
        image = playback.frame(number, start)
        return (
            _refusal(404, "observations are not images") if image is None else Response(image, media_type="image/png")
        )

    def marks(request: Request) -> Response:
        found = marked.read()
        is_known = request.query_params.get("after") == str(found.version)
        return Response(status_code=204) if is_known else JSONResponse(found._asdict())

    async def mark(request: Request) -> Response:
        asked = await _body(request)
        number, word = asked.get("episode"), asked.get("mark")
        if type(number) is not int or not 0 <= number < marked.episodes:
            return _refusal(422, "there is no such episode to mark")
        if word not in ("keep", "drop", None):
            return _refusal(422, "a mark is keep, drop, or null for none")
        found = await run_in_threadpool(marked.put, number, word)
        return JSONResponse({"version": found.version})

    async def save(request: Request) -> Response:
        asked = await _body(request)
        replace = asked.get("replace", False)
        if not isinstance(replace, bool | str):
            return _refusal(422, "replace is true, false or the version of a folder that was saved")
        return JSONResponse(await run_in_threadpool(lambda: session.save(replace=replace)))

    routes = [
        Route("/", show),
        Route("/episodes", episodes),
        Route("/episodes/{episode}/{step}", episode),
        Route("/frames/{episode}/{step}", episode),
        Route("/marks", marks, methods=["GET"]),
        Route("/marks", mark, methods=["POST"]),
        Route("/save", save, methods=["POST"]),
    ]
    refusals: dict[Any, Any] = {
        IleedError: lambda request, error: _refusal(409, str(error)),
        ClientDisconnect: lambda request, error: Response(status_code=400),  # which no client receives
    }
    return Guard(Starlette(routes=routes, exception_handlers=refusals), page.policy, token=token, port=port)


def _index(text: str) -> int:
    """The number of an episode or step in an address; -1 for other text, and for more digits than any number has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1


def _refusal(status: int, sentence: str) -> Response:
    return JSONResponse({"message": sentence}, status_code=status)


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request, which is short."""
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > _LONGEST_BODY:
            raise IleedError(f"the request is longer than {_LONGEST_BODY:,} bytes: send one mark at a time")
    try:
        found = json.loads(content or b"{}")
    except (ValueError, RecursionError) as error:
        raise IleedError("the request is not JSON: send an object") from error
    if not isinstance(found, dict):
        raise IleedError("the request is not a JSON object: send one")
    return found


@final
class Guard:
    """Lets a request through that names this server, has the token and, where it writes, comes from its own page."""

    def __init__(self, inner: ASGIApp, policy: str, *, token: str, port: int) -> None:
        self._inner, self._token = inner, token.encode()
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        self._headers = {**_HEADERS, "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        reason = self.refuses(Request(scope))
        answer: Callable[[Scope, Receive, Send], Awaitable[None]] = self._inner
        if reason:
            answer = PlainTextResponse(f"{reason}\n", status_code=403)
        await answer(scope, receive, with_headers)

    def refuses(self, request: Request) -> str:
        """Why a request is refused; empty where it is not."""
        host, origins = request.headers.get("host", ""), request.headers.getlist("origin")
        if host not in self._hosts:
            return "This server answers to 127.0.0.1 and localhost alone: use the address that the command printed."
        if any(origin != f"http://{host}" for origin in origins) or (request.method not in _READS and not origins):
            return "This request comes from another page: use the one that the command opened."
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if request.url.path == "/" and request.method in _READS:
            kind, token = "Bearer", request.query_params.get("token", "")
        if kind != "Bearer" or not secrets.compare_digest(token.encode(errors="replace"), self._token):
            return "The token is missing or wrong: use the whole address that the command printed."
        return ""
