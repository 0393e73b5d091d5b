"""A broker that streams its logs to one follower on files in memory, and knows what must be there.

It notes a promise when the follower has acknowledged bytes, and lowers it before it does something
that may remove them. `check` compares the follower's copies with all promises.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kafkawire.replication.failures import DiskFailed, Fenced, FollowerError
from kafkawire.replication.follower import Follower
from kafkawire.replication.messages import POSITION_BITS
from tests.replication.memory_files import Crashed, MemoryFiles
from tests.replication.model import NODE, NONE, ModelLog, at, check, contents

FIRST = 5


class BrokerModel:
    """One broker over many starts, and its follower. `acked`: epoch -> log position before which
    everything must be there; `first`: the first journal that must be there; `fence`: the epoch of
    the last fence that was confirmed; `forgotten`: copies of lower epochs may be gone."""

    def __init__(self, files: MemoryFiles, rng: random.Random) -> None:
        self.files = files
        self.rng = rng
        self.epoch = 0
        self.logs: dict[int, ModelLog] = {}
        self.begun: tuple[int, int] = (NONE, 0)
        self.acked: dict[int, int] = {}
        self.first = FIRST
        self.fence = NONE
        self.forgotten = 0
        self.is_connected = False

    @property
    def log(self) -> ModelLog:
        """The log of the current epoch."""
        return self.logs[self.epoch]

    def start(self) -> None:
        """Start the follower process."""
        self.is_connected = False
        self.node = Follower(self.files, "/f").node(NODE)

    def run(self, step: Callable[[], None]) -> None:
        """Run a step; start the follower again if its process ends."""
        try:
            step()
        except FollowerError:  # the disk is full
            self.is_connected = False
        except DiskFailed:
            self.restart(by_power_failure=False)
        except Crashed:
            self.files.crash_at = None
            self.restart(self.rng.random() < 0.5)

    def restart(self, by_power_failure: bool) -> None:
        """End the follower process or its machine, and start it again."""
        if by_power_failure:
            self.files.power_failure(self.rng)
        else:
            self.files.kill()
        self.run(self.start)

    # Steps

    def take_over(self, continues: int, position: int) -> None:
        """Start the broker again: fence, and continue an earlier epoch (NONE: none)."""
        earlier = self.logs.get(continues)
        self.epoch += 1
        if earlier is None:
            self.logs[self.epoch] = ModelLog(self.epoch, self.rng, self.first)
        else:
            self.logs[self.epoch] = earlier.continued(self.epoch, position)
        self.begun = continues, position
        self.is_connected = False
        self.node.fence(self.epoch)
        self.fence = self.epoch

    def take_over_or_refuse(self, continues: int, position: int) -> None:
        """Start the broker again, unless its log ends before what the follower knows as committed:
        then the follower refuses it."""
        copies = sorted(self.node._copies.items(), reverse=True)
        copy = next((each for _, each in copies if each.common(continues) is not None), None)
        if copy is None or position >= copy.committed:
            self.take_over(continues, position)
            return
        with pytest.raises(FollowerError, match="before the end of what was acknowledged"):
            self.node.start_epoch(self.epoch + 1, continues, position, self.first)

    def connect(self) -> int:
        """Begin to write the log of the current epoch; return where its copy continues."""
        if self.epoch not in self.node._copies:
            self._lower_promises()
        end = self.node.start_epoch(self.epoch, *self.begun, self.first)
        self.is_connected = True
        self._acknowledged(end)
        return end

    def append(self, size: int) -> None:
        """Append to the log."""
        self.log.append(size)

    def stream(self, size: int, count: int = 1 << 30, is_synced: bool = True) -> None:
        """Send bytes from the end of the copy on, in pieces."""
        end = self.node._copies[self.epoch].end if self.is_connected else self.connect()
        for number, (position, data) in enumerate(self.log.pieces(end, size)):
            if number == count:
                break
            self.node.write(self.epoch, position, data)
        if is_synced:
            self._acknowledged(self.node.sync(self.epoch))

    def mark(self, committed: int, first: int) -> None:
        """Send the committed position, and the first journal that is needed."""
        if self.is_connected:
            self.first = max(self.first, min(first, max(self.log.journals)))
            self.node.mark(self.epoch, committed, self.first)

    def forget(self) -> None:
        """Delete copies of earlier epochs."""
        if self.is_connected:
            self.forgotten = self.epoch
            self.node.delete_earlier_copies(self.epoch)

    def _acknowledged(self, end: int) -> None:
        assert end <= self.log.end
        self.acked[self.epoch] = max(end, self.acked.get(self.epoch, 0))

    def _lower_promises(self) -> None:
        """A copy that has the continued log loses what is after the log position."""
        continues, position = self.begun
        for _, copy in sorted(self.node._copies.items(), reverse=True):
            if copy.common(continues) is None:
                continue
            for epoch in [each for each in self.acked if copy.common(each) is not None]:
                if epoch <= continues:
                    self.acked[epoch] = min(self.acked[epoch], position)
                else:
                    del self.acked[epoch]
            return

    # Checks

    def check(self) -> None:
        """Compare the copies with the promises, and with the logs that they continue."""
        for epoch, end in self.acked.items():
            if epoch >= self.forgotten:
                check(self.node, self.logs[epoch], epoch, end, self.first)
        if self.fence > 0:
            with pytest.raises(Fenced) as refusal:
                self.node.start_epoch(self.fence - 1, NONE, 0, 0)
            assert refusal.value.higher >= self.fence
        copy = self.node._copies.get(self.epoch)
        acked = self.acked.get(self.epoch)
        if copy is not None and acked is not None:
            for epoch, _ in copy._state.lineage:
                end = min(acked, self.node.listing(epoch).end)
                check(self.node, self.logs[epoch], epoch, end, self.first)

    def complete(self) -> None:
        """Stream everything, and compare all of the copy."""
        self.files.room_bytes = None
        self.files.failing_syncs = 0
        self.is_connected = False
        self.stream(100)
        self.check()
        found = contents(self.node, self.epoch)
        for number, data in self.log.journals.items():
            if number >= self.first:
                assert found.get(number, b"") == data
        assert max(found, default=0) <= self.log.end >> POSITION_BITS
        self.restart(by_power_failure=True)
        self.check()


def somewhere(log: ModelLog, rng: random.Random, first: int) -> int:
    """Return a log position in a log."""
    number = rng.choice([each for each in log.journals if each >= first])
    return at(number, rng.randint(0, len(log.journals[number])))
