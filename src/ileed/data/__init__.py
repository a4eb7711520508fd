"""Demonstrations: validated columns of steps, in memory or on disk, and what is computed from them alone.

Knows nothing of file formats, models or fits.
"""

from ileed.data.collapsing import Collapsed
from ileed.data.demonstrations import Demonstrations, check_demonstrations
from ileed.data.encoding import Encoding
from ileed.data.findings import Finding
from ileed.data.rules import Array
from ileed.data.source import Source

__all__ = ["Array", "Collapsed", "Demonstrations", "Encoding", "Finding", "Source", "check_demonstrations"]
