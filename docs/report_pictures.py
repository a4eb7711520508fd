"""Pictures of the report for the documents: desktop, phone, dark and print, of the Square data of the package.

`make pictures` runs this. It needs Chromium (`make browser`).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import ileed

HOME = Path(__file__).parent
sys.path.insert(0, str(HOME.parent / "tests"))

from browser import browser  # noqa: E402

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
        method.fit(data, seed=0, device="cpu").save(Path(folder) / "square")
        page = ileed.report(Path(folder) / "square", data=data)
        with browser() as opened:
            for name, look in LOOKS.items():
                opened.open(page, **look)
                if "paper" in look:
                    opened.value("document.body.style.padding = '56px'")  # as the margins of a sheet
                opened.picture(HOME / "images" / f"report-{name}.png", height=int(look["height"]))
                print(f"wrote docs/images/report-{name}.png")


if __name__ == "__main__":
    main()
