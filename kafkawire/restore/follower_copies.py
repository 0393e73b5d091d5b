"""The copies of a broker's log in the folder of a follower, as the source of a restore.

For topics with durability=replicated a follower has the journals of other machines' brokers, byte
for byte (kafkawire.replication.follower). Without the metadata database nothing says which copy has
all that was acknowledged, so the longest one is taken. Reads the folder, and changes nothing in it.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kafkawire.log.io.gathered_write import write_whole
from kafkawire.log.io.ports import Env, FileSystem, LogError
from kafkawire.progress import Progress
from kafkawire.replication import sealed_file
from kafkawire.replication.failures import FollowerError
from kafkawire.replication.journal_copy import (
    NAME,
    NO_LIMIT,
    load_copy_state,
    position_text,
)
from kafkawire.replication.machine import Files
from kafkawire.replication.messages import POSITION_BITS, POSITION_MASK
from kafkawire.restore.evidence import DoubtKind
from kafkawire.restore.plan import RestorePlan

EPOCH_MARGIN = 1000
"""How far the broker epoch is raised: other followers may have refused the epochs of starts that
this one does not know, and would refuse the restored broker."""
CHUNK_BYTES = 1 << 20
_NUMBER = re.compile(r"0|[1-9]\d*")
_JOURNAL = re.compile(r"(\d{10})\.journal")


@dataclass(frozen=True, slots=True)
class FollowerCopy:
    """A copy of the log of a broker. `epoch`: the highest one of the broker that the follower
    knows; `journals`: names and how many bytes of each are of the log; `end`: the log position
    after them; `committed`: before it everything was acknowledged, as far as it is known."""

    folder: str
    node_id: int
    epoch: int
    journals: tuple[tuple[str, int], ...]
    end: int
    committed: int

    def amend(self, plan: RestorePlan, others: Sequence[FollowerCopy]) -> None:
        """Complete the plan of a restore from this copy. `others`: those that are not used."""
        plan.broker_epoch = self.epoch + EPOCH_MARGIN
        if self.end < self.committed:
            plan.add_doubt(
                DoubtKind.LOST,
                f"the copy in {self.folder} ends at {position_text(self.end)}, and records up to "
                f"{position_text(self.committed)} were acknowledged: files of it were lost",
            )
        for other in others:
            plan.add_doubt(
                DoubtKind.UNUSED,
                f"{other.folder} has another copy, which ends at {position_text(other.end)}: this "
                f"one ends at {position_text(self.end)}",
            )
        folders = sorted({used.file.folder for used in plan.files()} - {""})
        if folders:
            plan.add_doubt(
                DoubtKind.LOST,
                f"the tier has objects of several brokers ({', '.join(folders)}), of which broker "
                f"{self.node_id} takes everything: records of the others that are only in their "
                "journals are not restored",
            )


def list_copy_folders(fs: FileSystem, source: str) -> list[str]:
    """Return the folders of copies in a folder: that of a follower, of one broker in it, or of one
    copy. Empty if it is none of these."""
    folders = [os.path.realpath(source)]
    for _ in range(3):
        found = [each for each in folders if _is_copy(fs, each)]
        if found:
            return found
        folders = [
            os.path.join(each, name)
            for each in folders
            for name in _list(fs, each)
            if _NUMBER.fullmatch(name)
        ]
    return []


def _is_copy(fs: FileSystem, folder: str) -> bool:
    parents = folder.split(os.sep)[-2:]
    return all(map(_NUMBER.fullmatch, parents)) and NAME in _list(fs, folder)


def _list(fs: FileSystem, folder: str) -> list[str]:
    try:
        return fs.listdir(folder)
    except OSError:  # a file, or a folder of another user: it has no copies that can be used
        return []


@contextmanager
def open_copies(fs: FileSystem, source: str) -> Iterator[list[FollowerCopy]]:
    """Return the copies of one broker in a folder, the one that is used first, while no follower
    writes to them. Raises LogError if there is none, or a follower uses them, or they are damaged
    or of several brokers; OSError."""
    folders = list_copy_folders(fs, source)
    nodes = sorted({_node_of(each) for each in folders})
    if not nodes:
        raise LogError(f"{source} has no copies of a follower")
    if len(nodes) > 1:
        root = os.path.dirname(os.path.dirname(folders[0]))
        raise LogError(
            f"{source} has copies of the logs of brokers {', '.join(map(str, nodes))}: restore "
            f"each in a folder of its own, as from {root}/{nodes[0]}"
        )
    files = Files()
    with _lock(files, fs, os.path.dirname(os.path.dirname(folders[0]))):
        try:
            found = [_read_copy(files, fs, each) for each in folders]
        except FollowerError as failure:
            raise LogError(
                f"{failure}: restore from the copy of another follower, or give the folder of one "
                "copy that is intact"
            ) from None
        yield sorted(found, key=lambda copy: (copy.end, copy.folder), reverse=True)


def _node_of(folder: str) -> int:
    return int(os.path.basename(os.path.dirname(folder)))


@contextmanager
def _lock(files: Files, fs: FileSystem, root: str) -> Iterator[None]:
    """Hold the lock of a follower's folder; a part of it that was copied elsewhere has none."""
    if "lock" not in _list(fs, root):
        yield
        return
    try:
        fd = files.lock(f"{root}/lock")
    except BlockingIOError:
        raise LogError(
            f"{root} is used by a follower: stop kafkawire on this machine first, since a "
            "follower deletes copies that are not needed any more"
        ) from None
    try:
        yield
    finally:
        files.close(fd)


def _read_copy(files: Files, fs: FileSystem, folder: str) -> FollowerCopy:
    state = load_copy_state(files, folder)
    fence = sealed_file.load(files, f"{os.path.dirname(folder)}/fence")
    epoch = max(state.epoch, -1 if fence is None else fence["epoch"])
    # A change of the epoch that was interrupted: bytes from the cut on are not of the log.
    changed = state.epoch != int(os.path.basename(folder))
    limit = state.cut if changed and state.cut is not None else NO_LIMIT
    journals, end = [], state.first << POSITION_BITS
    for name in fs.listdir(folder):
        match = _JOURNAL.fullmatch(name)
        number = int(match[1]) if match else -1
        # Those before the first one are not needed: their deletion was interrupted.
        if state.first <= number <= limit >> POSITION_BITS:
            size = files.size(f"{folder}/{name}")
            if number == limit >> POSITION_BITS:
                size = min(size, limit & POSITION_MASK)
            journals.append((name, size))
            end = number << POSITION_BITS | size
    return FollowerCopy(
        folder, _node_of(folder), epoch, tuple(journals), end, min(state.committed, limit)
    )


def copy_journals(env: Env, copy: FollowerCopy, home: str, progress: Progress) -> None:
    """Write the journals of a copy into the new folder of its broker. Raises OSError."""
    folder = os.path.join(home, "journals")
    env.fs.makedirs(folder)
    for at, (name, size) in enumerate(copy.journals):
        progress("copied journals", at, len(copy.journals))
        source = env.fs.open(os.path.join(copy.folder, name))
        target = env.fs.open(os.path.join(folder, name), create=True)
        try:
            for position in range(0, size, CHUNK_BYTES):
                data = source.pread(min(CHUNK_BYTES, size - position), position)
                write_whole(target, [data], position, len(data))
        finally:
            source.close()
            target.close()
    progress("copied journals", len(copy.journals), len(copy.journals))
