"""Baselines that learn by playing: what they reach is to be read beside the methods, which never touch the task."""

from __future__ import annotations

from ileed.baselines.gail import FittedGail, Gail, GailPolicy, Iteration

__all__ = ["FittedGail", "Gail", "GailPolicy", "Iteration"]
