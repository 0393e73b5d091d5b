"""Fresh folders: what was there is moved, and an interrupted start begins again."""

from __future__ import annotations

import os.path
from typing import Any

import pytest

from kafkawire.log import fresh_folder
from kafkawire.log.io.atomic_file import write_whole_file
from tests.kit.memfs import MemFileSystem

HOME = "/data/brokers/1"
FILES = ("identity", "journals/0000000001.journal", "segments/a.segment", "tier/x/y")


def filled() -> MemFileSystem:
    fs = MemFileSystem()
    for name in FILES:
        write(fs, f"{HOME}/{name}")
    write(fs, f"{HOME}/lock")
    return fs


def write(fs: MemFileSystem, path: str) -> None:
    fs.makedirs(os.path.dirname(path))
    write_whole_file(fs, path, path.encode())
    fs.sync_dir(os.path.dirname(path))


def files(fs: MemFileSystem) -> set[str]:
    """Everything in the folder but the lock."""
    found = set(fresh_folder._files(fs, HOME, top=False))
    return {os.path.relpath(path, HOME) for path in found} - {"lock"}


def test_empty_folder_is_marked() -> None:
    fs = MemFileSystem()
    fs.makedirs(HOME)
    assert not fresh_folder.is_begun(fs, HOME)
    fresh_folder.prepare(fs, HOME)
    assert fresh_folder.is_begun(fs, HOME)
    assert files(fs) == {"adopting"}
    fresh_folder.complete(fs, HOME)
    assert not fresh_folder.is_begun(fs, HOME)


def test_superseded_files_are_moved() -> None:
    fs = filled()
    fresh_folder.prepare(fs, HOME)
    assert files(fs) == {"adopting", *(f"superseded/1/{name}" for name in FILES)}
    fresh_folder.complete(fs, HOME)
    write(fs, f"{HOME}/identity")
    fresh_folder.prepare(fs, HOME)
    assert "superseded/2/identity" in files(fs)


def test_files_of_an_interrupted_adoption_are_removed() -> None:
    fs = filled()
    fresh_folder.prepare(fs, HOME)
    write(fs, f"{HOME}/journals/0000000009.journal")
    fresh_folder.prepare(fs, HOME)
    assert files(fs) == {"adopting", *(f"superseded/1/{name}" for name in FILES)}


@pytest.mark.parametrize("power", [True, False])
def test_move_that_was_interrupted_loses_nothing(power: bool) -> None:
    """A power failure or a kill before each step; the next start moves the rest."""
    for steps in range(60):
        fs = filled()
        broken = Interrupted(fs, steps)
        any_fs: Any = broken
        try:
            fresh_folder.prepare(any_fs, HOME)
        except InterruptedError:
            pass
        else:
            assert steps > 2 * len(FILES)
            return
        if power:
            fs.crash()
        else:
            fs.kill()
        begun = fresh_folder.is_begun(fs, HOME)
        assert begun or files(fs) - {"adopting.new"} == set(FILES)
        fresh_folder.prepare(fs, HOME)
        moved = {name.split("/", 2)[2] for name in files(fs) if name.startswith("superseded/")}
        assert moved - {"adopting.new"} == set(FILES)
    raise AssertionError("it never ended")


class Interrupted:
    """A file system that fails after so many renames, folder syncs and writes."""

    def __init__(self, fs: MemFileSystem, steps: int) -> None:
        self._fs = fs
        self._left = steps

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._fs, name)
        if name not in ("rename", "sync_dir", "open", "makedirs"):
            return method

        def step(*arguments: Any, **named: Any) -> Any:
            if not self._left:
                raise InterruptedError
            self._left -= 1
            return method(*arguments, **named)

        return step
