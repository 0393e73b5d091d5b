"""A broker's log in memory, and checks of a copy against it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kafkawire.replication.follower import Follower
from kafkawire.replication.messages import POSITION_BITS, POSITION_MASK
from kafkawire.replication.node_copies import NodeCopies
from tests.replication.memory_files import MemoryFiles

NODE = 3
NONE = -1


def at(journal: int, position: int) -> int:
    """Return a log position."""
    return journal << POSITION_BITS | position


class ModelLog:
    """The log of one epoch of a broker. All bytes of its journals are random. `begun`: the epoch
    that it continues, and where."""

    def __init__(self, epoch: int, rng: random.Random, first: int = 0) -> None:
        self.epoch = epoch
        self.rng = rng
        self.first = first
        self.begun = (NONE, 0)
        self.journals: dict[int, bytearray] = {first: bytearray()}

    @property
    def end(self) -> int:
        last = max(self.journals)
        return at(last, len(self.journals[last]))

    def append(self, size: int) -> None:
        """Append random bytes, none of which is zero."""
        last = self.journals[max(self.journals)]
        last += bytes(self.rng.choices(range(1, 256), k=size))

    def roll(self) -> None:
        """Begin the next journal."""
        self.journals[max(self.journals) + 1] = bytearray()

    def continued(self, epoch: int, position: int) -> ModelLog:
        """Return the log of a later epoch, which continues this one from a log position on."""
        log = ModelLog(epoch, self.rng, self.first)
        log.begun = self.epoch, position
        last, size = position >> POSITION_BITS, position & POSITION_MASK
        log.journals = {n: bytearray(data) for n, data in self.journals.items() if n <= last}
        del log.journals[last][size:]
        return log

    def pieces(self, position: int, size: int) -> Iterator[tuple[int, bytes]]:
        """Return (log position, bytes) of everything from a log position on."""
        for number in sorted(self.journals):
            if number < position >> POSITION_BITS:
                continue
            data = self.journals[number]
            start = position & POSITION_MASK if number == position >> POSITION_BITS else 0
            for begin in range(start, len(data), size):
                yield at(number, begin), bytes(data[begin : begin + size])


def contents(node: NodeCopies, epoch: int) -> dict[int, bytes]:
    """Return all bytes of a copy, by journal."""
    return {
        number: node.read(epoch, at(number, 0), length) if length else b""
        for number, length in node.listing(epoch).files
    }


def check(node: NodeCopies, log: ModelLog, epoch: int, end: int, first: int) -> None:
    """Check that a copy has the log of an epoch from a journal up to a log position."""
    found = contents(node, epoch)
    for number, data in log.journals.items():
        position = min(len(data), max(0, end - at(number, 0)))
        if number < first or position == 0:
            continue
        assert number in found, f"journal {number} is missing"
        assert found[number][:position] == data[:position], f"journal {number} differs"


# Copies in memory


def opened(files: MemoryFiles) -> NodeCopies:
    """Return the copies in files, as a new process finds them."""
    files.kill()
    return Follower(files, "/f").node(NODE)


def filled(node: NodeCopies, log: ModelLog, sizes: tuple[int, ...] = (300, 200)) -> int:
    """Begin a log with one journal of each size, and stream it."""
    for index, size in enumerate(sizes):
        if index:
            log.roll()
        log.append(size)
    return streamed(node, log)


def streamed(node: NodeCopies, log: ModelLog) -> int:
    """Stream a log from where the copy ends."""
    end = node.start_epoch(log.epoch, *log.begun, log.first)
    for start, data in log.pieces(end, 100):
        node.write(log.epoch, start, data)
    return node.sync(log.epoch)


def model(epoch: int = 1, first: int = 5) -> ModelLog:
    return ModelLog(epoch, random.Random(epoch), first)
