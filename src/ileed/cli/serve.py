"""`ileed serve`: the report and all episodes in a browser, to play and mark them."""

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
from ileed.runs import stores


@dataclass(frozen=True)
class Serve(OfCuration):
    """Open the report with all episodes in a browser, to play and mark them; save as `curate` does.

    The page is served to this machine alone, to whoever has the address that is printed, until Ctrl-C. Marks are kept
    in the run directory at once; they override the rule. The data are never changed.
    """

    port: int = 0
    """The port of 127.0.0.1; any that is free by default."""
    open: bool = False
    """Open the page in the browser."""

    def __call__(self) -> None:
        from ileed.curation.outputs import check_holds_no_data
        from ileed.serve import Destination, Marks, Server, Session, require_server

        require_server()
        self.rule_settings()
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
        """What is left when the server ends."""
        return f"the marks are kept in {stores.name_of(self.run)}, and the same command goes on with them"


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open the page by way of a file of the user's own: others can read a command, not such a file."""
    with tempfile.TemporaryDirectory(prefix="ileed-") as folder:
        door = Path(folder) / "open.html"
        door.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={html.escape(address)}">\n')
        webbrowser.open(door.as_uri())
        yield
