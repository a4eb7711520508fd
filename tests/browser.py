"""A browser for tests and pictures of pages: Chromium without a window, told what to do through a pipe.

The protocol is that of Chromium's own developer tools: JSON between zero bytes on two file descriptors.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--force-color-profile=srgb",
]


class Browser:
    """One page in a browser that has just been started; `console` and `requests` are what it wrote and asked for."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._rest, self._number, self._session = read, write, b"", 0, ""
        self.console: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return dict(found["result"])

    def _next(self, seconds: float = 60) -> dict[str, Any]:
        end = monotonic() + seconds
        while b"\0" not in self._rest:
            if not select([self._read], [], [], max(0.0, end - monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            self._rest += os.read(self._read, 1 << 20)
        line, _, self._rest = self._rest.partition(b"\0")
        found = json.loads(line)
        self._note(found.get("method", ""), found.get("params", {}))
        return dict(found)

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.console.append(json.dumps(told)[:500])

    def open(
        self, page: Path | str, *, width: int = 1280, height: int = 800, dark: bool = False, paper: bool = False
    ) -> float:
        """Show a file or an address, and say how many seconds it took to load."""
        phone = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", media="print" if paper else "", features=scheme)
        self._loaded, began = False, monotonic()
        self.send("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not self._loaded:
            self._next()
        self.value("document.body.offsetHeight")  # laid out as well
        return monotonic() - began

    def value(self, script: str) -> Any:
        """What an expression in the page gives; a promise is waited for."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """A key: Tab, Enter or Space."""
        code = {"Tab": 9, "Enter": 13, "Space": 32}[key]
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        name = " " if key == "Space" else key
        for kind in ("keyDown", "keyUp"):
            words = {"text": text} if kind == "keyDown" and text else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=key, windowsVirtualKeyCode=code, **words)

    def picture(self, path: Path, *, whole: bool = True, height: int | None = None) -> None:
        """A picture of the page, all of it or its first screen, as PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], height or 16_000), "scale": 1}
        options = {"captureBeyondViewport": True, "clip": clip} if whole else {}
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png", **options)["data"]))

    def pdf(self, path: Path) -> None:
        """The page as it is printed, on A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": False}
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", **size)["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser, closed at the end."""
    assert CHROMIUM is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_in, ours_out)
        finally:
            process.terminate()
            process.wait(timeout=30)
            os.close(ours_in)
            os.close(ours_out)
