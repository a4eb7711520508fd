"""One command in several processes: one of them speaks for all, and says so when another is lost.

Every process holds a connection to the first one, which the operating system closes when either dies, however it dies.
Before a process ends in order it sends one line: what to tell the user in its place, or nothing.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NoReturn, final

import torch

from ileed.errors import IleedError
from ileed.processes import LostProcessError, Processes, several

_INTERRUPTED = "interrupted"
_GRACE = 2.0  # seconds in which a loss is noticed and told, after `torchrun` has asked this process to end


@contextmanager
def together(tell: Callable[[str], None], how_to_continue: Callable[[], str]) -> Iterator[None]:
    """Share the fits of a command among the processes that `torchrun` started.

    `tell` prints a sentence, also in a process that is silent otherwise. A process that is lost ends all of them.
    """
    with several() as job:
        watch = _Watch(job, tell, how_to_continue)
        try:
            yield
        except LostProcessError:
            watch.leave_to_others()
            raise
        except KeyboardInterrupt:
            watch.leave(_INTERRUPTED)
            raise
        except (IleedError, OSError) as error:
            watch.leave(str(error))
            raise
        watch.leave()


@final
class _Watch:
    """The connections of this process, and a thread that reads them where it speaks for the others."""

    def __init__(self, job: Processes, tell: Callable[[str], None], how_to_continue: Callable[[], str]) -> None:
        self._job, self._tell, self._how_to_continue = job, tell, how_to_continue
        self._speaking = threading.Lock()  # taken once, by whoever speaks first
        self._ended = threading.Event()
        self._connections = self._accept() if job.leads else {0: self._connect()}
        if job.rank <= 1:  # the second speaks where the first is lost
            signal.signal(signal.SIGTERM, self._end_soon)
            threading.Thread(target=self._listen, daemon=True).start()

    def leave(self, sentence: str = "") -> None:
        """End in order: the first process says itself what there is to say, others send it."""
        if self._job.rank <= 1 and not self._speaking.acquire(blocking=False):
            self._ended.wait()  # the thread has spoken, and ends the process
        self._send("" if self._job.leads else sentence)

    def leave_to_others(self) -> None:
        """End because another process is gone: the thread that reads the connections knows which, in a moment."""
        if self._job.rank <= 1:
            self._ended.wait(_GRACE)
        self.leave()

    def _accept(self) -> dict[int, socket.socket]:
        found: dict[int, socket.socket] = {}
        with socket.create_server((_host(listening=True), 0)) as server:
            self._job.send([torch.tensor([float(server.getsockname()[1])])], source=0)
            while len(found) < self._job.count - 1:
                connection, _ = server.accept()
                with suppress(ValueError):  # whoever else has found the port
                    rank = int(connection.recv(16))
                    if rank in range(1, self._job.count):
                        found[rank] = connection
        return found

    def _connect(self) -> socket.socket:
        port = torch.zeros(1)
        self._job.send([port], source=0)
        connection = socket.create_connection((_host(listening=False), int(port)))
        connection.sendall(f"{self._job.rank:<16}".encode())
        return connection

    def _listen(self) -> None:
        """Read every connection to its end; the first that ends without a line belongs to a process that was lost."""
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            said = dict.fromkeys(self._connections, b"")
            while selector.get_map():
                for key, _ in selector.select():
                    data = b""
                    with suppress(OSError):
                        data = self._connections[key.data].recv(1 << 16)
                    said[key.data] += data
                    if not data:
                        selector.unregister(key.fileobj)
                        self._end_with(self._sentence(key.data, said[key.data]))

    def _sentence(self, rank: int, said: bytes) -> str:
        if not said.endswith(b"\n"):
            return f"the process of rank {rank} of {self._job.count} was lost; {self._how_to_continue()}"
        sentence = str(json.loads(said))
        return f"{sentence}; {self._how_to_continue()}" if sentence == _INTERRUPTED else sentence

    def _end_with(self, sentence: str) -> None:
        if not sentence or not self._speaking.acquire(blocking=False):
            return
        self._tell(sentence)
        self._send("")
        os._exit(130 if sentence.startswith(_INTERRUPTED) else 2)

    def _send(self, sentence: str) -> None:
        for connection in self._connections.values():
            with suppress(OSError):
                connection.sendall(json.dumps(sentence).encode() + b"\n")

    def _end_soon(self, *_: object) -> NoReturn:
        """End as `torchrun` asks, after a loss, which the thread is about to tell, or because it was asked itself."""
        self._ended.wait(_GRACE)
        if self._job.leads:
            self._end_with(f"ended by the signal SIGTERM; {self._how_to_continue()}")
        os._exit(128 + signal.SIGTERM)


def _host(*, listening: bool, environment: Mapping[str, str] = os.environ) -> str:
    """Where the first process listens: on its own machine alone where all processes are there."""
    if environment["LOCAL_WORLD_SIZE"] == environment["WORLD_SIZE"]:
        return "127.0.0.1"
    return "" if listening else environment["MASTER_ADDR"]
