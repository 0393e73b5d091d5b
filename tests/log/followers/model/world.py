"""The model as a whole: lives, the network, failures, and the checks."""

from __future__ import annotations

import random
from collections import Counter

from tests.log.followers.model.life import Life
from tests.log.followers.model.parts import (
    Begin,
    Copy,
    Data,
    Disk,
    Entry,
    Forget,
    Link,
    Message,
    Row,
    Rules,
    Sql,
    end_of,
)

MACHINES = 4
MIN_FOLLOWERS = (0, 1, 1, 2, 2)
"""`min.insync.replicas` - 1: a walk has one of them. With 0 there may be a row without followers;
only a start in the paired folder can proceed then."""
MAX_LIVES = 3
"""Processes at a time: the newest life, and earlier ones that have stalled."""
RESTARTS = 0.2
"""How likely a life starts on the machine of the paired folder, and not on any machine."""
SWITCHES = 0.015
"""How likely a step begins a time in which another life runs, and the others stall."""
NEWEST = 0.5
"""How likely that is the newest one, and not any."""
STALLS = 0.6
"""How likely a life stalls where it has read, or sent, something that changes."""
FAILURES = 0.004
"""How likely something fails in a step."""
SQL_ARRIVALS = 0.15
"""How likely a statement arrives in SQL in a step; a slow one does in one of twenty cases."""
ARRIVALS = 0.3
"""How likely a message arrives at a follower in a step."""
SLOW_WAITS = 0.5
"""How likely a message that would arrive does not, if its connection is slow."""
LATE = 0.4
"""How likely messages of a life arrive after it has ended."""
SYNCS = 0.6
"""How likely a follower syncs at once what it has received."""


class Violation(Exception):
    """Something acknowledged is lost or has changed, or no start can proceed."""


class World:
    """The state that the lives share, and the checks. `calm`: nothing fails or stalls; `seen`
    counts situations that the walk has reached."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.rules = rules
        self.random = random.Random(seed)
        self.sql = Sql(rules)
        self.min_followers = self.random.choice(MIN_FOLLOWERS)
        self._numbers = MACHINES
        self.disks = [Disk(self.new_number(), machine, rules) for machine in range(MACHINES)]
        self.lives: list[Life] = []
        self.links: list[Link] = []
        self.calm = False
        self.seen: Counter[str] = Counter()
        self._running: Life | None = None
        self._acknowledged: list[Entry] = []
        self._latest: tuple[int, list[Entry]] = (0, [])
        """Epoch and log of the newest life that has found its log."""

    def new_number(self) -> int:
        """Return a number that no machine, disk, folder or entry has."""
        self._numbers += 1
        return self._numbers

    def name(self, disk: Disk) -> int:
        """Return how the row names the follower on a disk."""
        return disk.number if self.rules.by_disk else disk.machine

    # -- steps

    def step(self) -> None:
        """Let one thing happen: a failure, a statement or message arrives, a life makes a step."""
        choice = self.random.random()
        if choice < FAILURES and not self.calm:
            self._fail()
        elif choice < FAILURES + SQL_ARRIVALS and self.sql.network:
            self._deliver_update()
        elif choice < 1 - ARRIVALS or not self._deliver_any():
            self._run()

    def _run(self) -> None:
        """Let a life make a step."""
        if not self.lives:
            return
        switch = not self.calm and self.random.random() < SWITCHES
        if switch or self._running not in self.lives:
            newest = self.random.random() < NEWEST
            self._running = self.lives[-1] if newest else self.random.choice(self.lives)
        if next(self._running.steps, True):
            self._end(self._running)

    def may_stall(self) -> None:
        """Maybe let another life run; one that acknowledges is the most interesting."""
        if not self.calm and self.random.random() < STALLS:
            established = [life for life in self.lives if life.established]
            self._running = self.random.choice(established or self.lives)

    def start_life(self) -> None:
        """Start a life."""
        disk = self.random.choice(self.disks)
        paired = [each for each in self.disks if each.folder.number == self.sql.paired]
        if paired and self.random.random() < RESTARTS:
            disk = paired[0]
        self._start_on(disk)

    def start_last(self) -> Life:
        """Start a life where it must be able to proceed, without failures."""
        self.calm = True
        row = self.sql.row
        members = [disk for disk in self.disks if self.name(disk) in row.members]
        holders = self.disks if members or row.epoch == 0 else self.holders(row)
        if not holders:
            raise Violation("no start can proceed")
        return self._start_on(self.random.choice(holders))

    def _start_on(self, disk: Disk) -> Life:
        """Start a life on a machine, after the end of the one there."""
        self._end_on(disk)
        if len(self.lives) == MAX_LIVES:
            self._end(self.random.choice(self.lives))
        life = self._running = Life(self, disk)
        self.lives.append(life)
        return life

    def _end(self, life: Life) -> None:
        self.lives.remove(life)
        for link in life.links:
            link.closed = True
            if self.random.random() >= LATE:
                link.messages.clear()

    def _end_on(self, disk: Disk) -> None:
        for life in [life for life in self.lives if life.disk is disk]:
            self._end(life)

    # -- the network

    def _deliver_update(self) -> None:
        at = self.random.randrange(len(self.sql.network))
        if not self.sql.network[at].slow or self.random.random() < 0.05:
            update = self.sql.network.pop(at)
            self.sql.arrive(update)
            self.check_holders()
            self.seen["an update was refused"] += not update.done

    def _deliver_any(self) -> bool:
        """Let something arrive at one of two followers; return whether something did."""
        return any(self.links and self._deliver(self.random.choice(self.links)) for _ in range(2))

    def _deliver(self, link: Link) -> bool:
        """Let a message arrive at a follower, or let the follower sync; return whether one did.
        Messages arrive also after the life has closed the connection, or has ended."""
        if link.slow and not self.calm and self.random.random() < SLOW_WAITS:
            return False
        if link.messages:
            self._receive(link, link.messages.popleft())
        elif link.unsynced:
            self._sync(link)
        elif link.closed:
            self.links.remove(link)
        else:
            return False
        return True

    def _receive(self, link: Link, message: Message) -> None:
        disk = link.disk
        connected = not self.rules.fence_connections and not isinstance(message, Begin)
        if disk.refuses(link.epoch) and not connected:
            self.seen["a follower has refused an earlier life"] += 1
            self._cut(link)
        elif isinstance(message, Begin):
            self._note_begin(disk, message)
            disk.begin(message)
            self.check_holders()
            self._sync(link)
        elif isinstance(message, Forget):
            disk.forget(link.epoch)
        else:
            self._write(link, message)

    def _write(self, link: Link, data: Data) -> None:
        copy = link.disk.copies[-1]
        if copy.epoch != link.epoch or data.position > len(copy.entries):
            self._cut(link)  # another life has begun, or the follower has crashed
            return
        copy.entries += data.entries[len(copy.entries) - data.position :]
        link.unsynced = True
        if not self.rules.durable_acks:
            link.acks.append(len(copy.entries))
        if self.random.random() < SYNCS:
            self._sync(link)

    def _sync(self, link: Link) -> None:
        """Let a follower sync its copy, and acknowledge it."""
        link.unsynced = False
        copy = link.disk.copies[-1]
        if copy.epoch == link.epoch:
            copy.sync()
            link.acks.append(copy.durable)

    def _cut(self, link: Link) -> None:
        link.closed = True
        self.links.remove(link)

    # -- failures

    def _fail(self) -> None:
        disk = self.random.choice(self.disks)
        choice = self.random.random()
        if choice < 0.2 and self.lives:
            self._end(self.random.choice(self.lives))
        elif choice < 0.4:
            self.crash_follower(disk)
        elif choice < 0.8:
            for each in [disk] if choice < 0.6 else self.disks:
                self._end_on(each)
                each.folder.lose(self.random)
                self.crash_follower(each)
        elif all(set(self.holders(row)) - {disk} for row in self.sql.next_rows() if row.epoch):
            self._end_on(disk)
            self.crash_follower(disk)
            disk.replaced = True
            self.disks[disk.machine] = Disk(self.new_number(), disk.machine, self.rules)
            self.seen["a disk was replaced"] += 1

    def crash_follower(self, disk: Disk) -> None:
        """End the process of a follower."""
        for copy in disk.copies:
            copy.lose(self.random)
        if not self.rules.keep_fence:
            disk.fence = 0
        for link in [link for link in self.links if link.disk is disk]:
            self._cut(link)

    def holders(self, row: Row) -> list[Disk]:
        """Return the disks that, with this row, have everything that was acknowledged: a start can
        proceed if it finds one of them."""
        return [
            disk for disk in self.disks if self._is_paired(disk) or self.name(disk) in row.members
        ]

    def _is_paired(self, disk: Disk) -> bool:
        return disk.folder.complete and disk.folder.number == self.sql.paired

    # -- checks

    def recover(self, life: Life) -> None:
        """Check the log that a life has found. One that is superseded is never established."""
        if life.epoch == self.sql.epoch:
            self._latest = (life.epoch, life.log)
            self._check_latest(0)
            self.seen["recovered"] += 1

    def acknowledge(self, life: Life, start: int, end: int) -> None:
        """Check what a life acknowledges."""
        known = len(self._acknowledged)
        if life.log[start : min(end, known)] != self._acknowledged[start:end]:
            raise Violation(f"life {life.epoch} has other entries at {start}-{end}")
        self._acknowledged += life.log[known:end]
        if self._latest[0] > life.epoch:
            self._check_latest(known)
        self.check_holders(known)
        self.seen["acknowledged"] += end - start
        self.seen["acknowledged by a superseded life"] += life.epoch < self.sql.epoch

    def check_holders(self, start: int = 0) -> None:
        """Check that each holder has what was acknowledged, from a position on: it may be the only
        one that the next start finds."""
        expected = self._acknowledged[start:]
        for disk in self.holders(self.sql.row) if expected else ():
            if self._is_paired(disk):
                self._check(disk.folder.entries[start : disk.folder.durable], expected, disk)
            if self.name(disk) in self.sql.row.members:
                self._check(disk.durable_log(self.sql.row.epoch)[start:], expected, disk)

    def _check(self, found: list[Entry], expected: list[Entry], disk: Disk) -> None:
        if found[: len(expected)] != expected:
            raise Violation(f"disk {disk.number} has lost something that was acknowledged")

    def _check_latest(self, start: int) -> None:
        epoch, log = self._latest
        if log[start : len(self._acknowledged)] != self._acknowledged[start:]:
            raise Violation(f"life {epoch} has lost something that was acknowledged")

    def _note_begin(self, disk: Disk, begin: Begin) -> None:
        copy = disk.copies[-1] if disk.copies else Copy()
        if copy.base == begin.base and copy.epoch < begin.epoch:
            end, early = len(copy.entries), end_of(copy.entries, begin.base)
            self.seen["a copy had entries of a life that was not established"] += early < end
            self.seen["they began before the position of BEGIN"] += early < min(end, begin.start)
