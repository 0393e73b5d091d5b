"""Log: the commit log with its partitions, from start to end, as the broker uses it.

Opens the folder (lock, run file, recovery), assembles the parts, and ends them in order.
kafkawire.log.scheduler runs the periodic work. Created only by `Log.open`.

    <folder>/lock                     held while a process runs
    <folder>/run                      kafkawire.log.journal.run_file
    <folder>/identity                 kafkawire.log.recovery.identity
    <folder>/given-up                 kafkawire.log.recovery.given_up
    <folder>/left                     kafkawire.log.recovery.earlier_terms
    <folder>/quarantine/              kafkawire.log.recovery.quarantine
    <folder>/ledger.0, ledger.1       kafkawire.log.journal.ledger
    <folder>/journals/N.journal       kafkawire.log.journal.format
    <folder>/journals/N.index         kafkawire.log.journal.index_file
    <folder>/journals/spare-N         to be written over
    <folder>/segments/UUID.segment    kafkawire.codec.segment.format
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NoReturn

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.append.catalog_frames import CatalogFrames
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.followers.service import Replication
from kafkawire.log.handover import PATIENCE_S, HandedOver, HandOver
from kafkawire.log.io.ports import Env, Lock, LogError
from kafkawire.log.journal.directory import Journals
from kafkawire.log.journal.file import Journal
from kafkawire.log.journal.index_file import Extent
from kafkawire.log.journal.ledger import bounds_of, expected_ledger
from kafkawire.log.journal.losses import Loss
from kafkawire.log.journal.run_file import RunState, read_run, write_run
from kafkawire.log.leadership import Leadership
from kafkawire.log.maintenance.checkpoints import Checkpoints
from kafkawire.log.maintenance.indexer import Indexer, write
from kafkawire.log.maintenance.journal_end import end_journal
from kafkawire.log.maintenance.retention import Retention
from kafkawire.log.maintenance.unloader import Unloader
from kafkawire.log.maintenance.upload_check import UploadCheck
from kafkawire.log.object_logs import ObjectLogs
from kafkawire.log.partition.hooks import Hooks
from kafkawire.log.partition.index_eviction import rows_in, transactions_in
from kafkawire.log.partition.loader import Loader, report_absent
from kafkawire.log.partition.stored_rows import RowVersion, has_all_rows, wrong_mappings
from kafkawire.log.recovery.earlier_terms import EarlierTerms, earlier_terms
from kafkawire.log.recovery.given_up import read_given_up
from kafkawire.log.recovery.identity import IdentityError, rebuild_command
from kafkawire.log.recovery.quarantine import Quarantine
from kafkawire.log.recovery.recover import recover
from kafkawire.log.recovery.restore import load_partitions
from kafkawire.log.recovery.result import Recovered, RecoveredJournal, report
from kafkawire.log.recovery.unknown_topics import check_known
from kafkawire.log.scheduler import Upkeep
from kafkawire.log.segments.manager import Segments
from kafkawire.log.segments.store.remote_tier import RemoteTier
from kafkawire.log.segments.store.segment_store import SegmentStore
from kafkawire.log.segments.store.warm_reader import WarmReader
from kafkawire.metadata.catalog import Catalog, TopicInfo
from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.metadata.store import Metadata
from kafkawire.offsets.catalog.port import PartitionRow, SegmentCatalog
from kafkawire.plural import count

logger = logging.getLogger(__name__)

RUN_SHIFT = 32
"""A run number is (number of the start << 32) | (failed writes since then)."""
MAX_LAST_CHECKPOINTS = 10
"""A request that came before the end may still append the catalog frame of a new topic while the
last checkpoint is stored, which then is not the last. After so many the end is unclean, which costs
the next start a scan of the journal."""
LOST_STARTS = 1000
"""Added to the number of the start when the run file is lost: more starts than can have ended
without a frame."""


def lock_folder(env: Env, folder: str) -> Lock:
    """Create the folder and lock it for this process; LogError if another process has it."""
    env.fs.makedirs(os.path.join(folder, "journals"))
    try:
        return env.fs.lock(os.path.join(folder, "lock"))
    except BlockingIOError as failure:
        raise LogError(f"another kafkawire process uses {folder}: stop it first") from failure


def leave_folder(env: Env, folder: str, lock: Lock) -> None:
    """Release the lock of a folder whose broker does not start."""
    journals, file = os.path.join(folder, "journals"), os.path.join(folder, "lock")
    try:
        # Nothing but what lock_folder creates.
        names = set(env.fs.listdir(folder)) - {"journals", "lock"}
        if not names and not env.fs.listdir(journals):
            env.fs.remove(file)  # while it is locked: who takes it from now on makes a new one
            for each in (journals, folder, os.path.dirname(folder)):
                env.fs.remove_folder(each)
    except OSError as failure:
        logger.debug("folder %s is not removed: %s", folder, failure)
    finally:
        lock.release()


class Log:
    """The log of one broker. `partitions` by number: those this broker leads and has in memory;
    `loader` loads others. `start` counts the starts; `after_clean_end`: the one before ended
    cleanly, and SQL has not changed since."""

    def __init__(
        self,
        env: Env,
        folder: str,
        config: BrokerConfig,
        catalog: Catalog,
        storage: SegmentCatalog,
        metadata: Metadata,
        node_id: int,
        lock: Lock,
        pinned_topics: Container[str] = (),
        object_logs: ObjectLogs | None = None,
        replication: Replication | None = None,
    ) -> None:
        self.env = env
        self.folder = folder
        self.config = config
        self.node_id = node_id
        self._lock = lock
        self.start = 0
        self.after_clean_end = False
        self._closed = False
        self.journals = Journals(
            env,
            os.path.join(folder, "journals"),
            config.journal_bytes,
            config.hot_bytes,
            config.recycle_bytes,
        )
        self.hooks = Hooks(self._on_rolled)
        remote = RemoteTier()
        store = SegmentStore(env, storage, os.path.join(folder, "segments"), node_id)
        warm = WarmReader(env, store, remote)
        self.commit_log = CommitLog(
            env, config, self.journals, warm, self.hooks, self._move_log_starts
        )
        self._given_up = read_given_up(env.fs, folder)
        self.row_version = RowVersion()
        self.loader = Loader(
            self.commit_log, catalog, storage, node_id, config, self.row_version, store.learn,
            self._store_states,
        )  # fmt: skip
        self.partitions = self.loader.partitions
        self.checkpoints = Checkpoints(
            storage, node_id, self.commit_log, self.partitions, self._note_released
        )
        self.segments = Segments(
            self.commit_log, storage, catalog, self.loader, warm, store, remote, self.row_version,
            folder, node_id, self._note_released, metadata.known_partitions, self._given_up,
        )  # fmt: skip
        self._pinned_topics = pinned_topics
        self.object_logs = object_logs
        self.replication = replication
        self._storage = storage
        self._catalog = catalog
        self._metadata = metadata
        self.catalog_frames: CatalogFrames
        self.retention: Retention
        self.indexer: Indexer
        self.unloader: Unloader
        self.leadership: Leadership
        self.handover: HandOver
        self.upkeep: Upkeep

    @classmethod
    async def open(
        cls,
        env: Env,
        folder: str,
        config: BrokerConfig,
        catalog: Catalog,
        storage: SegmentCatalog,
        metadata: Metadata,
        node_id: int,
        lock: Lock | None = None,
        verify: bool = False,
        pinned_topics: Container[str] = (),
        object_logs: ObjectLogs | None = None,
        replication: Replication | None = None,
        fresh: bool = False,
    ) -> Log:
        """Recover and get ready to serve. `lock` is that of `lock_folder`, if it is already held;
        `verify`: compare every journal with the catalog, since the folder has no identity;
        `pinned_topics`: names of topics whose partitions stay in memory once they are loaded;
        `object_logs`: those of this broker, if it has a remote tier; `replication`: to followers;
        `fresh`: the folder replaces one that was lost (kafkawire.log.fresh_folder).

        Raises LogError (a sentence for the operator) if another process uses the folder or a
        newer program wrote it, OSError from the disk, and what `storage` and `metadata` raise.
        """
        if lock is None:
            lock = lock_folder(env, folder)
        try:
            log = cls(
                env, folder, config, catalog, storage, metadata, node_id, lock, pinned_topics,
                object_logs, replication,
            )  # fmt: skip
            await log._recover(verify, fresh)
        except BaseException:
            for each in (replication, object_logs):
                if each is not None:
                    await each.close()
            lock.release()
            raise
        return log

    async def _recover(self, verify: bool, fresh: bool) -> None:
        fs = self.env.fs
        # 1. What SQL, the run file and the ledger say.
        log_position = await self._storage.load_log_position(self.node_id)
        last = read_run(fs, self.folder)
        clean_end = last.end if last is not None else -1
        ledger, wrong = expected_ledger(fs, self.folder, last)
        if wrong:
            logger.warning(
                "the ledger in %s %s: writing it again. This start cannot detect missing journals.",
                self.folder, wrong,
            )  # fmt: skip
        # 2. What the journals have.
        recovered = recover(self.env, self.journals.folder, log_position, clean_end, ledger)
        if self.replication is not None:
            # Followers may have more than this folder.
            await self.replication.check(recovered)
        clean = clean_end >= 0 and clean_end == recovered.written
        # The run file is lost: above every start that has left a frame.
        if last is None:
            self.start = recovered.run >> RUN_SHIFT
            self.start += LOST_STARTS if recovered.found else 0
        else:
            self.start = max(last.start, recovered.run >> RUN_SHIFT)
        self.start += 1
        numbers = recovered.numbers()
        # 3. Partitions with records in the journals.
        unknown = {number for number in numbers if self.loader.make(number) is None}
        # Before the run file is written: a refused start does not count.
        await check_known(
            self.env, self.folder, recovered, unknown, self.partitions, self._metadata, verify
        )
        kept = last is None or last.ledger
        # The new number is durable before the first frame: no two starts share one.
        write_run(fs, self.folder, RunState(self.start, -1, self.config.flush, kept))
        bounds = bounds_of(ledger)
        # Also those that damage may have affected, which no journal names.
        for number in (
            recovered.ends.find_affected_partitions(bounds) | self._given_up.ranges.keys()
        ):
            self.loader.make(number)
        # 4. Segments, then rows: a mapping names segments that must be known.
        await self.segments.open()
        rows = await self._storage.load_partitions(sorted(self.partitions))
        await self.segments.store.learn(mapping for row in rows for mapping in row.mappings)
        terms = await earlier_terms(fs, self._catalog, self._storage, recovered, rows)
        written, losses = self._fill(recovered, log_position, rows, bounds, terms)
        await self.segments.refuse_lost_rows()
        await report(recovered, losses, self._catalog, self.partitions, self._storage, self.node_id)
        # 5. The commit log can append from here on.
        self._resume(recovered)
        self.leadership.keep_again({} if terms is None else terms.left)
        began = terms is not None and self._begin_terms(damaged=bool(recovered.damage))
        # After an unclean end the next checkpoint is saved even if nothing changes.
        self.checkpoints.start(log_position, due=not clean)
        raised = bool(losses or fresh or (not clean and recovered.found))
        if raised:
            # With flush=os readers may have seen a tail of which nothing is left.
            lost = fresh or last is None or last.flush == "os"
            await self._raise_epochs(None if lost else written)
        # Before a checkpoint covers what only the journals have.
        await self._secure_journals()
        if losses or began or not clean:
            await self.checkpoints.save()
        # 6. The ledger of this start, and only then the journals that it does not name become
        # spares: after a crash in between they would count as lost.
        committed = self.commit_log.disk_sink.committed
        self.commit_log.ledger.start(self.journals, committed, self.start, ledger)
        if not kept:  # only now: what an older version left of a ledger does not count
            write_run(fs, self.folder, RunState(self.start, -1, self.config.flush))
        self.journals.make_spares(recovered.discarded)
        await self._adopt(written if raised else set())
        self.after_clean_end = clean and log_position == clean_end
        self._begin(recovered.found)
        if terms is not None and terms.left_in(self.journals.active.number):
            # Its records may have the offsets of new ones, which a cut must not confuse.
            await end_journal(self.commit_log, self.indexer, self.journals.active)
        if self.object_logs is not None:
            await self.object_logs.start_storing(self.commit_log)

    def _fill(
        self,
        recovered: Recovered,
        log_position: int,
        rows: Sequence[PartitionRow],
        bounds: Mapping[int, int] | None,
        terms: EarlierTerms | None,
    ) -> tuple[set[int], list[Loss]]:
        """Fill the partitions; see `load_partitions`. Raises IdentityError for rows that are not
        what was stored."""
        self._check_rows(rows, recovered)
        written, losses, older = load_partitions(
            self.env.fs, self.partitions, recovered, log_position, rows, bounds, terms
        )
        if older and terms is None:  # with several brokers, others have stored rows
            text = "table partition_offset_checkpoints lacks offsets before the checkpoint"
            self._refuse(text, older[0])
        return written, losses

    def _check_rows(self, rows: Iterable[PartitionRow], recovered: Recovered) -> None:
        """Raise IdentityError for rows that contradict one another or the journals: rows were
        lost, or are older ones."""
        for row in rows:
            text, naming = wrong_mappings(row), recovered.namings.get(row.number)
            start = row.checkpoint.log_start if row.checkpoint is not None else 0
            # A log start is stored before a journal names the partition with it.
            if naming is not None and naming.log_start > start:
                text = text or (
                    f"table partition_offset_checkpoints has log start {start}, and a journal log "
                    f"start {naming.log_start}"
                )
            if text and has_all_rows(self._catalog, row.number):
                self._refuse(text, row.number)

    def _refuse(self, text: str, number: int) -> NoReturn:
        data = os.path.dirname(os.path.dirname(self.folder))
        raise IdentityError(
            f"{text} of {self._catalog.name_of(number)}: put the newest copy of the metadata back, "
            f"or rebuild it with {rebuild_command(data)}"
        )

    async def _secure_journals(self) -> None:
        """End the logs of objects of earlier lives, and store what only the journals have, there
        and at followers: a checkpoint may cover it then."""
        if self.replication is not None:
            await self.replication.recover(self.commit_log)
        if self.object_logs is not None:
            await self.object_logs.recover(self.commit_log, self.loader, self.checkpoints)

    async def _adopt(self, raised: set[int]) -> None:
        """Append what log objects of earlier lives have and the journals do not. `raised`: the
        partitions whose leader epochs this start has raised."""
        if self.object_logs is None:
            return
        adopted = await self.object_logs.adopt(self.commit_log, self.loader)
        if adopted:
            await self._raise_epochs(adopted - raised)
            await self.checkpoints.save()

    def _resume(self, recovered: Recovered) -> None:
        """Let the commit log continue after what recovery found."""
        journals = [found.journal for found in recovered.found]
        self.journals.start(journals, recovered.spares, recovered.next_number)
        active = self.journals.active
        losses = [loss for damage in recovered.examined for loss in damage.losses]
        self.commit_log.start(self.start << RUN_SHIFT, active.end_log_position, losses)
        for number in active.numbers:
            if number in self.partitions:
                self.partitions[number].named_in = active.number
        self.catalog_frames = CatalogFrames(self.commit_log, self._catalog, active.number)
        self.retention = Retention(
            self.commit_log,
            self.partitions,
            self.checkpoints,
            self.catalog_frames,
            Quarantine(self.env.fs, self.folder),
            self._given_up.journals(),
            UploadCheck(self.loader, self._storage, self.env.slices),
        )
        self.indexer = Indexer(self.commit_log, self.partitions, self.checkpoints)
        self.unloader = Unloader(self.env, self.loader, self.checkpoints, self._pinned_topics)
        self.leadership = Leadership(
            self.commit_log, self._catalog, self.loader, self.checkpoints, self.segments,
            self.indexer, self._note_released, self.folder,
        )  # fmt: skip
        self.handover = HandOver(
            self.commit_log, self._catalog, self.loader, self.checkpoints, self.segments,
            self.indexer, self.node_id,
        )  # fmt: skip
        self.upkeep = Upkeep(
            self.commit_log, self.indexer, self.retention, self.segments, self.unloader
        )

    def _begin_terms(self, *, damaged: bool) -> bool:
        """Begin the terms of partitions whose leader changed while the broker was down; return
        whether there are any."""
        began = False
        for partition in self.partitions.values():
            if not damaged:
                report_absent(partition)
            # Stored before the first append: a checkpoint follows.
            if partition.epochs[-1][0] < partition.leader_epoch:
                partition.start_epoch(partition.leader_epoch)
                began = True
        return began

    async def _raise_epochs(self, numbers: set[int] | None) -> None:
        """Raise leader epochs, so that readers of a tail that may be lost notice (KIP-320,
        OffsetForLeaderEpoch). None: of all partitions led here."""
        if numbers is None:
            logger.warning("unclean shutdown: raising the leader epoch of every partition")
            await self._metadata.raise_leader_epochs()
            numbers = set(self.partitions)
        elif numbers:
            logger.warning(
                "unclean shutdown: raising the leader epoch of %s", count(len(numbers), "partition")
            )
            await self._metadata.bump_leader_epochs(sorted(numbers))
        # Those loaded later get it from the catalog.
        for number in numbers:
            location = self._catalog.locate(number)
            if location is not None:
                self.partitions[number].start_epoch(location.leader_epoch)

    def _begin(self, found: list[RecoveredJournal]) -> None:
        for item in (each for each in found if each.journal.rolled and not each.journal.indexed):
            self.indexer.owe(item.journal, item.extent())
        self.upkeep.start(self.checkpoints)
        if not found and self._catalog.by_id:
            self.env.spawn(self.catalog_frames.describe_all(), "write topics to the journals")

    def add_topics(self, infos: Sequence[TopicInfo]) -> None:
        """Write topics to the journals that are new or have new partitions: call
        CommitLog.wait_until_committed before responding. Their partitions are created at their
        first use."""
        self.catalog_frames.write_topics(infos)
        self.commit_log.follower_sink.topics_added(infos, self.node_id)
        self.hooks.topics(infos)
        self._lags_changed(self.loader.configs.note_lags(infos))

    def alter_topic(self, info: TopicInfo) -> None:
        """Apply a topic's changed settings, and write them to the journals."""
        loaded = [p for row in info.partitions if (p := self.partitions.get(row.number))]
        self.loader.configs.topic_changed(info, loaded)
        self.retention.touched.update(partition.number for partition in loaded)
        self.segments.settings_changed(row.number for row in info.partitions)
        self.catalog_frames.write_configs(info)
        self.hooks.topic_altered(info)
        self._lags_changed(self.loader.configs.note_lags([info]))

    async def alter_defaults(self) -> None:
        """Apply the broker's changed defaults for topics."""
        for _ in self.loader.configs.broker_changed():
            await self.env.slices.pause()
        self.retention.touched.update(self.partitions)
        self.segments.settings_changed(None)
        self.hooks.defaults()

    def remove_topic(self, info: TopicInfo) -> None:
        """Release a topic's partitions; parked readers are woken, its journals may be recycled."""
        for row in info.partitions:
            partition = self.partitions.pop(row.number, None)
            if partition is not None:
                # What is queued for it is still written; no more can be appended.
                partition.remove()
                self._note_released(list(partition.journal_extents.journal))
                partition.notify_watchers()
            self.leadership.release_deleted(row.number)
        delay_ms = int(info.configs.get("file.delete.delay.ms", -1))
        self.segments.deletion.delete_partitions((row.number for row in info.partitions), delay_ms)
        lags = self.loader.configs.remove_topic(info.id)
        self.loader.traffic.remove_topic(info.name)
        self.catalog_frames.write_deletion(info.id, info.name)
        self.hooks.topic_removed(info)
        self._lags_changed(lags)

    async def hand_over(self, numbers: Iterable[int], patience_s: float = PATIENCE_S) -> HandedOver:
        """Prepare partitions for another leader; see kafkawire.log.handover. `patience_s`: how long
        open transactions may take to end."""
        return await self.handover.run(numbers, patience_s)

    def resume(self, numbers: Iterable[int]) -> None:
        """Have partitions that were handed over take appends again, since their leader has not
        changed; see HandOver.resume."""
        self.handover.resume(numbers)

    async def resign(self, numbers: Iterable[int]) -> None:
        """Release partitions that another broker leads now; see Leadership.resign."""
        await self.leadership.resign(numbers)

    async def lead(self, numbers: Iterable[int]) -> None:
        """Note partitions that this broker leads from now on; see Leadership.lead."""
        await self.leadership.lead(numbers)

    def _lags_changed(self, infos: Sequence[TopicInfo]) -> None:
        """Notify the parts that the upload lag of internal topics has changed."""
        for info in infos:
            self.segments.settings_changed(row.number for row in info.partitions)
            self.hooks.topic_altered(info)

    def _note_released(self, numbers: list[int]) -> None:
        """Note that a partition has no batches in these rolled journals any more."""
        for number in numbers:
            journal = self.journals.by_number.get(number)
            if journal is not None:
                journal.live -= 1

    async def _store_states(self, states: list[PartitionCheckpoint]) -> None:
        await self.checkpoints.store_states(states)

    async def _move_log_starts(self, starts: dict[int, int]) -> None:
        await self.checkpoints.move_log_starts(starts)

    def _on_rolled(self, journals: list[Journal]) -> None:
        """Write the index files of full journals, then a checkpoint."""
        for journal in journals:
            self.indexer.add_journal(journal)
        self.upkeep.start_indexing()

    async def checkpoint(self) -> None:
        """Store the state of all partitions in SQL."""
        await self.checkpoints.save()

    async def close(self) -> None:
        """Commit, checkpoint, mark the end as clean, close. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        # Connections are still open. What their producers appended after the checkpoint would make
        # the end unclean.
        self.commit_log.disk_sink.refuse_batches()
        await self.upkeep.stop()
        # A check that ends with the worker is no failure.
        self.commit_log.reader.verifier.close()
        try:
            # 1. No more jobs.
            await self.env.worker.close()
            # 2. What was written must be in objects and at followers for a clean end.
            stored = await self.commit_log.object_sink.close()
            stored = await self.commit_log.follower_sink.close() and stored
            if self.object_logs is not None:
                await self.object_logs.close()
            if self.commit_log.failed is None and stored:
                # 3. The last checkpoint, until nothing is appended while it is stored.
                for _ in range(MAX_LAST_CHECKPOINTS):
                    await self.commit_log.wait_until_durable()
                    await self.checkpoints.save()
                    if self.commit_log.at_rest and self._checkpointed_all():
                        break
                await self.commit_log.close()
                # 4. The mark of a clean end, if SQL knows the end of the log.
                if self._checkpointed_all():
                    self._end_cleanly()
        # An unclean end: the next start recovers.
        except Exception:
            logger.exception("closing the log failed, the next start recovers it")
        finally:
            for each in (self.replication, self.object_logs):
                if each is not None:
                    await each.close()
            await self.commit_log.drain()
            self.commit_log.ledger.close()
            self.segments.close()
            await self.journals.wait_for_files()
            self.journals.close()
            # Last: another process may start then.
            self._lock.release()

    def _checkpointed_all(self) -> bool:
        return self.checkpoints.log_position == self.commit_log.written

    def _end_cleanly(self) -> None:
        active = self.journals.active
        extent = Extent(active.end, self.commit_log.run, active.end_log_position, active.entries)
        # The next start reads it instead of scanning the journal.
        if active.end:
            rows = rows_in(active, self.partitions)
            found = transactions_in(active, self.partitions)
            folder, stored = self.journals.folder, active.stored
            write(self.env.fs, folder, active.number, extent, rows, found, stored)
        self.commit_log.ledger.finish()
        run = RunState(self.start, active.end_log_position, self.config.flush)
        write_run(self.env.fs, self.folder, run)
