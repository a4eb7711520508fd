"""Elements of an SVG, for figures that no charting library draws."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, SubElement

__all__ = ["add_element", "add_text"]


def add_element(parent: Element, tag: str, **attributes: Any) -> Element:
    """A child element; numbers are written short, and underscores in names become hyphens."""
    written = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in attributes.items()}
    return SubElement(parent, tag, {name.replace("_", "-"): value for name, value in written.items()})


def add_text(parent: Element, words: str, x: float, y: float, **attributes: Any) -> None:
    """A line of text."""
    add_element(parent, "text", x=float(x), y=float(y), **attributes).text = words
