"""Spectral arc length: smoothness of a speed profile.

To be replaced by `ileed.indicators` once that has it: `spectral_arc_length` is all that is used of this module.
"""

from __future__ import annotations

import numpy as np

from ileed.demonstrations import Array

__all__ = ["spectral_arc_length"]

_CUTOFF = 10.0  # Hz: human movement has little above it
_LEAST_AMPLITUDE = 0.05
_PADDING = 4  # doublings of the length beyond the next power of two


def spectral_arc_length(speed: Array, *, rate: float | None = None) -> float:
    """Minus the arc length of the normalised Fourier amplitude of a speed profile; less negative is smoother.

    With the amplitude V(f) divided by its greatest value, up to the cutoff frequency f_c:
    SAL = - integral over f from 0 to f_c of sqrt((1 / f_c)^2 + (dV / df)^2). f_c is the greatest frequency at most 10
    Hz at which V reaches 0.05 (Balasubramanian, Melendez-Calderon, Roby-Brami and Burdet, *On the analysis of movement
    smoothness*, J. NeuroEngineering and Rehabilitation 12:112, 2015).

    Args:
        speed: (step,) zero or more.
        rate: steps per second; None where it is not known, and then all frequencies count.

    Returns:
        The spectral arc length; 0 where the speed is zero throughout.

    >>> steps = np.arange(100)
    >>> bell = np.exp(-(((steps - 50) / 20) ** 2))
    >>> spectral_arc_length(bell) > spectral_arc_length(bell * (1 + 0.5 * np.sin(steps)))
    True
    """
    if not speed.any():
        return 0.0
    length = 1 << (int(np.ceil(np.log2(len(speed)))) + _PADDING)
    amplitude = np.abs(np.fft.rfft(speed, length))
    amplitude = amplitude / amplitude.max()
    frequency = np.fft.rfftfreq(length, 1.0 if rate is None else 1 / rate)
    allowed = amplitude >= _LEAST_AMPLITUDE
    if rate is not None:
        allowed &= frequency <= _CUTOFF
    last = int(np.flatnonzero(allowed)[-1]) if allowed.any() else 0
    if last == 0:
        return 0.0
    along = np.diff(frequency[: last + 1]) / frequency[last]
    return -float(np.hypot(along, np.diff(amplitude[: last + 1])).sum())
