"""One process of the broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.log.followers.model.parts import (
    Begin,
    Data,
    Disk,
    Entry,
    Folder,
    Forget,
    Link,
    Row,
    Update,
    end_of,
)

if TYPE_CHECKING:
    from tests.log.followers.model.world import World

MAX_LINKS = 2
"""Connections at a time: replicas of a log, without the leader."""
MAX_UNCOMMITTED = 5
"""Entries that may wait for followers, so that logs are short."""
TRIES = 4
"""Actions that a life tries in a step until one is possible."""
REACHED = 0.7
"""How likely a start reaches an in-sync follower."""
CRASHES = 0.2
"""How likely a follower crashes after it was fenced."""
CLOSES = 0.05
"""How likely a life closes a connection when it has all that it may have."""
SLOW_LINKS = 0.2
"""How likely a connection is slow."""
SLOW_UPDATES = 0.3
"""How likely a statement is slow."""
CUT_OFF = 0.6
"""How likely a superseded life does not reach SQL, which would stop it."""
ANSWERS = 0.3
"""How likely an answer of SQL that is there is heard."""
LOST = 0.1
"""How likely an answer is lost, or not waited for any longer."""
MAX_WAITS = 10
"""For how many tries a life changes nothing after an update without an answer."""
ADDS = 0.7
"""How likely a follower is added when it can be."""
REMOVES = 0.05
"""How likely a follower is removed that is connected."""

Steps = Generator[None, None, None]
"""A part of a process; anything may happen at a yield."""


class Life:
    """One process of the broker, from its start until it finds that it was superseded."""

    def __init__(self, world: World, disk: Disk) -> None:
        self._world = world
        self._rules = world.rules
        self._random = world.random
        self._sql = world.sql
        self.disk = disk
        self.epoch = world.sql.register()
        self.links: list[Link] = []
        self.log: list[Entry] = []
        self.established = False
        self._row = Row()
        self._base = self._start = self._committed = 0
        self._acked: dict[int, int] = {}
        self._entering: set[int] = set()
        self._leaving: set[int] = set()
        self._update: Update | None = None
        self._waits = 0
        self._cut_off = self._random.random() < CUT_OFF
        self._superseded = False
        self.steps = self._run()

    def _run(self) -> Steps:
        yield
        row = self._sql.read(self.epoch)
        if row is None:
            return
        self._row, self._base = row, row.epoch
        if self._is_fresh():
            yield from self._fill()
        elif self._rules.cut_own_at_epoch and not self._rules.common_prefix:
            self.disk.folder.cut(end_of(self.disk.folder.entries, self._base))
        if self._superseded:
            return
        self.log = self.disk.folder.entries
        self._start = len(self.log)
        self._world.recover(self)
        self._world.may_stall()
        yield
        self._superseded = not self._sql.pair(self.epoch, self.disk.folder.number)
        self._world.check_holders()
        while not self._superseded:
            for _ in range(TRIES):
                if self._random.choice(ACTIONS)(self):
                    break
            self._commit()
            yield

    # -- the log of the life before

    def _is_fresh(self) -> bool:
        folder = self.disk.folder
        if self._rules.fresh_unless_paired and folder.number != self._sql.paired:
            return True
        return not folder.complete and self._rules.interrupted_is_fresh

    def _fill(self) -> Steps:
        """Begin an empty folder, and copy the log from an in-sync follower if there is a row."""
        folder = self.disk.folder = Folder(number=self._world.new_number())
        if not self._rules.pair_complete:
            self._superseded = not self._sql.pair(self.epoch, folder.number)
        while self._base and not self._superseded and not folder.complete:
            yield
            found = []
            for disk in self._world.disks:
                source = disk.source(self._base)
                member = self._world.name(disk) in self._row.members
                if member and source is not None and self._random.random() < REACHED:
                    found.append((disk, source[1]))
            if found:
                yield from self._copy(*self._random.choice(found))
        folder.sync()
        folder.complete = True

    def _copy(self, disk: Disk, end: int) -> Steps:
        """Fence a follower, and copy its log. The folder is not complete if the follower fails."""
        self._world.may_stall()
        yield
        self._superseded = disk.refuses(self.epoch)
        if self._rules.fence and not self._superseded:
            disk.fence = self.epoch
            if self._random.random() < CRASHES and not self._world.calm:
                self._world.crash_follower(disk)
        self._world.may_stall()
        yield
        source = disk.source(self._base)
        if source is not None and self._rules.end_after_fence:
            end = source[1]
        folder = self.disk.folder
        folder.cut(0)
        while len(folder.entries) < end and not self._superseded:
            yield
            source = disk.source(self._base)
            if disk.replaced or source is None or source[1] <= len(folder.entries):
                return
            upto = min(end, source[1], len(folder.entries) + self._random.randint(1, 20))
            folder.entries += source[0].entries[len(folder.entries) : upto]
        if not disk.replaced and not self._superseded:
            folder.sync()
            folder.complete = True
            self._world.seen["copied"] += 1

    # -- the work of a broker: actions return whether they were possible

    def _append(self) -> bool:
        early = not self.established and not self._rules.append_early
        if early or len(self.log) > max(self._start, self._committed) + MAX_UNCOMMITTED:
            return False
        for _ in range(self._random.randint(1, 3)):
            self.log.append((self.epoch, self._world.new_number()))
        return True

    def _sync(self) -> bool:
        folder = self.disk.folder
        if folder.durable == len(folder.entries):
            return False
        folder.durable = self._random.randint(folder.durable + 1, len(folder.entries))
        return True

    def _connect(self) -> bool:
        """Connect to another follower; sometimes close a connection."""
        self.links = [link for link in self.links if not link.closed]
        if len(self.links) == MAX_LINKS:
            link = self._random.choice(self.links)
            link.closed = self._random.random() < CLOSES
            return link.closed
        used = [self.disk, *(link.disk for link in self.links)]
        disk = self._random.choice([disk for disk in self._world.disks if disk not in used])
        log = self.log[: self._start] if self._rules.common_prefix else []
        begin = Begin(self.epoch, self._base, self._start, log)
        link = Link(self.epoch, disk, deque([begin]), slow=self._random.random() < SLOW_LINKS)
        self.links.append(link)
        self._world.links.append(link)
        return True

    def _send(self) -> bool:
        """Send entries to one follower."""
        link = self._any_link()
        if link is None or link.sent is None or link.sent == len(self.log):
            return False
        upto = min(len(self.log), link.sent + self._random.randint(1, 20))
        link.messages.append(Data(link.sent, self.log[link.sent : upto]))
        link.sent = upto
        return True

    def _hear(self) -> bool:
        """Read what one follower has acknowledged."""
        link = self._any_link()
        if link is None or not link.acks:
            return False
        end = max(link.acks)
        link.acks.clear()
        name = self._world.name(link.disk)
        self._acked[name] = max(end, self._acked.get(name, 0))
        link.sent = end if link.sent is None else link.sent
        return True

    def _forget(self) -> bool:
        link = self._any_link()
        early = not self.established and self._rules.forget_established
        if early or link is None or link.forgot:
            return False
        link.messages.append(Forget())
        link.forgot = True
        return True

    def _any_link(self) -> Link | None:
        links = [link for link in self.links if not link.closed]
        return self._random.choice(links) if links else None

    def _commit(self) -> None:
        """Acknowledge what is durable here and at each follower that counts."""
        if not self.established:
            return
        own = self.disk.folder.durable if self._rules.own_fsync else len(self.log)
        if not self._rules.recovered_synced:
            own = max(own, self._start)
        counted = (self._row.members | self._entering) - self._leaving
        end = min([own, *(self._acked.get(name, 0) for name in counted)])
        if end > self._committed:
            self._world.acknowledge(self, self._committed, end)
            self._committed = end

    # -- in-sync followers

    def _change(self) -> bool:
        """Let the row be changed, or learn whether it was."""
        if self.epoch < self._sql.epoch and self._cut_off:
            return False
        if self._update is not None:
            return self._hear_sql(self._update)
        if self._waits:
            self._waits -= 1
            return False
        return self._change_members() if self.established else self._establish()

    def _establish(self) -> bool:
        start = self._start if self._rules.establish_with_start else 0
        members = frozenset(name for name, end in self._acked.items() if end >= start)
        if len(members) < self._world.min_followers:
            return False
        self._store(members)
        if not self._rules.acknowledge_established:
            self.established = True
            self._row = replace(self._row, members=members)
        return True

    def _change_members(self) -> bool:
        """Add a follower that has what was acknowledged, or remove one."""
        members = self._row.members
        connected = {self._world.name(link.disk) for link in self.links if not link.closed}
        needed = self._committed if self._rules.enter_with_committed else 0
        entering = [name for name in connected - members if self._acked.get(name, -1) >= needed]
        leaving = list(members - connected)
        if self._random.random() < REMOVES:
            leaving = list(members)
        if entering and self._random.random() < ADDS:
            name = self._random.choice(entering)
            if self._rules.entering_counts:
                self._entering.add(name)
            self._store(members | {name})
        elif leaving and len(members) > self._world.min_followers:
            name = self._random.choice(leaving)
            if not self._rules.leaving_counts:
                self._leaving.add(name)
            self._store(members - {name})
        else:
            return False
        return True

    def _store(self, members: frozenset[int]) -> None:
        row = Row(self.epoch, members, self._row.version + 1)
        slow = self._random.random() < SLOW_UPDATES and not self._world.calm
        self._update = Update(row, slow)
        self._sql.network.append(self._update)
        self._world.may_stall()

    def _hear_sql(self, update: Update) -> bool:
        """Wait for the answer of SQL, or read the row. An update without an answer may arrive until
        the row has another version, so a follower that it adds counts until then."""
        if self._random.random() >= (LOST if update.done is None else ANSWERS):
            return False
        answered = update.done and self._random.random() >= LOST
        row = update.row if answered else self._sql.read(self.epoch)
        self._update = None
        self._superseded = row is None
        if row is None:
            return True
        self._leaving.clear()
        if row.version == self._row.version:
            self._world.seen["an update was abandoned"] += 1
            self._waits = self._random.randint(0, MAX_WAITS)
            if not self._rules.abandoned_counts:
                self._entering.clear()
            return True
        self._world.seen["established"] += not self.established
        self._entering.clear()
        self._row = row
        self.established = row.epoch == self.epoch
        return True


ACTIONS = [
    *[Life._append, Life._sync, Life._connect, Life._forget],
    *[Life._send, Life._hear, Life._change] * 2,
]
"""The actions of a life, one in each step; those that it needs most are there twice."""
