"""What some tests need of the machine, as marks that skip them with a reason where it is absent."""

from __future__ import annotations

import pytest
import torch

from ileed.errors import IleedError
from ileed_lab.chess.engine import find_stockfish


def _stockfish_is_here() -> bool:
    try:
        find_stockfish()
    except IleedError:
        return False
    return True


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
stockfish = pytest.mark.skipif(not _stockfish_is_here(), reason="Stockfish is absent: apt-get install stockfish")
