"""Replication: sends the log of this broker to followers, and decides what is committed.

Used by topics with durability=replicated. It begins when the first partition of such a topic is in
memory: it connects to followers, stores the set of those that are in sync in SQL, and from then on
moves what is committed in kafkawire.log.append.follower_sink. A start that continues a log of which
followers have copies waits until the set of this process is stored, before any request is served.

Created by kafkawire.broker.objects, run by kafkawire.log.manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.followers.in_sync import InSyncSet, Limits, choose_followers
from kafkawire.log.followers.link import FollowerLink, ReplicatedLog
from kafkawire.log.followers.network import Network
from kafkawire.log.followers.source import (
    FAILURES,
    CopyReader,
    check_end_with_copies,
    damaged_folder_error,
    reading,
)
from kafkawire.log.io.ports import Env, Superseded
from kafkawire.log_lines import reason_of
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import Transactions
from kafkawire.objectstore.backoff import wait_s
from kafkawire.offsets.catalog import replica_sets
from kafkawire.offsets.catalog.replica_sets import FollowerRow, ReplicaSet
from kafkawire.replication.messages import CONTINUES_NONE

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.recovery.result import Recovered

logger = logging.getLogger(__name__)

TICK_S = 0.5
"""Between two marks, which say that the broker is there and what is committed."""
FOLLOWERS_S = 5.0
"""Between two reads of the registered followers: one that is new waits for it."""
RETRY_S = 1.0
"""Between two attempts to read them."""
FAILING_S = 30.0
"""After which another follower is used in place of one that cannot be connected to."""
MARK_DELAY_S = 0.01
"""Between a commit and the mark about it, if consumers may read at followers: so long they may get
it later than at the leader, and so many marks a second are spared."""
REFUSE_AFTER_S = 10.0
"""For so long producers wait for followers, then they are refused: their requests would time out
after 30 s without an answer."""
MAX_WAIT_S = 5.0
"""Between two attempts to store a set."""


@dataclass(frozen=True, slots=True)
class ReplicatingProcess:
    """The process whose log is replicated. `replica_id`: of the follower on its machine, empty:
    none; `stored`: the set of a process before, None: there is none; `leads`: it leads partitions
    with durability=replicated, or is to get some; `leads_local`: it leads partitions with
    durability=local, too, whose records no follower is sure to have."""

    cluster_id: str
    node_id: int
    broker_epoch: int
    replica_id: str
    stored: ReplicaSet | None
    leads: bool = False
    leads_local: bool = False


class Replication:
    """The followers of one broker. `links` by replica id; `in_sync`: None before it has begun."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        metadata: Transactions,
        network: Network,
        writer: ReplicatingProcess,
        waits: bool,
        complete: bool = True,
    ) -> None:
        """`waits`: whether it continues a log of which followers have copies; `complete`: whether
        the data folder is complete, or `note_complete_folder` is called when it is."""
        self._env = env
        self._config = config
        self._metadata = metadata
        self._network = network
        self.writer = writer
        self._waits = waits
        self._complete = complete
        self._log: CommitLog | None = None
        self._when_superseded: list[Callable[[str], None]] = []
        self._followers: list[FollowerRow] = []
        self._unread = "the registered followers have not been read yet"
        self._established = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._storing = False
        self._marked = 0
        self._marking = False
        self._cut_off_s: float | None = None
        self.in_sync: InSyncSet | None = None
        self.links: dict[str, FollowerLink] = {}

    def when_superseded(self, fn: Callable[[str], None]) -> None:
        """Call `fn` with the reason when another process was started as this broker."""
        self._when_superseded.append(fn)

    async def check(self, found: Recovered) -> None:
        """Compare the journals that recovery has found with the copies of followers. Raises
        LogBehindCopies if a start with one of these loses less."""
        stored, writer = self.writer.stored, self.writer
        if stored is None or not self._complete:  # a folder that is not complete has such a copy
            return
        rows = await self._metadata.transact(replica_sets.load_followers)
        others = stored.in_sync - {writer.replica_id}
        members = [each for each in rows if each.replica_id in others]
        # Damage inside of journals: records of partitions with durability=local may be here alone,
        # so the folder is kept.
        inside = not any(gap.missing or gap.cut_short or gap.open for gap in found.damage)
        if found.damage and members and not (inside and writer.leads_local):
            raise damaged_folder_error(writer.node_id)
        reader = CopyReader(writer.cluster_id, writer.node_id, writer.broker_epoch)
        await check_end_with_copies(
            self._network, reader, stored.broker_epoch, members, found.written
        )

    async def recover(self, log: CommitLog) -> None:
        """Replicate the log that recovery found. Return when this process may acknowledge and serve
        what is in it. Waits for followers as long as it takes. Raises Superseded."""
        self._log = log
        if self._waits:
            # Followers have copies: their set must be of this process before anything is served.
            self._begin()
            reported = False
            while not self._established.is_set():
                try:
                    async with asyncio.timeout(self._config.replica_lag_time_max_ms / 1000 + 2):
                        await self._established.wait()
                except TimeoutError:
                    # Once: it may take as long as the followers need.
                    if not reported:
                        logger.warning("the start waits for followers: %s", self._unready())
                    reported = True
            if log.follower_sink.failed is not None:
                raise Superseded(log.follower_sink.failed.message)
        else:
            # No follower has anything: replication begins with the first partition that needs it.
            log.follower_sink.when_needed(self._begin)
            if self.writer.leads:
                log.follower_sink.need()

    def note_complete_folder(self) -> None:
        self._complete = True
        if self.in_sync is not None:
            self.in_sync.limits = self._limits()

    async def close(self) -> None:
        """Acknowledge nothing any more, and close the connections."""
        if self._log is not None:
            self._log.follower_sink.fail_waiting(
                KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is shutting down")
            )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self.links.values()):
            await link.close()
        self.links.clear()

    def note_connected(self, replica_id: str, end: int) -> None:
        """Note that a follower receives the log; it may enter the set."""
        _, in_sync = self._running()
        in_sync.note_connected(replica_id, end, self._now())
        self._progress()

    def note_disconnected(self, replica_id: str) -> None:
        """Note that a follower receives nothing; it leaves the set if that lasts."""
        self._running()[1].note_disconnected(replica_id, self._now())

    def note_refused(self, replica_id: str) -> None:
        """Note that a follower does not run; it leaves the set now."""
        self._running()[1].note_refused(replica_id)
        self._progress()

    def note_acknowledged(self, replica_id: str, end: int) -> None:
        """Note what a follower has on disk, and complete what is committed with it."""
        _, in_sync = self._running()
        in_sync.note_acknowledged(replica_id, end, self._now())
        self._progress()

    def note_fenced(self, replica_id: str, epoch: int) -> None:
        """End this process: another one of the broker has begun."""
        self._end_process(
            f"broker {self.writer.node_id} was started elsewhere, in epoch {epoch}: "
            f"{self._name(replica_id)} refuses the log of this process, of epoch "
            f"{self.writer.broker_epoch}"
        )

    def lags(self) -> dict[int, float]:
        """Return for how many seconds each follower has not had everything, by the node id of the
        broker whose machine it is on."""
        if self.in_sync is None:
            return {}
        now_s, in_sync = self._now(), self.in_sync
        return {
            link.follower.node_id: in_sync.lag_s(replica, now_s)
            for replica, link in self.links.items()
        }

    def live(self) -> frozenset[str] | None:
        """Return the in-sync followers that are there; None before the set of this process is
        stored."""
        in_sync = self.in_sync
        established = in_sync is not None and in_sync.established
        return in_sync.live(self._now()) if in_sync is not None and established else None

    def in_sync_nodes(self) -> Collection[int]:
        """Return the brokers on whose machines the followers of `live` are."""
        live = self.live() or ()
        return {each.follower.node_id for replica, each in self.links.items() if replica in live}

    def cut_off_s(self) -> float:
        """Return for how many seconds no machine has answered at the address of any follower, while
        too few are in sync or records wait for too long; else 0."""
        if self._cut_off_s is None:
            return 0.0
        log, in_sync = self._running()
        now_s = self._now()
        waits = log.follower_sink.waiting_s() >= REFUSE_AFTER_S
        refused = waits or len(in_sync.live(now_s)) < in_sync.limits.needed
        return now_s - self._cut_off_s if refused else 0.0

    def _begin(self) -> None:
        """Start to connect to followers."""
        assert self._log is not None, "recovered before"
        if self.in_sync is not None:
            return
        log, stored = self._log, self.writer.stored
        earlier = frozenset() if stored is None else stored.in_sync - {self.writer.replica_id}
        version = 0 if stored is None else stored.version
        journals = log.journals
        # The end of the log, which may be that of the journal before an unused one.
        start = journals.active.end_log_position if journals.active.end else journals.previous_end
        self.in_sync = InSyncSet(self._limits(), start, self._now(), version, earlier)
        log.follower_sink.when_written(self._note_written)
        self._tasks.append(self._env.spawn(self._run(), "replication"))
        self._tasks.append(self._env.spawn(self._read_followers(), "read the followers"))

    def _limits(self) -> Limits:
        config = self._config
        return Limits(
            wanted=config.replica_group_size - 1,
            needed=self._count_needed(),
            lag_s=config.replica_lag_time_max_ms / 1000,
        )

    def _count_needed(self) -> int:
        """Return how many followers must be in sync."""
        needed = self._config.min_insync_replicas - 1
        # A folder that is not complete is emptied by the next start, which needs a follower.
        return needed if self._complete else max(needed, 1)

    def _origin(self) -> ReplicatedLog:
        _, in_sync = self._running()
        stored = self.writer.stored
        return ReplicatedLog(
            self.writer.cluster_id, self.writer.node_id, self.writer.broker_epoch,
            CONTINUES_NONE if stored is None else stored.broker_epoch, in_sync.start,
        )  # fmt: skip

    def _note_written(self) -> None:
        """Note that a write batch was written, or is durable here."""
        log, in_sync = self._running()
        in_sync.note_write(log.written, self._now())
        for link in self.links.values():
            # Before the own fsync ends: followers write meanwhile.
            link.pump()
        self._progress()

    def _progress(self) -> None:
        """Complete what is committed, and store another set if one is due."""
        log, in_sync = self._running()
        if log.follower_sink.failed is not None:  # nothing is committed or stored any more
            return
        own = log.disk_sink.committed
        committed = in_sync.committed_position(own)
        if committed > 0:
            log.follower_sink.commit(committed)
        if committed > self._marked and self._config.replica_selector_class and not self._marking:
            self._marking = True
            self._env.call_later(MARK_DELAY_S, self._mark)
        due = None if self._storing else in_sync.due(own, self._now())
        if due is not None:
            self._storing = True
            # It counts from now on, before SQL has it.
            in_sync.start_update(due)
            self._tasks.append(self._env.spawn(self._store(due), "store the replica set"))

    async def _run(self) -> None:
        # Nothing but the time is awaited: a database that does not answer must not stop the marks,
        # without which followers disconnect, or the refusals.
        while True:
            self._connect()
            log, in_sync = self._running()
            in_sync.limits = self._limits()  # the settings may have been changed
            self._mark()
            self._note_cut_off()
            self._progress()
            log.follower_sink.update(self._unready())
            # Tasks that are done would be kept forever.
            self._tasks = [each for each in self._tasks if not each.done()]
            await self._env.sleep(TICK_S)

    def _mark(self) -> None:
        """Send followers what is committed."""
        log, in_sync = self._running()
        self._marking = False
        self._marked = in_sync.committed_position(log.disk_sink.committed)
        for link in self.links.values():
            link.mark(self._marked)

    def _note_cut_off(self) -> None:
        """Note since when no machine has answered, whichever followers were used since then."""
        since = [link.unreachable_s for link in self.links.values()]
        known = [each for each in since if each is not None]
        # One that answers shows that this machine is not cut off.
        if not known or len(known) < len(since):
            self._cut_off_s = None
        elif self._cut_off_s is None:
            # Since the last of them has answered.
            self._cut_off_s = max(known)

    async def _read_followers(self) -> None:
        while True:
            try:
                self._followers = await self._metadata.transact(replica_sets.load_followers)
            except OSError as failure:
                unread = f"the registered followers cannot be read from SQL ({reason_of(failure)})"
                if unread != self._unread:
                    logger.warning("%s: no new one is used until they can; retrying", unread)
                self._unread = unread
                await self._env.sleep(RETRY_S)
                continue
            self._unread = ""
            self._connect()
            await self._env.sleep(FOLLOWERS_S)

    def _connect(self) -> None:
        """Open links to the followers that are chosen, and close all others."""
        log, in_sync = self._running()
        now_s = self._now()
        failing = {
            replica
            for replica, link in self.links.items()
            if link.failing_s is not None and now_s - link.failing_s >= FAILING_S
        }
        writer, wanted = self.writer, in_sync.limits.wanted
        rows = choose_followers(
            self._followers, writer.node_id, writer.replica_id, failing, wanted, self.links
        )
        chosen = {each.replica_id: each for each in rows}
        for replica, link in list(self.links.items()):
            # Also if its address or certificate has changed.
            if chosen.get(replica) != link.follower:
                del self.links[replica]
                self._tasks.append(self._env.spawn(link.close(), "close the link to a follower"))
        for replica, row in chosen.items():
            if replica not in self.links:
                self.links[replica] = link = FollowerLink(
                    self._env, self._network, log.journals, row, self._origin(), self
                )
                if in_sync.established:
                    link.delete_earlier_copies()

    async def _store(self, members: frozenset[str]) -> None:
        log, in_sync = self._running()
        writer, before = self.writer, in_sync.members if in_sync.established else None
        version, failures, reported = in_sync.version, 0, ""

        def store(session: Session) -> bool:
            now_ms = self._env.clock.now_ms()
            return replica_sets.store(
                session, writer.node_id, writer.broker_epoch, members, version, now_ms
            )

        # Until it is known: a set of which the answer was lost may be in SQL.
        while True:
            try:
                stored = await self._metadata.transact(store)
                break
            except OSError as failure:
                failures += 1
                if str(failure) != reported:
                    reported = str(failure)
                    logger.warning(
                        "the in-sync followers of broker %d cannot be stored in SQL: %s. None "
                        "leaves or enters until they can; retrying",
                        writer.node_id, reported,
                    )  # fmt: skip
            await self._env.sleep(wait_s(failures, MAX_WAIT_S, self._env.random.random()))
        self._storing = False
        # SQL has another version: another process of this broker has begun.
        if not stored:
            self._end_process(
                f"broker {writer.node_id} was started elsewhere: this process is superseded"
            )
            return
        if failures:
            logger.info("the in-sync followers of broker %d can be stored again", writer.node_id)
        # Only now those that left do not count any more.
        in_sync.note_stored()
        log.follower_sink.in_sync = 1 + len(in_sync.members)
        self._report(before, in_sync.members)
        # The first set of this process: copies of earlier ones are not needed any more.
        if before is None:
            for link in self.links.values():
                link.delete_earlier_copies()
            self._tasks.append(self._env.spawn(self._forget_others(), "forget copies"))
            self._established.set()
        self._progress()
        log.follower_sink.update(self._unready())

    async def _forget_others(self) -> None:
        """Request the deletion of copies of earlier processes from followers without a link, such
        as that of this machine. One that cannot be reached keeps them until a later process of this
        broker."""
        writer = self.writer
        process = CopyReader(writer.cluster_id, writer.node_id, writer.broker_epoch)
        for each in self._followers:
            if each.replica_id not in self.links:
                with contextlib.suppress(*FAILURES):
                    async with reading(self._network, process, each) as source:
                        await source.delete_earlier_copies()

    def _report(self, before: frozenset[str] | None, members: frozenset[str]) -> None:
        text = self._names(members) or "none"
        level = logging.INFO if before is None or members > before else logging.WARNING
        logger.log(level, "in-sync followers of broker %d: %s", self.writer.node_id, text)

    def _name(self, replica_id: str) -> str:
        rows = (each.name for each in self._followers if each.replica_id == replica_id)
        return next(rows, f"a follower that is not registered ({replica_id})")

    def _names(self, replicas: Collection[str]) -> str:
        return ", ".join(sorted(map(self._name, replicas)))

    def _unready(self) -> str:
        """Return why nothing can be committed now; an empty string if it can."""
        log, in_sync = self._running()
        needed, now_s = in_sync.limits.needed, self._now()
        if not in_sync.established:
            ready = sum(each.gone_s is None for each in in_sync.followers.values())
            why = self._unread or f"{len(self._followers)} are registered"
            return (
                f"min.insync.replicas={needed + 1} needs {needed} followers that have the log, "
                f"{ready} are connected, and {why}"
            )
        live = len(in_sync.live(now_s))
        if live < needed:
            return f"{live + 1} replicas are in sync, min.insync.replicas={needed + 1}"
        held = log.journals.size_bytes()
        if held >= self._config.log_unreleased_max_bytes + log.config.journal_bytes:
            return (
                f"{held} bytes of journals wait until their records are uploaded in segments "
                "(log.unreleased.max.bytes)"
            )
        if log.follower_sink.waiting_s() >= REFUSE_AFTER_S:
            late = [each for each in in_sync.counted if in_sync.lag_s(each, now_s) > REFUSE_AFTER_S]
            what = self._names(late) or "the disk of this broker"
            return f"records have waited for more than {REFUSE_AFTER_S:g} s for {what}"
        return ""

    def _end_process(self, why: str) -> None:
        log, _ = self._running()
        if log.follower_sink.failed is None:
            logger.critical("%s. This process stops", why)
            log.stop_writing(why)
        log.follower_sink.fail_waiting(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, why))
        self._established.set()  # a start that waits for it ends
        for fn in self._when_superseded:
            fn(why)

    def _running(self) -> tuple[CommitLog, InSyncSet]:
        assert self._log is not None, "recovered before"
        assert self.in_sync is not None, "begun before"
        return self._log, self.in_sync

    def _now(self) -> float:
        return self._env.clock.monotonic()
