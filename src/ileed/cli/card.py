"""`ileed card`: the model card of a run."""

from __future__ import annotations

from dataclasses import dataclass

from ileed.cli.console import Output
from ileed.cli.parsing import RunPath


@dataclass(frozen=True)
class Card:
    """Print the model card of a run, in Markdown."""

    run: RunPath
    anonymise: bool = False
    """Show pseudonyms instead of names."""

    def __call__(self) -> None:
        from ileed.integrations.hub import card
        from ileed.methods import load

        fitted = load(self.run)
        Output().say(card(fitted.anonymise() if self.anonymise else fitted).rstrip("\n"))
