"""Docstrings of the reference as Markdown: examples at a prompt become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", flags=re.DOTALL | re.MULTILINE)


class Examples(griffe.Extension):
    """Put fences around examples, which Markdown would take for quotations."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called with every module, class, function and attribute once it has been read."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)
