"""The section of the page about chess that has gold players and no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ileed_lab.chess.gold import BINS, DRAWS, FOLDS, METHOD, OPENING
from ileed_lab.comparison import Records, markdown_table
from ileed_lab.records import Measured

__all__ = ["gold_section"]

_ROWS = {
    ("gold", "kept", "rating"): "gold",
    ("gold", "kept", "shuffled"): "shuffled, gold",
    ("people", "kept", "rating"): "all players",
    ("people", "kept", "shuffled"): "shuffled, all players",
    ("told", "kept", "rating"): "all players, soft gold labels",
    ("gold", "development", "rating"): "development games, gold",
    ("people", "development", "rating"): "development games, all players",
}
"""Method, games and bins of each row."""
_PARTS = {"after the opening": "after the opening", "players never gold": "players who are never gold"}


def gold_section(records: Records) -> tuple[list[str], list[str]]:
    """The findings, and the method with its tables; both empty if nothing was run."""
    found = {
        words: trials[0]
        for (method, games, bins), words in _ROWS.items()
        if 0 in (trials := records.trials("chess/gold", method, games=games, bins=bins))
    }
    if "gold" not in found:
        return [], []
    rows = [_row(words, measured["all"]) for words, measured in found.items()]
    parts = [
        _row(f"{found_in}, {words}", found[found_in][part])
        for found_in in ("gold", "all players")
        if found_in in found
        for part, words in _PARTS.items()
        if part in found[found_in]
    ]
    head = ["", *map(str, range(1, BINS)), f"{BINS}, gold", "slope over five", "above zero", "rises strictly"]
    return list(_findings(found)), [
        "## Gold players, without an engine",
        _method(found["gold"]["all"]),
        markdown_table(head, rows),
        f"*After the opening* leaves out each player's first {OPENING} moves. *Players who are never gold* leaves out "
        "players who are in the strongest bin in some other game, since the policy may have learned their habits; the "
        "strongest bin is then empty.",
        markdown_table(head, parts),
        "Expertise here is how well a policy of strong players predicts a player's moves. Part of the trend may be "
        "that weaker players reach positions that strong players seldom see, where that policy is less "
        "certain. The trend "
        "after the opening is less steep, so knowledge of openings is a part of it. The intervals leave out the error "
        "of the policies, which are not refitted to the resampled games.",
        *_compared(records),
    ]


def _method(measured: Measured) -> str:
    moves = sum(row["steps"] for row in measured["bins"])
    hidden = getattr(METHOD.policy, "hidden", ())
    return (
        f"Every move of the rated games, not only of endgames, by players in {BINS} bins by rating. The strongest bin "
        "is gold: a policy cloned from its moves alone rates all players. An action is a kind of piece with its target "
        "square, among the legal ones. *All players* learns policy and expertise from equally many moves of all "
        f"players. There are {FOLDS} folds of games, and no game is rated by a policy that saw it. A third of the "
        "games was for development: of two networks, the one with the lower cost of held-out moves was taken (a layer "
        f"of {', '.join(map(str, hidden))}, {METHOD.steps:,} steps) and fixed in a commit before the other "
        f"{measured['games']:,} games with {moves:,} moves were rated; policies learn from both. Standard errors, and "
        f"the shares of {DRAWS:,} draws in which the slope over the five other bins is above zero and in which the "
        "five rise strictly, are from resampled games. *Shuffled* permutes the bins over episodes, so that gold "
        "players are arbitrary players."
    )


def _row(words: str, measured: Mapping[str, Any]) -> list[str]:
    cells = [f"{row['expertise']:.3f} ± {row['standard_error']:.3f}" for row in measured["bins"]]
    cells += [""] * (BINS - len(cells))
    low, high = measured["slope_interval"]
    slope = f"{measured['slope'] + 0.0:+.4f} ({low:.4f} to {high:.4f})"
    return [words, *cells, slope, _share(measured["slope_above_zero"]), _share(measured["rises_strictly"])]


def _share(share: float) -> str:
    return f"{100 * share:.1f}%"


def _findings(found: Mapping[str, Measured]) -> Sequence[str]:
    gold = found["gold"]["all"]
    rising = "**rises with the rating**" if gold["slope_above_zero"] >= 0.95 else "does not rise clearly"
    sentences = [
        f"With gold players, expertise {rising}: the slope over the five other bins is above zero in "
        f"{_share(gold['slope_above_zero'])} of the draws, and they rise strictly in {_share(gold['rises_strictly'])}. "
        f"The gold bin itself, which is not in the slope, is above all others in {_share(gold['gold_above_all'])}."
    ]
    if "shuffled, gold" in found:
        low, high = found["shuffled, gold"]["all"]["slope_interval"]
        flat = "flat: the interval of its slope includes zero" if low <= 0 <= high else "not flat"
        sentences.append(f"The control with shuffled bins is {flat}.")
    if "all players" in found:
        peaks = found["all players"]["all"]["peak"]
        most = max(range(len(peaks)), key=peaks.__getitem__)
        sentences.append(
            f"Without gold players, expertise measures agreement with the crowd: it is greatest in bin {most + 1} of "
            f"{BINS} in {_share(peaks[most] / DRAWS)} of the draws, and in the strongest in "
            f"{_share(peaks[-1] / DRAWS)}."
        )
    return sentences


def _compared(records: Records) -> list[str]:
    trials = records.trials("chess/gold", "compare", games="kept", bins="rating")
    if 0 not in trials or "models" not in trials[0]:
        return []
    rows = [
        [
            f"`{row['model']}`" + (" (preferred)" if row["preferred"] else ""),
            f"{row['nats_per_action']:.4f}",
            f"{row['more_than_preferred']:+.4f} ± {row['standard_error']:.4f}",
            " ".join(f"{value:.3f}" for value in row["expertise"]),
        ]
        for row in trials[0]["models"]
    ]
    return [
        f"`ileed compare` on every sixth episode ({trials[0]['steps']:,} moves), all players, among the models that "
        f"know the legal moves: {trials[0]['sentence']}.",
        markdown_table(["model", "nats per held-out move", "more than the preferred", "expertise by bin"], rows),
    ]
