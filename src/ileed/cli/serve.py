"""`ileed serve`: the report and all episodes in a browser, to play and mark."""

from __future__ import annotations

import html
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ileed.cli.console import Output, bar, print_json
from ileed.cli.curate import OfCuration
from ileed.curation.outputs import check_holds_no_data
from ileed.runs import stores
from ileed.serve import Destination, Marks, Server, Session, require_server


@dataclass(frozen=True)
class Serve(OfCuration):
    """Serve the report with all episodes, to play, mark and curate them in a browser.

    The page is available on this machine only, at the printed address, until Ctrl-C. Marks are saved in the run
    directory immediately and override the rule. The data are never changed.
    """

    port: int = 0
    """The port of 127.0.0.1; a free one by default."""
    open: bool = False
    """Open the page in the browser."""

    def __call__(self) -> None:
        require_server()
        check_holds_no_data(self.out, self.episodes.data)
        scored = self.score()
        marks = Marks.of(self.run, scored.fingerprint, scored.curated.data.episode_count)
        goal = Destination(self.out, scored.format, scored.source, self.overwrite)
        session = Session(self.run, scored.fitted, scored.curated, marks, goal)
        with bar("writing the report"):
            server = Server(session, port=self.port)
        if self.episodes.json:
            print_json({"address": server.address, "marks": stores.name_of(marks.path)})
        else:
            kept = f"marks are kept in {stores.name_of(marks.path)}"
            Output().say(f"open {server.address}\n{kept}; Ctrl-C ends the server")
        sys.stdout.flush()
        with _opened(server.address) if self.open else nullcontext():
            server.run()

    def after_an_interrupt(self) -> str:
        """Say where the marks are."""
        return f"the marks are kept in {stores.name_of(self.run)}, and the same command continues with them"


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open the page through a private file, because other users can read the command line but not that file."""
    with tempfile.TemporaryDirectory(prefix="ileed-") as folder:
        door = Path(folder) / "open.html"
        door.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={html.escape(address)}">\n')
        webbrowser.open(door.as_uri())
        yield
