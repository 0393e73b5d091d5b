"""One transactional id as plainly as can be: mutable fields, and the rules in order.

Written from the description of Kafka's behaviour, not from kafkawire.transactions. Every method
returns (code, producer id, epoch).
"""

from __future__ import annotations

from dataclasses import dataclass, field

Answer = tuple[int, int, int]

OK = 0
FENCED = 90
MAPPING = 49
CONCURRENT = 51
BAD_STATE = 48


def err(code: int) -> Answer:
    return code, -1, -1


@dataclass
class Model:
    """`state` is E(mpty), O(ngoing), PC, PA, CC or CA; "" means: there is no such id."""

    cluster: int = 2
    state: str = ""
    pid: int = -1
    epoch: int = -1
    last: int = -1
    prev: int = -1
    next: int = -1
    client: int = 0
    partitions: set[int] = field(default_factory=set)
    without_marker: set[int] = field(default_factory=set)
    started: int = -1
    updated: int = -1

    def init(self, pid: int, epoch: int, fresh: int, now: int) -> Answer:
        given = pid != -1
        if not self.state:
            self.state, self.pid, self.epoch, self.last = "E", fresh, 0, -1
            self.prev, self.client, self.next = fresh, 0, -1
        elif self.state in ("PC", "PA"):
            return err(CONCURRENT)
        elif given and pid != self.pid and not (pid == self.prev and epoch >= 32_766):
            return err(FENCED)
        elif self.state == "O":
            self.fence(fresh, now)
            return err(CONCURRENT)
        elif self.epoch >= 32_766:
            if given and epoch != self.epoch:
                return err(-1)
            self.prev, self.last = self.pid, self.epoch if given else -1
            self.pid, self.epoch = fresh, 0
        elif not given or epoch == self.epoch:
            self.prev, self.last = self.pid, self.epoch if given else -1
            self.epoch += 1
        elif epoch == self.last:
            self.prev = self.pid
        else:
            return err(FENCED)
        self.state, self.partitions = "E", set()
        self.started, self.updated = -1, now
        return OK, self.pid, self.epoch

    def fence(self, fresh: int, now: int) -> None:
        if self.cluster >= 2:
            self.next = fresh if self.epoch >= 32_766 else -1
            self.last, self.client = self.epoch, 2
        else:
            self.next, self.last, self.client = -1, -1, 0
        self.epoch = min(self.epoch + 1, 32_767)
        self.decide("PA", now)

    def decide(self, state: str, now: int) -> None:
        if self.state != "O":
            self.started = now
        self.state, self.prev, self.updated = state, self.pid, now
        self.without_marker = set(self.partitions)
        if not self.partitions:
            self.complete(now)

    def complete(self, now: int) -> None:
        self.state = "CC" if self.state == "PC" else "CA"
        self.prev, self.partitions, self.updated = self.pid, set(), now
        if self.client >= 2 and self.next != -1:
            self.pid, self.epoch = self.next, 0
        self.next = -1

    def add(self, pid: int, epoch: int, partitions: set[int], tv: int, now: int) -> Answer:
        if not self.state:
            return err(MAPPING)
        if self.state in ("PC", "PA"):
            return err(CONCURRENT)
        if pid != self.pid:
            return err(MAPPING)
        if epoch != self.epoch:
            return err(FENCED)
        if self.state == "O" and partitions <= self.partitions:
            return err(OK)
        if self.state != "O":
            self.started = now
        self.state, self.prev, self.client, self.updated = "O", self.pid, tv, now
        self.partitions |= partitions
        return err(OK)

    def verify(self, pid: int, epoch: int, partition: int) -> int:
        if not self.state or pid != self.pid:
            return MAPPING
        if epoch != self.epoch:
            return FENCED
        if self.state in ("PC", "PA"):
            return CONCURRENT
        return OK if partition in self.partitions else 120

    def end(self, pid: int, epoch: int, commit: bool, tv: int, fresh: int, now: int) -> Answer:
        if not self.state:
            return err(MAPPING)
        return (self._end_2 if tv == 2 else self._end_1)(pid, epoch, commit, fresh, now)

    def _end_1(self, pid: int, epoch: int, commit: bool, fresh: int, now: int) -> Answer:
        if pid != self.pid:
            return err(MAPPING)
        if epoch != self.epoch:
            return err(FENCED)
        if self.state in ("PC", "PA"):
            return err(CONCURRENT)
        if self.state == "E":
            return err(BAD_STATE)
        if self.state in ("CC", "CA"):
            same = self.state == ("CC" if commit else "CA")
            return (OK, self.pid, self.epoch) if same else err(BAD_STATE)
        self.next, self.client = -1, 0
        answer = OK, self.pid, self.epoch
        self.decide("PC" if commit else "PA", now)
        return answer

    def _end_2(self, pid: int, epoch: int, commit: bool, fresh: int, now: int) -> Answer:
        if self.state in ("PC", "PA"):
            return err(CONCURRENT)
        rolled = pid == self.prev and epoch == 32_766 and self.epoch == 0
        if pid != self.pid and not rolled:
            return err(MAPPING)
        retry = rolled or self.epoch == epoch + 1
        if retry:
            if self.state in ("E", "O"):
                return err(FENCED)
            same = self.state == ("CC" if commit else "CA")
            return (OK, self.pid, self.epoch) if same else err(BAD_STATE)
        if epoch != self.epoch:
            return err(FENCED)
        if commit and self.state != "O":
            return err(BAD_STATE)
        self.next = fresh if self.epoch >= 32_766 else -1
        self.last, self.client = self.epoch, 2
        self.epoch += 1
        answer = (OK, self.next, 0) if self.next != -1 else (OK, self.pid, self.epoch)
        self.decide("PC" if commit else "PA", now)
        return answer

    def marked(self, partition: int, now: int) -> None:
        self.without_marker.discard(partition)
        if not self.without_marker:
            self.complete(now)

    def reload(self) -> None:
        self.last = -1
        if self.state in ("PC", "PA"):
            self.without_marker = set(self.partitions)
        if self.cluster == 0:
            self.prev, self.next, self.client = -1, -1, 0
