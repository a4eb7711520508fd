"""The commands that the lab adds to `ileed`, by name alone: their modules are imported when they are given."""

from __future__ import annotations

from ileed.cli import Command

__all__ = ["CHESS", "DEMONSTRATE", "PRETRAIN", "REPRODUCE", "TABLES"]

DEMONSTRATE = Command(
    "ileed_lab.cli.demonstrating",
    "Demonstrate",
    "Simulate demonstrators of known skill in a task and write what they did.",
)
PRETRAIN = Command(
    "ileed_lab.cli.laboratory", "Pretrain", "Train the expert of a task anew, as the one that ships was trained."
)
REPRODUCE = Command(
    "ileed_lab.cli.laboratory",
    "Reproduce",
    "Run an experiment of the paper, or one that goes past it, and write what every trial measured.",
)
TABLES = Command(
    "ileed_lab.cli.laboratory",
    "Tables",
    "Write the pages of published against reproduced numbers, from results that `ileed reproduce` wrote.",
)
CHESS = Command(
    "ileed_lab.cli.chess",
    "",
    "King-and-pawn endgames of rated players; `ileed chess --help` lists what can be done.",
    {
        "extract": Command(
            "ileed_lab.cli.chess",
            "Extract",
            "Write every position with kings and pawns alone, and the move made in it, out of files of games.",
        ),
        "consult": Command(
            "ileed_lab.cli.chess",
            "Consult",
            "Ask Stockfish what it would play in every position of a table, and write its moves as one more player's.",
        ),
        "rate": Command(
            "ileed_lab.cli.chess",
            "Rate",
            "Say how expert players are by their moves with kings and pawns alone, beside their ratings; asks "
            "Stockfish.",
        ),
    },
)
