"""A result page and the details page behind it, as Markdown: what every generated page of results has in common."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from ileed import runs

__all__ = ["ResultPage"]

_RELATIVE_LINK = re.compile(r"\]\((?=[^)#:\s]+[)#])")


@final
@dataclass(frozen=True)
class ResultPage:
    """The conclusion with its figures, and on a second page the method, the tables and the provenance.

    Tables with a row for each trial or cell are files beside the details page, which links to them.

    All paragraphs are written for the first page; relative links of the second one are adapted.
    """

    name: str
    """Of both files, without the suffix."""
    title: str
    source: str
    """The comment below the title: where the numbers come from and what to edit."""
    lead: Sequence[str]
    details: Sequence[str]
    downloads: Mapping[str, str] = field(default_factory=dict)
    """The content of each file in the folder `details`, by its name."""

    @property
    def text(self) -> str:
        """The result page."""
        link = f"[Details](details/{self.name}.md): the method, every table, and where the numbers come from."
        return _join([f"# {self.title}", self.source, *self.lead, link])

    @property
    def details_text(self) -> str:
        """The details page."""
        back = f"The conclusions are on the page [{self.title}]({self.name}.md)."
        body = _join([back, *self.details])
        return _join([f"# {self.title}: details", self.source]) + "\n" + _RELATIVE_LINK.sub("](../", body)

    def write(self, path: Path) -> None:
        """Write the page to `path` and its details to the folder `details` beside it."""
        runs.write_file(path, self.text.encode())
        details = path.parent / "details" / f"{self.name}.md"
        details.parent.mkdir(parents=True, exist_ok=True)
        for name, content in {details.name: self.details_text, **self.downloads}.items():
            runs.write_file(details.parent / name, content.encode())


def _join(paragraphs: Sequence[str]) -> str:
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"
