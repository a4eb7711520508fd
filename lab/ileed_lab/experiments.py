"""Experiments: grids of cells that can be interrupted, resumed, and compared with published numbers."""

from ileed_lab.catalogue import EXPERIMENTS, experiment
from ileed_lab.grid import AbstractExperiment, Cell, Setting
from ileed_lab.running import reproduce

__all__ = ["EXPERIMENTS", "AbstractExperiment", "Cell", "Setting", "experiment", "reproduce"]
