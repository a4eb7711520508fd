"""The last section of every page: what was run when, where and from which commit, and the command that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ileed.errors import counted
from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.comparison import Records, markdown_table, unique
from ileed_lab.grid import cells

__all__ = ["provenance"]


def provenance(records: Records, experiments: Sequence[str] | None = None) -> list[str]:
    """What was run when, where and from which commit, and the command that runs it again; of all, or of some."""
    rows = []
    for name in records.experiments if experiments is None else experiments:
        found = records.cells(name)
        trials = [trial for cell in found for trial in cell["trials"]]
        made = [origin for cell in found for origin in cell["made"]]
        rows.append(
            [
                f"`{_command(name, found)}`",
                _amount(name, found),
                "<br>".join(unique(f"{origin['commit']}, {origin['date'][:10]}" for origin in made)),
                "<br>".join(unique(_machine(origin) for origin in made)),
                *(f"{sum(trial.get(f'{part}_seconds', 0) for trial in trials):,.0f}" for part in ("fit", "score")),
            ]
        )
    return [
        "Each row is one experiment with the command that re-runs it; `make reproduction-page` then writes this page. "
        "Seconds are summed over trials; scoring uses many cores at once.",
        markdown_table(["command", "done", "commit, date", "machine", "fit, seconds", "scoring, seconds"], rows),
    ]


def _command(name: str, found: Sequence[Mapping[str, Any]]) -> str:
    most = max(len(cell["trials"]) for cell in found)
    known = EXPERIMENTS.get(name)
    trials = "" if known is not None and known.trials == most else f" --trials {most}"
    data = f" --data {known.data_file}" if known is not None and known.data_file is not None else ""
    return f"ileed reproduce {name}{data}{trials} --out results"


def _amount(name: str, found: Sequence[Mapping[str, Any]]) -> str:
    planned = f" of {len(cells(EXPERIMENTS[name]))}" if name in EXPERIMENTS else ""
    counts = sorted({len(cell["trials"]) for cell in found})
    failed = sum("failed" in trial for cell in found for trial in cell["trials"])
    trials = counted(counts[0], "trial") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} trials"
    return f"{len(found)}{planned} cells, {trials} each" + (f", {failed} failed" if failed else "")


def _machine(origin: Mapping[str, Any]) -> str:
    return str(origin["machine"]) + (f", {origin['device']}" if origin["device"] != "cpu" else "")
