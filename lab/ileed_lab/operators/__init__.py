"""Simulated teleoperators: worlds, operators of known skill, and how well expertise agrees with measured skill."""
