"""The application behind the live page: which requests are allowed, and how they are answered.

Only this machine can send requests: the server listens on the loopback address, and refuses requests to other host
names, which a page elsewhere could have made resolve to it. Every request needs the token. It is part of the address
of the page, whose script sends it with every request; pages of other origins never learn it, and their writes are
refused in any case.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ileed.errors import IleedError
from ileed.report.page import Page
from ileed.serve.session import Session

_LONGEST_BODY = 1_000  # bytes
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every response, besides the content security policy of the page."""


def application(session: Session, page: Page, *, token: str, port: int) -> ASGIApp:
    """The page, its data, the marks and saving, for requests that are allowed."""
    html, playback, marked = page.html(), session.playback, session.marks

    def episode(request: Request) -> Response:
        number, start = _index(request.path_params["episode"]), _index(request.path_params["step"])
        if not 0 <= number < marked.episodes:
            return _refusal(404, "there is no such episode: episodes are numbered from 0")
        if not 0 <= start < playback.steps(number):
            return _refusal(404, f"episode {number} has no such step: steps are numbered from 0")
        if request.url.path.startswith("/episodes"):
            return JSONResponse(playback.part(number, start))
        if (image := playback.frame(number, start)) is None:
            return _refusal(404, "observations are not images")
        return Response(image, media_type="image/png")

    def marks(request: Request) -> Response:
        found = marked.read()
        is_known = request.query_params.get("after") == str(found.version)
        return Response(status_code=204) if is_known else JSONResponse(found._asdict())

    async def mark(request: Request) -> Response:
        body = await _body(request)
        number, word = body.get("episode"), body.get("mark")
        if type(number) is not int or not 0 <= number < marked.episodes:
            return _refusal(422, "there is no such episode")
        if word not in ("keep", "drop", None):
            return _refusal(422, "a mark must be keep, drop, or null")
        found = await run_in_threadpool(marked.put, number, word)
        return JSONResponse({"version": found.version})

    async def save(request: Request) -> Response:
        replace = (await _body(request)).get("replace", False)
        if not isinstance(replace, bool | str):
            return _refusal(422, "replace must be true, false or the version of a saved folder")
        return JSONResponse(await run_in_threadpool(lambda: session.save(replace=replace)))

    routes = [
        Route("/", lambda request: HTMLResponse(html)),
        Route("/episodes", lambda request: JSONResponse(playback.listing())),
        Route("/episodes/{episode}/{step}", episode),
        Route("/frames/{episode}/{step}", episode),
        Route("/marks", marks, methods=["GET"]),
        Route("/marks", mark, methods=["POST"]),
        Route("/save", save, methods=["POST"]),
    ]
    refusals: dict[Any, Any] = {
        IleedError: lambda request, error: _refusal(409, str(error)),
        ClientDisconnect: lambda request, error: Response(status_code=400),  # nobody receives it
    }
    answers = Starlette(routes=routes, exception_handlers=refusals)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        reason = _reason_to_refuse(Request(scope), token, port)
        answer: ASGIApp = PlainTextResponse(f"{reason}\n", status_code=403) if reason else answers
        await answer(scope, receive, send)

    return guarded


def _index(text: str) -> int:
    """The number of an episode or step in an address; -1 for other text and for very many digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1


def _refusal(status: int, sentence: str) -> Response:
    return JSONResponse({"message": sentence}, status_code=status)


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object in the body of a request."""
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > _LONGEST_BODY:
            raise IleedError(f"the request is longer than {_LONGEST_BODY:,} bytes: send one mark at a time")
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(content or b"{}"), dict):
            return found
    raise IleedError("the request is not JSON: send an object")


def _reason_to_refuse(request: Request, token: str, port: int) -> str:
    """Why a request is refused; empty if it names this server, has the token and, if it writes, is from the page."""
    host, origins = request.headers.get("host", ""), request.headers.getlist("origin")
    reads = request.method in ("GET", "HEAD")
    if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
        return "This server only answers to 127.0.0.1 and localhost: use the address that the command printed."
    if any(origin != f"http://{host}" for origin in origins) or (not reads and not origins):
        return "This request comes from another page: use the one that the command opened."
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if request.url.path == "/" and reads:
        kind, given = "Bearer", request.query_params.get("token", "")
    if kind != "Bearer" or not secrets.compare_digest(given.encode(errors="replace"), token.encode()):
        return "The token is missing or wrong: use the whole address that the command printed."
    return ""
