"""Figures of chess: expertise and ratings, and the positions where strong and weak players differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan2, cos, degrees, sin
from pathlib import Path
from types import ModuleType
from typing import Any, final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from ileed import Ileed, SettingsError
from ileed.errors import require
from ileed_lab.chess import board
from ileed_lab.chess.consulting import ENGINE, people
from ileed_lab.chess.experiment import PAPER, ChessExpertise
from ileed_lab.chess.positions import read_positions
from ileed_lab.chess.rating import LEAST, expected_points
from ileed_lab.comparison import Records
from ileed_lab.drawing import BLUE, GREY, INK, ORANGE, Row, as_svg, with_title
from ileed_lab.svg import add_element, add_text

__all__ = ["Board", "Differences", "calibration", "draw_boards", "greatest_differences"]


# --- calibration


def calibration(results: Path) -> bytes:
    """Expertise by play and rating, from the results of `chess/rating`; an SVG."""
    trials = Records(results, family="chess").trials("chess/rating", "worth", people="all")
    if 0 not in trials:
        raise SettingsError(
            f"{results} has no chess/rating: `ileed reproduce chess/rating --data FILE` measures it",
            code="results-missing",
        )
    return as_svg(_calibration(require("altair", package="ileed-lab"), trials[0]))


def _calibration(alt: ModuleType, measured: Row) -> Any:
    players, deciles = _with_labels(measured["players"], "player"), _with_labels(measured["deciles"], "decile of moves")
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
            y=y("expertise:Q"), description="label:N"
        ),
        groups.mark_line(aria=False, color=BLUE, strokeWidth=2).encode(y=y("expertise:Q")),
        groups.mark_rule(aria=False, color=BLUE, strokeWidth=2.5).encode(y=y("low:Q"), y2="high:Q"),
        groups.mark_point(filled=True, size=60, color=BLUE, opacity=1).encode(
            y=y("expertise:Q"), description="label:N"
        ),
    ).properties(width=640, height=340)
    return with_title(
        alt,
        chart,
        "Do moves predict how strong a player is?",
        "Blue: all moves in ten groups of similar rating, with 95% intervals from resampled games. Grey: "
        f"{len(players)} single players with {LEAST} moves or more, with 95% intervals of the likelihood. Rank "
        f"correlation of players' expertise with their ratings: {measured['rank_correlation']:.2f} "
        f"({measured['low']:.2f} to {measured['high']:.2f}).",
    )


def _with_labels(rows: Sequence[Row], who: str) -> list[Row]:
    """Rows with a description of each mark, for screen readers."""
    return [
        row
        | {
            "label": f"{who} rated {row['rating']:.0f}: {row['expertise']:.2f} ({row['low']:.2f} to {row['high']:.2f}, "
            f"{row['moves']:,} moves)"
        }
        for row in rows
    ]


# --- boards


@final
@dataclass(frozen=True)
class Board:
    """A position, the engine's move in it, and the expertise there of the lowest and of the highest bin of ratings."""

    fen: str
    move: str
    low: float
    high: float


@final
@dataclass(frozen=True)
class Differences:
    """The positions where strong and weak players differ most, by the mean of some fits, and the fits' agreement."""

    boards: tuple[Board, ...]
    fits: int
    agreement: float
    """Rank correlation over all positions of the difference in two fits, averaged over pairs of fits."""


def greatest_differences(data: Path, *, count: int = 4, method: Ileed = PAPER, fits: int = 5) -> Differences:
    """The positions where expertise of the highest bin exceeds that of the lowest most.

    The fits are those of `chess/expertise` with the engine's moves added ten times, and differ in their seed; two or
    more. No two positions are from one game or mirror images of each other, and in each the engine's best move has 0.2
    expected points more than its worst.
    """
    demonstrations = ChessExpertise(data=data).demonstrations({"bins": "rating", "engine": 10}, [0])[0]
    humans, engine = people(read_positions(data))
    best = dict(zip(engine.column("fen").to_pylist(), engine.column("move").to_pylist(), strict=True))
    game_of = dict(zip(humans.column("fen").to_pylist(), humans.column("game_id").to_pylist(), strict=True))
    fens = list(game_of)
    observations, legal = encoded = board.encode(fens)
    mirrored = board.mirror(encoded).observations
    bins = sorted(name for name in demonstrations.names if name != ENGINE)
    found = []
    for seed in range(fits):
        expertise = method.fit(demonstrations, seed=seed, device="cpu").expertise
        found.append([expertise(observations, name) for name in (bins[0], bins[-1])])
    low, high = np.mean(found, axis=0)
    ranks = [(strong - weak).argsort().argsort() for weak, strong in found]
    agreement = (np.corrcoef(ranks).sum() - fits) / (fits * (fits - 1))
    furthest = np.argsort(low - high, kind="stable")[:_CANDIDATES]
    points = expected_points([fens[number] for number in furthest])
    ranges = [row[allowed].max() - row[allowed].min() for row, allowed in zip(points, legal[furthest], strict=True)]
    chosen: dict[str, Board] = {}
    images: set[bytes] = set()
    for number, difference in zip(furthest.tolist(), ranges, strict=True):
        fen, image = fens[number], min(each[number].tobytes() for each in (observations, mirrored))
        is_new = game_of[fen] not in chosen and image not in images
        if difference >= _LEAST_DIFFERENCE and is_new and len(chosen) < count:
            images.add(image)
            chosen[game_of[fen]] = Board(fen, best[fen], float(low[number]), float(high[number]))
    return Differences(tuple(chosen.values()), fits, float(agreement))


_LEAST_DIFFERENCE, _CANDIDATES = 0.2, 200
_SQUARE, _GAP, _EDGE = 27, 22, 16
_LIGHT, _DARK = "#eef1f3", "#c3ced6"


def draw_boards(found: Differences) -> bytes:
    """Positions side by side under the question that they answer; an SVG, White at the bottom."""
    boards, side = found.boards, 8 * _SQUARE
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
    add_element(root, "title").text = title
    add_element(root, "rect", width=width, height=height, fill="white")
    add_text(root, title, _EDGE, 26, font_size=16, font_weight="bold", fill=INK)
    explanation = (
        "Positions of real games in which expertise of the highest fifth of ratings exceeds that of the lowest most, "
        "and moves differ in value.",
        f"Mean over {found.fits} fits, whose differences have a rank correlation of {found.agreement:.2f}: examples "
        "only. Arrow: the engine's move.",
    )
    for line, words in enumerate(explanation):
        add_text(root, words, _EDGE, 50 + 17 * line, font_size=12, fill=INK)
    for number, each in enumerate(boards):
        at = add_element(root, "g", transform=f"translate({_EDGE + number * (side + _GAP)},{top})")
        add_element(at, "title").text = _description(each)
        _draw_board(at, each)
    return ElementTree.tostring(root, encoding="utf-8")


def _description(each: Board) -> str:
    side = "white" if each.fen.split()[1] == "w" else "black"
    expertise = f"{each.low:.2f} (lowest), {each.high:.2f} (highest)"
    return f"{each.fen.split()[0]}, {side} moves; the engine plays {each.move}; expertise {expertise}"


def _draw_board(group: Element, each: Board) -> None:
    placement, side = each.fen.split()[:2]
    for number in range(64):
        file, row = number % 8, number // 8
        colour = _DARK if (file + row) % 2 else _LIGHT
        add_element(group, "rect", x=file * _SQUARE, y=row * _SQUARE, width=_SQUARE, height=_SQUARE, fill=colour)
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
    add_text(group, f"{'White' if side == 'w' else 'Black'} to move", 0, bottom + 18, font_size=12, fill=INK)
    add_text(
        group,
        f"expertise {each.low:.2f} (lowest fifth), {each.high:.2f} (highest)",
        0,
        bottom + 36,
        font_size=11.5,
        fill=INK,
    )


def _piece(group: Element, letter: str, x: float, y: float) -> None:
    """A king or a pawn, as a path in a square of 24 x 24, since not every font has them."""
    white = letter.isupper()
    shape = "M12,4a3.4,3.4,0,0,1,2,6.2l2.6,7.8h1.4v3h-12v-3h1.4l2.6,-7.8a3.4,3.4,0,0,1,2,-6.2z"
    if letter in "kK":
        shape = "M11,1.5h2v2h2v2h-2v2.2c5,-1,9,1,8,5.3c-.5,2.4,-2.4,3.6,-3,5h.6v3h-13.2v-3h.6"
        shape += "c-.6,-1.4,-2.5,-2.6,-3,-5c-1,-4.3,3,-6.3,8,-5.3v-2.2h-2v-2h2z"
    add_element(
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
    add_element(group, "path", d=f"M{x0:g},{y0:g}L{end[0]:g},{end[1]:g}", **line)
    add_element(
        group,
        "path",
        d="M10,0L-1,6.5L-1,-6.5z",
        transform=f"translate({end[0]:g},{end[1]:g}) rotate({degrees(angle):g})",
        fill=ORANGE,
        opacity=0.85,
    )


def _middle(square: str) -> tuple[float, float]:
    return ("abcdefgh".index(square[0]) + 0.5) * _SQUARE, (8 - int(square[1]) + 0.5) * _SQUARE
