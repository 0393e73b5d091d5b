"""A client process of the trial: `python -m tests.trials.transactions.client FOLDER NAME SEED`.

Reads the port of the broker from FOLDER/port whenever it connects, does what its name says until
FOLDER/over exists, and writes its history to FOLDER/NAME.SEED.history, line by line, so that a
SIGKILL leaves what it did until then.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import Any

from tests.kit.exactly_once.clients import Work, copy, lives, read, watch_offsets, write
from tests.kit.exactly_once.history import Journal
from tests.trials.transactions.net import RealNet
from tests.trials.transactions.topics import COPIES, KEYS, SOURCES, VERSIONS, WRITTEN

POLL_S = 0.1


async def work(folder: Path, name: str, seed: int) -> None:
    """Be one client until the trial is over."""
    rng = Random(f"{name}:{seed}")

    def port() -> int:
        try:
            return int((folder / "port").read_text())
        except (OSError, ValueError):
            return 0

    with (folder / f"{name}.{seed}.history").open("a") as out:
        journal: Any = Journal(out)
        shared = Work(lambda: RealNet(port, rng), journal, WRITTEN, VERSIONS)
        shared.prefix = f"{seed}-"
        spawned: set[asyncio.Task[Any]] = set()

        def spawn(life: Awaitable[None]) -> None:
            spawned.add(asyncio.ensure_future(life))

        if name.startswith("reader"):
            jobs: list[Any] = [read(shared, f"{name}.{seed}"), watch_offsets(shared, KEYS)]
        elif name.startswith("copy"):
            number = int(name[-1])
            jobs = [lives(shared, name, copy(SOURCES[number], COPIES[number]), spawn)]
        else:
            jobs = [lives(shared, name, write, spawn)]
        tasks = [asyncio.ensure_future(job) for job in jobs]
        while not (folder / "over").exists():  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(POLL_S)
        shared.over = shared.hurry = True
        await asyncio.gather(*tasks, *spawned)


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
