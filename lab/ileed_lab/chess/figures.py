"""Figures of chess: expertise beside ratings, and the boards where strong and weak players differ most.

    python -m ileed_lab.chess.figures --results results --data FILE --out docs/images

FILE is the table that the experiments learned from; without it the boards, which need a fit, are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from math import atan2, cos, degrees, sin
from pathlib import Path
from types import ModuleType
from typing import Any, final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from ileed import runs
from ileed.errors import SettingsError, require
from ileed.methods import Ileed
from ileed_lab.chess import board
from ileed_lab.chess.consulting import ENGINE, people
from ileed_lab.chess.experiment import PAPER, ChessExpertise
from ileed_lab.chess.positions import read_positions
from ileed_lab.chess.rating import LEAST, expected_points
from ileed_lab.comparison import Records
from ileed_lab.drawing import BLUE, CONFIG, GREY, INK, ORANGE, Row, titled

__all__ = ["Apart", "Board", "boards_apart", "calibration", "drawn_boards"]


# --- calibration


def calibration(results: Path) -> bytes:
    """Expertise by play against the rating that others gave, from `chess/rating` among results; an SVG."""
    trials = Records(results, family="chess").trials("chess/rating", "worth", people="all")
    if 0 not in trials:
        raise SettingsError(f"{results} has no chess/rating: `ileed reproduce chess/rating --data FILE` measures it")
    alt, convert = require("altair", extra="report"), require("vl_convert", extra="report")
    chart = _calibration(alt, trials[0])
    return str(convert.vegalite_to_svg(chart.to_dict() | {"config": CONFIG})).encode()


def _calibration(alt: ModuleType, measured: Row) -> Any:
    players, deciles = _told(measured["players"], "player"), _told(measured["deciles"], "tenth of all moves")
    ratings = [row["rating"] for row in players + deciles]
    across = alt.Scale(domain=[min(ratings) - 30, max(ratings) + 30], nice=False)
    up = alt.Scale(domain=[0, 1.02], nice=False)
    x = alt.X("rating:Q", title="mean rating on lichess", scale=across, axis=alt.Axis(format="d", grid=False))

    def y(field: str) -> Any:
        return alt.Y(
            field, title="expertise by play", scale=up, axis=alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2f")
        )

    faint = alt.Chart(alt.Data(values=players)).encode(x=x)
    groups = alt.Chart(alt.Data(values=deciles)).encode(x=x)
    chart = alt.layer(
        faint.mark_rule(aria=False, color=GREY, opacity=0.16).encode(y=y("low:Q"), y2="high:Q"),
        faint.mark_point(filled=True, size=28, color=GREY, opacity=0.55).encode(
            y=y("expertise:Q"), description="told:N"
        ),
        groups.mark_line(aria=False, color=BLUE, strokeWidth=2).encode(y=y("expertise:Q")),
        groups.mark_rule(aria=False, color=BLUE, strokeWidth=2.5).encode(y=y("low:Q"), y2="high:Q"),
        groups.mark_point(filled=True, size=60, color=BLUE, opacity=1).encode(y=y("expertise:Q"), description="told:N"),
    ).properties(width=640, height=340)
    return titled(
        alt,
        chart,
        "Do moves tell how strong a player is?",
        f"Blue: all moves in ten groups of like rating, with 95 % intervals from resampled games. Grey: "
        f"{len(players)} single players with {LEAST} moves or more, and where each one's expertise lies with 95 % "
        f"confidence. Rank correlation of players with their ratings {measured['rank_correlation']:.2f} "
        f"({measured['low']:.2f} to {measured['high']:.2f}).",
    )


def _told(rows: Sequence[Row], who: str) -> list[Row]:
    """Rows with a sentence for those who cannot see the mark."""
    return [
        row
        | {
            "told": f"{who} rated {row['rating']:.0f}: {row['expertise']:.2f} ({row['low']:.2f} to {row['high']:.2f}, "
            f"{row['moves']:,} moves)"
        }
        for row in rows
    ]


# --- boards


@final
@dataclass(frozen=True)
class Board:
    """A position, the engine's move in it, and what people of the lowest and of the highest ratings are worth there."""

    fen: str
    move: str
    low: float
    high: float


@final
@dataclass(frozen=True)
class Apart:
    """The boards where strong and weak differ most, by the mean of some fits, and how far the fits agree on that."""

    boards: tuple[Board, ...]
    fits: int
    agreement: float
    """Rank correlation, over all positions, of how far two fits put strong and weak apart: the mean over pairs."""


def boards_apart(data: Path, *, count: int = 4, method: Ileed = PAPER, fits: int = 5) -> Apart:
    """The positions where expertise of the highest bin is furthest above that of the lowest.

    The fits are those of `chess/expertise` with the engine asked ten times, and differ in their seed; two or more. No
    two boards are from one game or the same but for sides and colours, and something is at stake on each: by the
    engine's word the best move is worth 0.2 points more than the worst.
    """
    demonstrations = ChessExpertise(data=data).demonstrations({"bins": "rating", "engine": 10}, [0])[0]
    humans, engine = people(read_positions(data))
    best = dict(zip(engine.column("fen").to_pylist(), engine.column("move").to_pylist(), strict=True))
    met = dict(zip(humans.column("fen").to_pylist(), humans.column("game_id").to_pylist(), strict=True))
    fens = list(met)
    seen, legal = encoded = board.encode(fens)
    mirrored = board.mirrored(encoded).observations
    bins = sorted(name for name in demonstrations.names if name != ENGINE)
    found = []
    for seed in range(fits):
        expertise = method.fit(demonstrations, seed=seed, device="cpu").expertise
        found.append([expertise(seen, name) for name in (bins[0], bins[-1])])
    low, high = np.mean(found, axis=0)
    ranks = [(strong - weak).argsort().argsort() for weak, strong in found]
    agreement = (np.corrcoef(ranks).sum() - fits) / (fits * (fits - 1))
    furthest = np.argsort(low - high, kind="stable")[:_CANDIDATES]
    worth = expected_points([fens[place] for place in furthest])
    at_stake = [row[allowed].max() - row[allowed].min() for row, allowed in zip(worth, legal[furthest], strict=True)]
    chosen: dict[str, Board] = {}
    pictures: set[bytes] = set()
    for place, stake in zip(furthest.tolist(), at_stake, strict=True):
        fen, picture = fens[place], min(image[place].tobytes() for image in (seen, mirrored))
        if stake >= _STAKE and met[fen] not in chosen and picture not in pictures and len(chosen) < count:
            pictures.add(picture)
            chosen[met[fen]] = Board(fen, best[fen], float(low[place]), float(high[place]))
    return Apart(tuple(chosen.values()), fits, float(agreement))


_STAKE, _CANDIDATES = 0.2, 200
_SQUARE, _GAP, _EDGE = 27, 22, 16
_LIGHT, _DARK = "#eef1f3", "#c3ced6"


def drawn_boards(apart: Apart) -> bytes:
    """Boards side by side under the question that they answer; an SVG, white at the bottom."""
    boards, side = apart.boards, 8 * _SQUARE
    width, top = 2 * _EDGE + len(boards) * (side + _GAP) - _GAP, 91
    height = top + side + 62
    root = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width} {height}",
            "width": str(width),
            "height": str(height),
            "font-family": "sans-serif",
            "role": "img",
        },
    )
    title = "Where do strong and weak players differ most?"
    _add(root, "title").text = title
    _add(root, "rect", width=width, height=height, fill="white")
    _write(root, title, _EDGE, 26, font_size=16, font_weight="bold", fill=INK)
    explanation = (
        "Positions of real games in which expertise of the highest fifth of ratings is furthest above that of the "
        "lowest, and a move matters.",
        f"Mean of {apart.fits} fits, which agree on where that is with a rank correlation of {apart.agreement:.2f}: "
        "read them as examples. Arrow: the engine's move.",
    )
    for line, words in enumerate(explanation):
        _write(root, words, _EDGE, 50 + 17 * line, font_size=12, fill=INK)
    for place, each in enumerate(boards):
        at = _add(root, "g", transform=f"translate({_EDGE + place * (side + _GAP)},{top})")
        _add(at, "title").text = _in_words(each)
        _draw_board(at, each)
    return ElementTree.tostring(root, encoding="utf-8")


def _in_words(each: Board) -> str:
    side = "white" if each.fen.split()[1] == "w" else "black"
    return f"{each.fen.split()[0]}, {side} moves; the engine plays {each.move}; {each.low:.2f} against {each.high:.2f}"


def _draw_board(group: Element, each: Board) -> None:
    placement, side = each.fen.split()[:2]
    for number in range(64):
        file, row = number % 8, number // 8
        colour = _DARK if (file + row) % 2 else _LIGHT
        _add(group, "rect", x=file * _SQUARE, y=row * _SQUARE, width=_SQUARE, height=_SQUARE, fill=colour)
    for row, rank in enumerate(placement.split("/")):
        file = 0
        for letter in rank:
            if letter.isdigit():
                file += int(letter)
                continue
            _piece(group, letter, file * _SQUARE, row * _SQUARE)
            file += 1
    _arrow(group, each.move)
    bottom = 8 * _SQUARE
    _write(group, f"{'White' if side == 'w' else 'Black'} to move", 0, bottom + 18, font_size=12, fill=INK)
    _write(
        group,
        f"expertise {each.low:.2f} (lowest fifth), {each.high:.2f} (highest)",
        0,
        bottom + 36,
        font_size=11.5,
        fill=INK,
    )


def _piece(group: Element, letter: str, x: float, y: float) -> None:
    """A king or a pawn, drawn on a square of 24 units: not every font has them."""
    white = letter.isupper()
    shape = "M12,4a3.4,3.4,0,0,1,2,6.2l2.6,7.8h1.4v3h-12v-3h1.4l2.6,-7.8a3.4,3.4,0,0,1,2,-6.2z"
    if letter in "kK":
        shape = "M11,1.5h2v2h2v2h-2v2.2c5,-1,9,1,8,5.3c-.5,2.4,-2.4,3.6,-3,5h.6v3h-13.2v-3h.6"
        shape += "c-.6,-1.4,-2.5,-2.6,-3,-5c-1,-4.3,3,-6.3,8,-5.3v-2.2h-2v-2h2z"
    _add(
        group,
        "path",
        d=shape,
        transform=f"translate({x:g},{y:g}) scale({_SQUARE / 24:g})",
        fill="white" if white else INK,
        stroke=INK if white else "white",
        stroke_width=1.1 if white else 0.6,
        stroke_linejoin="round",
    )


def _arrow(group: Element, move: str) -> None:
    """From the middle of one square to that of another."""
    (x0, y0), (x1, y1) = (_middle(square) for square in (move[:2], move[2:4]))
    angle = atan2(y1 - y0, x1 - x0)
    end = (x1 - 9 * cos(angle), y1 - 9 * sin(angle))
    line = {"stroke": ORANGE, "stroke_width": 4, "opacity": 0.85}
    _add(group, "path", d=f"M{x0:g},{y0:g}L{end[0]:g},{end[1]:g}", **line)
    _add(
        group,
        "path",
        d="M10,0L-1,6.5L-1,-6.5z",
        transform=f"translate({end[0]:g},{end[1]:g}) rotate({degrees(angle):g})",
        fill=ORANGE,
        opacity=0.85,
    )


def _middle(square: str) -> tuple[float, float]:
    return ("abcdefgh".index(square[0]) + 0.5) * _SQUARE, (8 - int(square[1]) + 0.5) * _SQUARE


def _add(parent: Element, tag: str, **attributes: Any) -> Element:
    """A child element; numbers are written short, and underscores in names become hyphens."""
    written = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in attributes.items()}
    return SubElement(parent, tag, {name.replace("_", "-"): value for name, value in written.items()})


def _write(parent: Element, words: str, x: float, y: float, **attributes: Any) -> None:
    _add(parent, "text", x=float(x), y=float(y), **attributes).text = words


def main() -> None:
    """Draw the figures of chess."""
    words = argparse.ArgumentParser(prog="python -m ileed_lab.chess.figures", description=main.__doc__)
    words.add_argument("--results", type=Path, default=Path("results"), help="where chess/rating lies")
    words.add_argument("--data", type=Path, help="the table of positions, with an engine's moves, for the boards")
    words.add_argument("--out", type=Path, default=Path("docs/images"), help="where the pictures go")
    chosen = words.parse_args()
    runs.write_file(chosen.out / "chess-calibration.svg", calibration(chosen.results))
    if chosen.data is not None:
        runs.write_file(chosen.out / "chess-boards.svg", drawn_boards(boards_apart(chosen.data)))


if __name__ == "__main__":
    main()
