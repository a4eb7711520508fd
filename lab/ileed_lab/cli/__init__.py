"""The commands that the lab adds to `ileed`; a command's module is imported when it is called."""

from __future__ import annotations

from ileed.cli import Command

__all__ = ["CHESS", "DEMONSTRATE", "PRETRAIN", "REPRODUCE", "TABLES"]

DEMONSTRATE = Command(
    "ileed_lab.cli.demonstrating",
    "Demonstrate",
    "Simulate demonstrators of known skill in a task and write their demonstrations.",
)
PRETRAIN = Command(
    "ileed_lab.cli.laboratory", "Pretrain", "Train the expert of a task again, as the shipped one was trained."
)
REPRODUCE = Command(
    "ileed_lab.cli.laboratory",
    "Reproduce",
    "Run an experiment of the paper, or one beyond it, and write what every trial measured.",
)
TABLES = Command(
    "ileed_lab.cli.laboratory",
    "Tables",
    "Write the result pages, and a page of details for each in the folder `details` beside it.",
)
CHESS = Command(
    "ileed_lab.cli.chess",
    "",
    "King-and-pawn endgames of rated players; `ileed chess --help` lists the commands.",
    {
        "extract": Command(
            "ileed_lab.cli.chess",
            "Extract",
            "Write every position with kings and pawns alone, and the move made in it, from files of games.",
        ),
        "consult": Command(
            "ileed_lab.cli.chess",
            "Consult",
            "Add Stockfish's move in every position of a table, as the moves of one more player.",
        ),
        "rate": Command(
            "ileed_lab.cli.chess",
            "Rate",
            "Estimate the expertise of players from their moves with kings and pawns alone, beside their ratings.",
        ),
    },
)
