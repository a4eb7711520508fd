"""Stockfish as we ask it: an answer depends on the position alone, and failures are sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
from needs import stockfish
from refusals import refused

from ileed.errors import IleedError, SettingsError
from ileed_lab.chess import engine as room
from ileed_lab.chess.engine import Engine, Evaluation, Thinking, ask_each, find_stockfish

chess = pytest.importorskip("chess", reason="the package chess is absent: pip install 'ileed[chess]'")

POSITIONS = (
    "8/5p1p/2p3p1/8/2Pk4/8/4KP1P/8 w - -",
    "8/8/2p5/6kp/1PP2p2/8/6KP/8 b - -",
    "8/1p4p1/7p/7K/2P5/3PPk2/8/8 w - -",
    "8/8/5K1p/P5p1/8/2Pk4/8/8 b - -",
    "8/8/pp6/6P1/3kp1p1/1P5P/1P6/K7 w - -",
)


def evaluate(engine: Engine, fen: str) -> Evaluation:
    return engine.evaluation(chess.Board(fen))


def script(path: Path, lines: str) -> Path:
    """An executable in place of an engine."""
    path.write_text("#!/bin/sh\n" + lines)
    path.chmod(0o755)
    return path


@stockfish
def test_an_answer_does_not_depend_on_what_was_asked_before() -> None:
    with Engine(Thinking(nodes=3_000)) as engine:
        forward = [evaluate(engine, fen) for fen in POSITIONS]
        backward = [evaluate(engine, fen) for fen in reversed(POSITIONS)]
    assert forward == backward[::-1]


@stockfish
def test_several_engines_answer_what_one_answers() -> None:
    one, three = (dict(ask_each(POSITIONS, evaluate, thinking=Thinking(nodes=3_000), workers=n)) for n in (1, 3))
    assert one == three
    assert sorted(one) == list(range(len(POSITIONS)))


@stockfish
def test_a_mate_is_seen_from_the_movers_side_and_given() -> None:
    giving, suffering = chess.Board("7k/8/6K1/8/8/8/8/R7 w - -"), chess.Board("7k/R7/6K1/8/8/8/8/8 b - -")
    with Engine(Thinking(seconds=0.05)) as engine:
        assert engine.evaluation(giving) == Evaluation(centipawns=None, mate=1)
        assert engine.evaluation(suffering) == Evaluation(centipawns=None, mate=-1)
        giving.push(engine.move(giving))
    assert giving.is_checkmate()


@stockfish
def test_the_lowest_skill_does_not_always_play_the_best_move() -> None:
    def moves(thinking: Thinking) -> set[str]:
        boards = [chess.Board(POSITIONS[0])] * 30
        return {
            move for _, move in ask_each(boards, lambda e, board: e.move(board).uci(), thinking=thinking, workers=2)
        }

    assert len(moves(Thinking(depth=1, skill=20))) == 1
    # Four moves are drawn from almost evenly: thirty draws are all the same with a chance below 1e-10.
    assert len(moves(Thinking(depth=1, skill=0))) > 1


def test_a_missing_engine_is_one_sentence_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.shutil, "which", lambda name: None)
    monkeypatch.setattr(room, "_DEBIAN", Path("/nowhere/stockfish"))
    with refused("engine-missing", IleedError):
        find_stockfish()


@pytest.mark.parametrize("limits", [{}, {"nodes": 0}, {"seconds": -1.0}, {"nodes": 10, "skill": 21}])
def test_limits_that_bound_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(SettingsError):
        Thinking(**limits)


def test_what_is_not_an_engine_is_refused(tmp_path: Path) -> None:
    with refused("engine-not-started", IleedError):
        Engine(Thinking(nodes=1), path=script(tmp_path / "quits", "exit 3\n"))
    with refused("engine-not-started", IleedError):
        Engine(Thinking(nodes=1), path=tmp_path / "absent")


def test_an_engine_that_dies_names_the_position(tmp_path: Path) -> None:
    dying = script(
        tmp_path / "dies",
        'while read -r word rest; do case "$word" in\n'
        "uci) printf 'id name Frail 1\\noption name Threads type spin default 1 min 1 max 8\\n';\n"
        "     printf 'option name Hash type spin default 1 min 1 max 64\\n';\n"
        "     printf 'option name Skill Level type spin default 20 min 0 max 20\\nuciok\\n';;\n"
        "isready) echo readyok;; go) exit 1;; esac; done\n",
    )
    with refused("engine-failed", IleedError):
        list(ask_each(POSITIONS[:1], evaluate, thinking=Thinking(nodes=10), workers=2, path=dying))
