"""Crowds: labels of tasks and ranks of workers on public and simulated tables of answers, beside crowd-kit."""
