"""Fetch sessions (KIP-227): the partitions that a client fetches, kept between its requests.

The first Fetch lists all partitions, and each later one only those whose offset has changed. Kafka
checks every partition of a session for each Fetch; here partitions notify the session, so a Fetch
of 10,000 partitions of which 3 have new records costs as one of 3.

    epoch of the request   the session
    0                      is made when the answer is, if there are enough partitions and room
    1, 2, ...              is continued; each epoch is used once
    -1                     ends; the request lists all partitions and makes none

A request of few partitions makes no session (id 0), so the client lists them each time: that is
decoded and planned faster than a session is kept. Nor does one of a client with a rack, which may
read from another broker.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from kafkawire.codec.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafkawire.codec.fetch import FetchAsk, FetchItem, FetchResult
    from kafkawire.codec.flat import Topic
    from kafkawire.handlers.exchange import Peer
    from kafkawire.log.io.ports import Env
    from kafkawire.log.partition.partition import Partition
    from kafkawire.security.principals import Principal

PARTITIONS_MIN: Final = 32
"""Partitions of a request that makes a session: fewer are planned in some tens of microseconds."""

PARTITIONS_MAX: Final = 1_000_000
"""Partitions of all sessions together, of some 400 bytes each. Beyond it requests make none."""

PLANNED_MAX: Final = 4_096
"""Partitions planned for one answer: they are chosen in one step, in a millisecond. The next
request gets the others."""

IDLE_S: Final = 120.0
"""How long a session is kept that no request uses (Kafka, at least:
min.incremental.fetch.session.eviction.ms). Partitions that do not change stay in memory for it."""

LAST_EPOCH: Final = (1 << 31) - 1
UNKNOWN: Final = -1
"""In place of an offset that was not sent: the next answer has the partition."""

Key = tuple["Topic", int]


class SessionPartition:
    """One partition of a session. `item`: what the client asks for; `partition`: the one that will
    notify the session, None while it is due, by calling `note`. The offsets are those last sent."""

    __slots__ = ("high_watermark", "item", "log_start_offset", "note", "partition")

    def __init__(self, item: FetchItem, note: Callable[[Partition], None]) -> None:
        self.item = item
        self.note = note
        self.partition: Partition | None = None
        self.high_watermark = UNKNOWN
        self.log_start_offset = UNKNOWN


class FetchSession:
    """The partitions of one client. `epoch`: that of the next request; `due`: partitions to plan,
    in the order in which they became so; `planned`: those of the request that is being answered;
    that request is woken by `_wake` while it waits for records."""

    __slots__ = ("_wake", "by_id", "due", "entries", "epoch", "id", "owner", "planned", "used_s")

    def __init__(self, session_id: int, owner: Principal, *, by_id: bool) -> None:
        self.id = session_id
        self.owner = owner
        self.by_id = by_id
        self.epoch = 1
        self.entries: dict[Key, SessionPartition] = {}
        self.due: dict[Key, None] = {}
        self.planned: dict[Key, None] = {}
        self._wake: Callable[[Partition], None] | None = None
        self.used_s = 0.0

    def note(self, partition: Partition, key: Key | None = None) -> None:
        """Plan a partition for the next answer: it has changed. Hot. `key`: of a view that reads
        it."""
        if key is None:
            key = partition.topic_id if self.by_id else partition.topic, partition.index
        entry = self.entries.get(key)
        if entry is not None:
            self.due[key] = None
            # Once is enough until it is planned: the next changes cost nothing, which matters if
            # this session's client is gone.
            self._unwatch(entry)
        if self._wake is not None:
            self._wake(partition)

    @property
    def waits(self) -> bool:
        """Whether a request of this session waits for records."""
        return self._wake is not None

    def wait(self, wake: Callable[[Partition], None]) -> None:
        """Have `wake` called by changes, of the request that waits."""
        self._wake = wake

    def stop_waiting(self, wake: Callable[[Partition], None]) -> None:
        """Undo `wait`, unless another request waits by now."""
        if self._wake == wake:
            self._wake = None

    def watch(self, item: FetchItem, partition: Partition) -> None:
        """Have a partition that is being planned notify this session of its next change."""
        entry = self.entries.get((item[0], item[1]))
        if entry is not None and entry.partition is not partition:
            self._unwatch(entry)
            entry.partition = partition
            partition.watch(entry.note)

    def watch_view(self, item: FetchItem, partition: Partition) -> None:
        """As `watch` for a view; `partition` is that of its source."""
        key = item[0], item[1]
        entry = self.entries.get(key)
        if entry is not None and entry.note == self.note:
            entry.note = partial(self.note, key=key)
        self.watch(item, partition)

    def _unwatch(self, entry: SessionPartition) -> None:
        if entry.partition is not None:
            entry.partition.unwatch(entry.note)
            entry.partition = None

    def update(self, ask: FetchAsk) -> Generator[None, None, None]:
        """Take the changes that a request lists."""
        for item in ask.items:
            key = item[0], item[1]
            entry = self.entries.get(key)
            if entry is None:
                self.entries[key] = SessionPartition(item, self.note)
            else:
                entry.item = item
            # The first one again: the partitions of a request are served in its order.
            self.due.pop(key, None)
            self.due[key] = None
            yield
        for key in ask.forgotten:
            entry = self.entries.pop(key, None)
            if entry is not None:
                self._unwatch(entry)
                self.due.pop(key, None)
            yield

    def choose(self, most: int) -> list[FetchItem]:
        """Return what is planned for the present request: what already was, and what is due."""
        for key in list(islice(self.due, max(0, most - len(self.planned)))):
            del self.due[key]
            self.planned[key] = None
        # The session may have ended meanwhile, by a request on another connection.
        return [self.entries[key].item for key in self.planned if key in self.entries]

    def settle(
        self, results: Sequence[FetchResult], *, committed: bool
    ) -> Generator[None, None, list[FetchResult]]:
        """Return the results that the client does not know (Kafka:
        CachedPartition.maybeUpdateResponseData). `committed`: it reads committed records only."""
        news: list[FetchResult] = []
        for result in results:
            key = result.topic, result.index
            entry = self.entries.get(key)
            if entry is None:
                continue  # the session has ended
            failed = bool(result.error_code) or result.diverging is not None
            known = (entry.high_watermark, entry.log_start_offset)
            if failed or result.records or known != (
                result.high_watermark, result.log_start_offset
            ):  # fmt: skip
                news.append(result)
            # After an error all is sent again, as in Kafka.
            entry.high_watermark = UNKNOWN if failed else result.high_watermark
            entry.log_start_offset = result.log_start_offset
            # Nothing is to be read until the partition notes a change. After its records the client
            # asks for a later offset, and if it does not, it gets the same records again.
            end = result.last_stable_offset if committed else result.high_watermark
            if failed or entry.item[3] != end:
                self.due[key] = None
            yield
        self.planned.clear()
        return news

    def put_back(self) -> None:
        """Plan for the next request what was planned for one that is answered without results."""
        self.due.update(self.planned)
        self.planned.clear()

    def close(self) -> Generator[None, None, None]:
        """Remove all partitions."""
        while self.entries:
            _, entry = self.entries.popitem()
            self._unwatch(entry)
            yield
        self.due.clear()
        self.planned.clear()


class FetchSessions:
    """The sessions of all clients, the one that was used last at the end. `slots`: how many there
    may be (max.incremental.fetch.session.cache.slots)."""

    def __init__(self, env: Env, slots: int) -> None:
        self._env = env
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}
        self._timed = False

    def __len__(self) -> int:
        return len(self._sessions)

    def count_due(self, ask: FetchAsk) -> int:
        """Return how many partitions a request is about, with those that its session adds."""
        session = self._sessions.get(ask.session_id)
        return len(ask.items) + len(ask.forgotten) + (0 if session is None else len(session.due))

    def find(self, ask: FetchAsk, peer: Peer, *, by_id: bool) -> FetchSession:
        """Return the session that a request continues. Raises KafkaError."""
        session = self._sessions.get(ask.session_id)
        # That of another principal is not known to this one, whose right to read its topics was not
        # checked.
        if session is None or session.owner != peer.principal:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != ask.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == LAST_EPOCH else session.epoch + 1
        self.use(session)
        return session

    def use(self, session: FetchSession) -> None:
        """Note that a session is in use now."""
        session.used_s = self._env.clock.monotonic()
        if self._sessions.pop(session.id, None) is not None:
            self._sessions[session.id] = session

    def remove(self, session_id: int, peer: Peer) -> None:
        """End a session of this client, if there is one."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner == peer.principal:
            self._end(session)

    def make(self, peer: Peer, count: int, *, by_id: bool) -> FetchSession | None:
        """Return a new session for `count` partitions, to be filled with `update`; None if there is
        no room."""
        if count < PARTITIONS_MIN or not self._slots:
            return None
        if len(self._sessions) >= self._slots:
            self._end_idle()
        held = sum(len(session.entries) for session in self._sessions.values())
        if len(self._sessions) >= self._slots or held + count > PARTITIONS_MAX:
            return None
        session_id = 0
        while not session_id or session_id in self._sessions:
            session_id = int.from_bytes(self._env.random.randbytes(4), "big") & LAST_EPOCH
        session = FetchSession(session_id, peer.principal, by_id=by_id)
        self._sessions[session_id] = session
        self.use(session)
        if not self._timed:
            self._timed = True
            self._env.call_later(IDLE_S, self._expire)
        return session

    def _expire(self) -> None:
        self._end_idle()
        self._timed = bool(self._sessions)
        if self._timed:
            self._env.call_later(IDLE_S, self._expire)

    def _end_idle(self) -> None:
        before_s = self._env.clock.monotonic() - IDLE_S
        while self._sessions:
            session = next(iter(self._sessions.values()))
            if session.used_s > before_s or session.waits:
                return
            self._end(session)

    def _end(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self._env.spawn(self._env.slices.run(session.close()), "end a fetch session")
