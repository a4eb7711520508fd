"""Stockfish: one engine process, or several at once, that searches one position after another.

The engine is reset between two positions, so that its answer depends on the position alone, and with a number of nodes
or a depth it is the same every time. There are two exceptions: `seconds` depend on the load of the machine, and a skill
below 20 draws its mistakes from the engine's own generator, which is seeded by the time of day.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar, final

from ileed import IleedError, SettingsError
from ileed.errors import require

__all__ = ["Engine", "Evaluation", "Thinking", "ask_each", "find_stockfish"]

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

_MEGABYTES = 4
"""Size of the engine's hash table: to clear 4 MB takes a millisecond, and 100,000 nodes fit into it."""
_DEBIAN = Path("/usr/games/stockfish")
"""The executable of Debian's package, which is not on every PATH."""
_PATIENCE = 60.0
"""Seconds to start, or to answer after the time limit, after which an engine counts as hung."""


@final
@dataclass(frozen=True, kw_only=True)
class Thinking:
    """Limits of the engine's search: until the given `nodes`, `depth` or `seconds` are reached.

    `skill` is Stockfish's own handicap: below 20 the engine chooses at depth 1 + skill among its four best moves there,
    and the lower the skill the more at random; a deeper search has no effect.
    """

    nodes: int | None = None
    depth: int | None = None
    seconds: float | None = None
    skill: int = 20

    def __post_init__(self) -> None:
        limits = [value for value in (self.nodes, self.depth, self.seconds) if value is not None]
        if not limits or min(limits) <= 0:
            raise SettingsError(
                f"nodes={self.nodes}, depth={self.depth}, seconds={self.seconds} do not bound the search: "
                "give at least one of them, greater than 0"
            )
        if not 0 <= self.skill <= 20:
            raise SettingsError(f"skill is {self.skill}, but Stockfish has levels 0 to 20")

    @property
    def limit(self) -> str:
        """The limit in words, as a key of cached evaluations."""
        given = {"nodes": self.nodes, "depth": self.depth, "seconds": self.seconds}
        return ", ".join(f"{value} {name}" for name, value in given.items() if value is not None)


@final
@dataclass(frozen=True)
class Evaluation:
    """The engine's evaluation of a position for the side to move: `centipawns`, or a `mate` where it finds one.

    `mate` is the number of moves to mate: positive where the mover mates, negative where the mover is mated, and 0
    where the mover is already mated.
    """

    centipawns: int | None
    mate: int | None


def find_stockfish() -> Path:
    """The executable of Stockfish on this machine."""
    if found := shutil.which("stockfish"):
        return Path(found)
    if _DEBIAN.is_file():
        return _DEBIAN
    raise IleedError(
        f"no engine was found on PATH or at {_DEBIAN}, but chess needs Stockfish: apt-get install stockfish",
        code="engine-missing",
    )


@final
class Engine:
    """A running Stockfish on one thread, until `close` or the end of a `with` block."""

    def __init__(self, thinking: Thinking, *, path: Path | None = None) -> None:
        self._library = require("chess.engine", package="ileed-lab")
        executable = path or find_stockfish()
        try:
            self._engine: Any = self._library.SimpleEngine.popen_uci(str(executable), timeout=_PATIENCE)
        except (OSError, TimeoutError, self._library.EngineError) as error:
            raise IleedError(
                f"{executable} did not start as a chess engine ({error or 'no answer'}): apt-get install stockfish",
                code="engine-not-started",
            ) from error
        self._engine.configure({"Threads": 1, "Hash": _MEGABYTES, "Skill Level": thinking.skill})
        self._limit = self._library.Limit(nodes=thinking.nodes, depth=thinking.depth, time=thinking.seconds)
        self.name: str = self._engine.id["name"]
        """What the engine calls itself, with its version."""

    def evaluation(self, board: Any) -> Evaluation:
        """The evaluation of a position (a `chess.Board` that is not over) for the side to move."""
        return _evaluation(self._ask(self._engine.analyse, board, info=self._library.INFO_SCORE))

    def evaluations(self, board: Any) -> dict[Any, Evaluation]:
        """The evaluation of each legal `chess.Move` for the side to move, by one search over all of them."""
        wanted = self._library.INFO_SCORE | self._library.INFO_PV
        lines = self._ask(self._engine.analyse, board, info=wanted, multipv=board.legal_moves.count())
        return {line["pv"][0]: _evaluation(line) for line in lines}

    def move(self, board: Any) -> Any:
        """The engine's `chess.Move` in a position that is not over."""
        return self._ask(self._engine.play, board).move

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, question: Callable[..., Any], board: Any, **options: Any) -> Any:
        try:
            # A new game for every position makes the library reset the engine.
            return question(board, self._limit, game=object(), **options)
        except (TimeoutError, self._library.EngineError) as error:
            raise IleedError(
                f"{self.name} failed in the position {board.fen()} ({error or 'no answer'}): check the position, "
                "and try again",
                code="engine-failed",
            ) from error


def _evaluation(info: Any) -> Evaluation:
    score = info["score"].relative
    return Evaluation(centipawns=score.score(), mate=score.mate())


def ask_each(
    items: Sequence[_Item],
    question: Callable[[Engine, _Item], _Answer],
    *,
    thinking: Thinking,
    workers: int,
    path: Path | None = None,
) -> Iterator[tuple[int, _Answer]]:
    """Ask one of `workers` engines about every item; yields (index of the item, answer) as they come."""
    if workers < 1:
        raise SettingsError(f"workers is {workers}, but at least one engine must run")
    idle: SimpleQueue[Engine] = SimpleQueue()

    def answer(item: _Item) -> _Answer:
        engine = idle.get()
        try:
            return question(engine, item)
        finally:
            idle.put(engine)

    with ExitStack() as stack:
        for _ in range(min(workers, len(items))):
            idle.put(stack.enter_context(Engine(thinking, path=path)))
        pool = ThreadPoolExecutor(workers)
        stack.callback(pool.shutdown, cancel_futures=True)
        numbers = {pool.submit(answer, item): number for number, item in enumerate(items)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()
