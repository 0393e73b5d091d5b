"""Which followers acknowledgements wait for: the in-sync followers of one broker. Pure.

A follower is in sync if its copy has everything that was acknowledged. The set of them is stored in
SQL (kafkawire.offsets.catalog.replica_sets), since another process of the broker may start from any
of their copies. `due` decides what to store next; the caller stores it and calls `note_stored`.

- Nothing is acknowledged before the set of this process is stored: it is *established* once enough
  followers have everything that the journals had at the start. Until then the set of the process
  before is valid.
- A follower that is to enter counts from before the set with it is stored. One that is to leave
  counts until the set without it is known to be stored: if the answer was lost, it is stored again.
- The set never becomes smaller than `min.insync.replicas` wants. With fewer followers nothing can
  be acknowledged anyway, and those that left last have everything that was. So one that is to leave
  stays until another one has entered, for which it may be larger than a complete group.

Source: the ISR of Kafka (Partition, KIP-497), with the strict minimum of KIP-966.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from kafkawire.offsets.catalog.replica_sets import FollowerRow


def choose_followers(
    followers: Sequence[FollowerRow],
    node_id: int,
    own: str,
    failing: Collection[str],
    wanted: int,
    used: Collection[str] = (),
) -> list[FollowerRow]:
    """Return up to `wanted` followers for the log of a broker."""
    # Of several that were registered for one machine the last one counts, which comes first.
    latest: dict[int, FollowerRow] = {}
    for each in followers:
        latest.setdefault(each.node_id, each)
    # Not the one on this machine: it would be lost together with the journals.
    others = [each for each in latest.values() if each.replica_id != own]
    others.sort(
        key=lambda each: (
            # Last: those that cannot be reached.
            each.replica_id in failing,
            # First: those in use, so that one that has replaced another stays.
            each.replica_id not in used,
            # Then the next brokers by node id: their machines are the first to start this broker if
            # its own is gone.
            each.node_id <= node_id,
            each.node_id,
        )
    )
    return others[:wanted]


@dataclass(slots=True)
class FollowerProgress:
    """The progress of a follower. `end`: the log position up to which its copy is durable."""

    end: int
    # Since when it has not had everything that was written then; None: it has.
    lacks_s: float | None
    # Since when it does not receive the log; None: it does.
    gone_s: float | None
    # A log position that it lacks, and when that was written: once it has it, `lacks_s` becomes
    # that time. So one follower's lag needs one position, not a list.
    probe: tuple[int, float]
    # It does not run.
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """`wanted`: followers of a complete group; `needed`: those without which nothing may be
    acknowledged; `lag_s`: for how long a follower may lack something before it leaves."""

    wanted: int
    needed: int
    lag_s: float


@dataclass(slots=True)
class InSyncSet:
    """The in-sync followers, by replica id.

    `start`: the end of the journals when this process began, at `begun_s`; `written`: their end
    now; `members`: as stored in SQL under `version`, without a follower on the machine of this
    broker; `established`: whether that set is of this process; `changing`: the set that is being
    stored, or may be stored.
    """

    limits: Limits
    start: int
    begun_s: float
    version: int
    members: frozenset[str] = frozenset()
    established: bool = False
    changing: frozenset[str] | None = None
    followers: dict[str, FollowerProgress] = field(default_factory=dict)
    written: int = field(init=False)

    def __post_init__(self) -> None:
        self.written = self.start

    def note_write(self, written: int, now_s: float) -> None:
        """Note that the journals end at `written`."""
        self.written = written
        for each in self.followers.values():
            # Only the first write that it lacks counts.
            if each.lacks_s is None and each.end < written:
                each.lacks_s, each.probe = now_s, (written, now_s)

    def note_connected(self, replica: str, end: int, now_s: float) -> None:
        """Note that a follower receives the log from `end` on."""
        known = self.followers.get(replica)
        # A connection that was lost does not make it newer: it still lacks what it lacked.
        lacks_s = now_s if known is None or known.lacks_s is None else known.lacks_s
        # What it acknowledged before stays durable.
        durable = end if known is None else known.end
        self.followers[replica] = FollowerProgress(durable, lacks_s, None, (self.written, now_s))
        self.note_acknowledged(replica, end, now_s)

    def note_disconnected(self, replica: str, now_s: float) -> None:
        """Note that a follower receives nothing. What it has stays durable."""
        known = self.followers.get(replica)
        if known is not None and known.gone_s is None:
            known.gone_s = now_s

    def note_refused(self, replica: str) -> None:
        """Note that nothing listens at the address of a follower: it was stopped, or its machine
        has ended it, so it need not be waited for."""
        known = self.followers.get(replica)
        if known is not None:
            known.absent = True

    def note_acknowledged(self, replica: str, end: int, now_s: float) -> None:
        """Note that the copy of a follower is durable up to `end`."""
        known = self.followers[replica]
        # A follower that was started again wants bytes again that it has.
        known.end = end = max(known.end, end)
        if end >= self.written:
            known.lacks_s = None
        elif end >= known.probe[0]:
            # It has what was written at the probe, so it lacks only later bytes; a new probe
            # measures these.
            known.lacks_s, known.probe = known.probe[1], (self.written, now_s)

    @property
    def counted(self) -> frozenset[str]:
        """The followers that an acknowledgement waits for."""
        # One that enters counts before SQL has it, one that leaves until SQL has it: whichever set
        # another process reads, its members have everything.
        return self.members | (self.changing or frozenset())

    def committed_position(self, own: int) -> int:
        """Return the log position up to which everything may be acknowledged, when the own journals
        are durable up to `own`; -1 before the set is established."""
        # Fewer than the minimum: nothing may be acknowledged, whatever they have.
        if not self.established or len(self.counted) < self.limits.needed:
            return -1
        return self._everywhere(own)

    def live(self, now_s: float) -> frozenset[str]:
        """Return the in-sync followers that are connected, and have lacked nothing for too long."""
        return frozenset(each for each in self.members if not self._is_late(each, now_s))

    def lag_s(self, replica: str, now_s: float) -> float:
        """Return for how long a follower has lacked something, or has not been connected."""
        known = self.followers.get(replica)
        if known is None:
            # It has never been connected.
            return now_s - self.begun_s
        since = [each for each in (known.lacks_s, known.gone_s) if each is not None]
        return now_s - min(since, default=now_s)

    def due(self, own: int, now_s: float) -> frozenset[str] | None:
        """Return the set to store next; None if the stored one is right, or one is being stored.
        `own`: the log position up to which the own journals are durable."""
        if self.changing is not None:
            return None
        if not self.established:
            return self._first(now_s)
        late = [each for each in self.members if self._is_late(each, now_s)]
        # Never below the minimum: those that left last have everything that was acknowledged.
        if late and len(self.members) > self.limits.needed:
            return self.members - {min(late)}
        # It must have all that may have been acknowledged, also by the process before.
        least = max(self._everywhere(own), self.start)
        entering = [
            each
            for each, known in sorted(self.followers.items())
            # One that is not connected would have to leave again.
            if each not in self.members and known.gone_s is None and known.end >= least
        ]
        # Beyond a complete group only if a late one waits to be replaced.
        if entering and (late or len(self.members) < self.limits.wanted):
            return self.members | {entering[0]}
        return None

    def start_update(self, members: Collection[str]) -> None:
        """Note that a set is about to be stored."""
        assert self.changing is None, "one change at a time"
        self.changing = frozenset(members)

    def note_stored(self) -> None:
        """Note that the set is stored which `start_update` got."""
        assert self.changing is not None, "it was begun"
        self.members, self.changing = self.changing, None
        self.version += 1
        self.established = True

    def _first(self, now_s: float) -> frozenset[str] | None:
        """Return the first set of this process, if there are enough followers for it."""
        ready = [
            each
            for each, known in sorted(self.followers.items())
            if known.gone_s is None and known.end >= self.start
        ][: self.limits.wanted]
        enough = len(ready) >= self.limits.needed
        # The others had their time.
        late = now_s - self.begun_s >= self.limits.lag_s
        # The set of the process before is there again: no reason to wait for more.
        as_before = self.version > 0 and bool(ready) and self.members.issubset(ready)
        if len(ready) == self.limits.wanted or (enough and (late or as_before)):
            return frozenset(ready)
        return None

    def _is_late(self, replica: str, now_s: float) -> bool:
        """Return whether a follower is to leave."""
        known = self.followers.get(replica)
        absent = known is not None and known.absent
        return absent or self.lag_s(replica, now_s) > self.limits.lag_s

    def _everywhere(self, own: int) -> int:
        """Return the log position up to which the own journals and all counted followers have
        everything."""
        # What was acknowledged is before it, also if `limits.needed` has changed since: a follower
        # enters only with an end that is not before it.
        return min([own, *(self._end(each) for each in self.counted)])

    def _end(self, replica: str) -> int:
        known = self.followers.get(replica)
        # A member that has not connected: nothing is known of its copy.
        return -1 if known is None else known.end
