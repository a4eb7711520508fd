"""Experiments: grids of cells that can be interrupted, resumed, and held against published numbers."""

from ileed.experiments.catalogue import EXPERIMENTS, experiment
from ileed.experiments.grid import AbstractExperiment, Cell, Setting
from ileed.experiments.running import reproduce

__all__ = ["EXPERIMENTS", "AbstractExperiment", "Cell", "Setting", "experiment", "reproduce"]
