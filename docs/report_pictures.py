"""Pictures of the report for the documents: desktop, phone, dark and print, of the Square data; and of the live page.

`make pictures` runs this. It needs Chromium (`make browser`).
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import ileed
from ileed.data import Demonstrations
from ileed.methods import Fitted
from ileed.serve import Destination, Marks, Server, Session

HOME = Path(__file__).parent
sys.path.insert(0, str(HOME.parent / "tests"))

from browser import Browser, browser  # noqa: E402

LOOKS = {
    "desktop": {"width": 1280, "height": 1480},
    "phone": {"width": 390, "height": 1500},
    "dark": {"width": 1280, "height": 1480, "dark": True},
    "print": {"width": 794, "height": 1123, "paper": True},
}


def main() -> None:
    """Fit, write the page and take its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        data = ileed.shipped("square")
        method = ileed.Ileed(policy=ileed.MixtureMLP(hidden=(4, 4), modes=5), restarts=4, steps=300)
        fitted = method.fit(data, seed=0, device="cpu")
        fitted.save(Path(folder) / "square")
        page = ileed.report(Path(folder) / "square", data=data)
        with browser() as opened:
            for name, look in LOOKS.items():
                opened.open(page, **look)
                if "paper" in look:
                    opened.value("document.body.style.padding = '56px'")  # as the margins of a sheet
                opened.picture(HOME / "images" / f"report-{name}.png", height=int(look["height"]))
                print(f"wrote docs/images/report-{name}.png")
            picture_of_the_live_page(opened, Path(folder), fitted, data)


def picture_of_the_live_page(opened: Browser, folder: Path, fitted: Fitted, data: Demonstrations) -> None:
    """Serve the run, mark two episodes, and take a picture at a step of the third."""
    marks = Marks.of(folder, data.fingerprint, data.episode_count)
    curated = ileed.curate(fitted, data, keep=0.5)
    server = Server(Session(folder / "square", fitted, curated, marks, Destination(folder / "curated")))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        opened.open(server.address, width=1280, height=1080)
        for keys in ("d", "jk", "j" + 30 * ">"):
            until(opened, "document.querySelectorAll('#facts dt').length")
            for key in keys:
                name = "ArrowRight" if key == ">" else key
                event = f"new KeyboardEvent('keydown', {{key: '{name}', bubbles: true}})"
                opened.value(f"document.body.dispatchEvent({event})")
            time.sleep(1)
        opened.picture(HOME / "images" / "serve.png", whole=False)
        print("wrote docs/images/serve.png")
    finally:
        server.stop()
        thread.join()


def until(opened: Browser, script: str) -> None:
    """Wait until an expression in the page is true."""
    while not opened.value(script):
        time.sleep(0.05)


if __name__ == "__main__":
    main()
