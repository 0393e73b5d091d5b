"""A new folder that a command builds completely, or not at all.

It is built next to its target under a temporary name, and renamed when it is complete, so no reader
finds half of it. After a failure, Ctrl-C or SIGTERM nothing is left. After SIGKILL or a power
failure the temporary folder is left, and the next command with the same target deletes it.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from kafkawire.log.io.disk import DiskFileSystem


@contextmanager
def new_folder(target: Path, suffix: str) -> Iterator[Path]:
    """Yield an empty folder, named like `target` with this suffix, which becomes `target` at the
    end of the block. `target` must be absent or an empty folder. Raises OSError.

    The caller syncs what it writes; the rename is durable on return.
    """
    target = target.absolute()
    building = target.with_name(f"{target.name}{suffix}")
    created = [each for each in building.parents if not each.exists()]  # the innermost first
    try:
        with _ended_by_sigterm():
            if building.exists():  # left by a killed command
                shutil.rmtree(building)
            building.mkdir(parents=True)
            yield building
            building.rename(target)
            _sync_parent(target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        for each in created:
            with suppress(OSError):  # it was not reached, or another process uses it
                each.rmdir()
        raise


def _sync_parent(target: Path) -> None:
    try:
        DiskFileSystem().sync_dir(str(target.parent))
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that what was written is deleted. Only the main thread of a
    process can handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
