"""Calibration: whether intervals of expertise cover the truth as often as they say, in simulated populations."""
