"""The remote tier of one broker: starts and stops its components in order.

Created by the broker if `tier.url` is set. The broker's start never fails because of the tier: the
bucket is attached in the background, with retries, and `state` has the progress. After that,
leftovers of a crash are cleaned up, segments are uploaded and unused objects deleted. Cold reads do
not need an attached bucket and work from the start.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env, WorkerError
from kafkawire.log.manager import Log
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.metadata.catalog import Catalog
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import Refused, StoreError
from kafkawire.objectstore.url import parse_tier
from kafkawire.offsets.catalog.port import SegmentCatalog
from kafkawire.tiering.cost.budget import Spending
from kafkawire.tiering.fence import Fence
from kafkawire.tiering.log_listener import TieringLogListener
from kafkawire.tiering.migrate import Mover
from kafkawire.tiering.packs import Packer
from kafkawire.tiering.publishing.lost_objects import ObjectsLost
from kafkawire.tiering.publishing.owner import OwnedByOther, trust_start
from kafkawire.tiering.publishing.publisher import Rounds
from kafkawire.tiering.read.cold_reader import ColdReader, Copy
from kafkawire.tiering.retention.disable_topic import TopicDisabler
from kafkawire.tiering.retention.local_retention import LocalTier
from kafkawire.tiering.retention.object_deletion import Remover
from kafkawire.tiering.scrub.background_repair import Repairer
from kafkawire.tiering.scrub.plan import ScrubProgress, ScrubReport
from kafkawire.tiering.scrub.repair import Site
from kafkawire.tiering.scrub.scrub import Scrub
from kafkawire.tiering.store.metering import Meter
from kafkawire.tiering.store.open import open_store
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.storage_check import check_conditional_put, check_listing
from kafkawire.tiering.store.tiers import Opener, Tiers
from kafkawire.tiering.store.warnings import Warnings
from kafkawire.tiering.upload.candidates import UploadCandidates
from kafkawire.tiering.upload.finisher import Finisher
from kafkawire.tiering.upload.lag_monitor import LagMonitor
from kafkawire.tiering.upload.offsets import UploadProgress
from kafkawire.tiering.upload.other_uploads import OtherUploads
from kafkawire.tiering.upload.recovery import give_up_uploads
from kafkawire.tiering.upload.scheduler import Dispatcher, UploadLimits
from kafkawire.tiering.upload.uploader import Uploader

logger = logging.getLogger(__name__)

SCAN_INTERVAL_S = 1.0
"""Interval of the checks for exceeded lag limits and changed settings."""
REPORT_INTERVAL_S = 0.1
"""Delay between two attempts to publish log starts for DeleteRecords; manifest rounds have their
own pace."""
NO_LIMIT = (1 << 63) - 1


class Tiering:
    """The remote tier of one broker. `state`: "attaching", "attached", "refused" or "owned by
    another"; `error`: the reason if it is not attached. Public components: `store`, `cold`,
    `local`, `rounds`, `dispatcher`, `uploader`, `remover`, `packer`, `upload_lag`; `switch`
    replaces those that belong to one tier."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        log: Log,
        storage: SegmentCatalog,
        catalog: Catalog,
        store: ObjectStore,
        node_id: int,
        cluster_id: str,
        meter: Meter | None = None,
        opener: Opener | None = None,
        check_current: Callable[[], Awaitable[None]] = trust_start,
    ) -> None:
        """`store` is that of `tier.url`; `meter` counts its requests, those of log objects among
        them; `opener` opens the stores of other tiers; `check_current`: see `Owner`."""
        self.env = env
        self.config = config
        self.log = log
        self.storage = storage
        self.catalog = catalog
        self._check_current = check_current
        self.meter = meter or Meter(env.clock.now_ms, env.clock.monotonic)
        self.spending = Spending(
            env, config, storage, self.meter, node_id, log.folder,
            lambda: log.commit_log.object_sink.unreleased_bytes,
        )  # fmt: skip
        opener = opener or (lambda url: open_store(url, config))
        url = parse_tier(config.tier_url).url
        self.tiers = Tiers(env, storage, self.meter, opener, url, store, log.folder, node_id)
        self.store: ObjectStore = self.tiers.store_at(url)
        self.mover = Mover(
            env, config, self.tiers, self.site, self.switch, lambda: bool(self.dispatcher.paused)
        )
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.tier = 0
        self.state = "attaching"
        self.error: Exception | None = None
        self.fence = Fence(log.commit_log, config)
        self.dispatcher = Dispatcher(UploadLimits(0, 1, -1, 1.0))
        self._tasks: list[asyncio.Task[Any]] = []
        self._warnings = Warnings(env, logger)
        self._opening = asyncio.Lock()
        self._lost: dict[int, Segment] = {}  # with a file, and an object that is gone
        self._started = False
        self._stores_open = False

    async def start(self) -> None:
        """Start. Never fails because of the tier; raises SQL's errors."""
        now_ms = self.env.clock.now_ms()
        await self.tiers.open()
        self.tier, self.store = self.tiers.current.id, self.tiers.store_at(self.tiers.current.url)
        # Before any upload begins, which would be given up, too.
        await give_up_uploads(self.storage, self.node_id, now_ms + self._grace_ms())
        segments = self.log.segments
        self.repairer = Repairer(self.env, segments.store, self.site, self.store_of)
        self.cold = ColdReader(
            self.env, self.config, segments.store, segments.warm.indexes,
            self.log.commit_log.reader.lane, self.storage, self.store_of,
            report=self.repairer.report, find_tier=self.tiers.reload,
        )  # fmt: skip
        segments.remote.attach_reader(self.cold)
        segments.remote.attach_uploads(lambda numbers: self.uploader.upload_soon(numbers))
        self._build()
        self.local = LocalTier(
            self.env, self.config, segments, self.storage, self.store_of, self.log.partitions,
            self.log.loader.settings_of, self.tiers.reload, self._object_lost,
        )  # fmt: skip
        self.local.start()
        self.log.hooks.register(TieringLogListener(self, self.log.partitions))
        self._take_settings()
        self._started = self._stores_open = True
        self._attaching = self.env.spawn(self._run(), "tiering")
        self._tasks.append(self.env.spawn(self._watch(), "watch tiering"))
        self._tasks.append(self.env.spawn(self.spending.run(), "count what tiering costs"))

    async def switch(self, url: str) -> None:
        """Upload to another tier from now on (kafkawire.tiering.migrate). Objects in the
        previous one are read from there until they are copied."""
        await self.tiers.begin_move(url)
        await self._stop()
        next_producer_id = self.rounds.next_producer_id
        try:
            after_ms = self.env.clock.now_ms() + self._grace_ms()
            await give_up_uploads(self.storage, self.node_id, after_ms)
        # Also after a failure: the next start cleans up the rest, and uploads must continue.
        finally:
            self.tier = self.tiers.current.id
            self.store = self.tiers.store_at(self.tiers.current.url)
            self.state, self.error = "attaching", None
            self.dispatcher = Dispatcher(UploadLimits(0, 1, -1, 1.0))
            self._build()
            # The new manifest must have it, too: a restore from it must not assign them again.
            self.rounds.producer_ids_leased(next_producer_id)
            self._take_settings()
            self._attaching = self.env.spawn(self._run(), "tiering")

    async def _stop(self) -> None:
        self._attaching.cancel()
        await asyncio.gather(self._attaching, return_exceptions=True)
        await self.uploader.close()
        await self.packer.close()
        await self.remover.close()
        await self.rounds.close()

    def _build(self) -> None:
        """Create the components of a tier without starting them."""
        env, log, storage, segments = self.env, self.log, self.storage, self.log.segments
        settings_of, grace_ms, node_id = log.loader.settings_of, self._grace_ms, self.node_id
        self.rounds = Rounds(
            env, self.config, self.catalog, storage, self.store, log.partitions, node_id,
            self.cluster_id, os.path.join(log.folder, "tier"), self.tier,
            self._check_current,
        )  # fmt: skip
        candidates = UploadCandidates(env, storage, segments.store, settings_of)
        progress = UploadProgress(env, log.partitions, storage, log.loader.led_elsewhere)
        finisher = Finisher(
            env, storage, segments.store, segments.swapper, self.rounds, progress, grace_ms,
            lambda: self.remover.wake(),
        )  # fmt: skip
        self.uploader = Uploader(
            env, storage, segments.store, self.store, self.dispatcher, candidates, progress,
            finisher,
            self._topic_of, lambda: self.remover.wake(), node_id, self.tier,
        )  # fmt: skip
        self._other_uploads = OtherUploads(env, storage, segments.store, finisher)
        self.topic_disabler = TopicDisabler(log, storage, self.catalog, self.dispatcher, grace_ms)
        self.remover = Remover(
            env, storage, segments.store, self.store_of, self.rounds, settings_of, node_id,
            self.tier, grace_ms, self._retry_max_s, self.topic_disabler.run,
        )  # fmt: skip
        self.packer = Packer(
            env, storage, segments.store, self.store, self.catalog,
            lambda: self.uploader.uploads, self._may_not_write, grace_ms, self._retry_max_s,
            os.path.join(log.folder, "tier-packs"), self.tier,
        )  # fmt: skip
        self.upload_lag = LagMonitor(
            env, self.catalog, self.dispatcher, candidates, segments.cutter.timing, self._trouble
        )

    async def stop(self) -> None:
        """Stop uploads and everything else, while the log is still open; log objects can still be
        stored. Another call has no effect."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._started:
            self._started = False
            await self.mover.close()
            await self.repairer.close()
            await self.local.close()
            await self._stop()

    async def close(self) -> None:
        """Stop, and close the stores. Another call has no effect."""
        await self.stop()
        if self._stores_open:
            self._stores_open = False
            await self.tiers.close()
            await self.spending.close()

    async def scrub(
        self, repair: bool, deep: bool, skip_lost: bool = False
    ) -> AsyncIterator[ScrubProgress | ScrubReport]:
        """Run a scrub (kafkawire.tiering.scrub.scrub): yield its progress, then the report. At most
        one runs at a time. With `repair` a bucket that has lost its manifest and objects gets a new
        manifest first."""
        # The operator has decided: what has a local file is uploaded again, the rest is lost.
        if repair and isinstance(self.error, ObjectsLost):
            await self._attach(accept_loss=True)
        async for each in Scrub(self.site()).run(repair, deep, skip_lost):
            yield each

    def site(self) -> Site:
        """Return the components of this tier that checks, repairs and moves use."""
        segments, config = self.log.segments, self.config
        rate = config.remote_log_manager_fetch_max_bytes_per_second
        return Site(
            self.env, self.store, self.storage, self.catalog, segments.store, segments.swapper,
            self.rounds, self.node_id, self.cluster_id, self.tier,
            os.path.join(self.log.folder, "tier-scrub"), self._grace_ms, self.remover.wake,
            self._trouble, lambda: -1 if rate >= NO_LIMIT else rate, segments.skipper,
            segments.known_partitions, self.packer.discard_damaged, self.log.object_logs,
        )  # fmt: skip

    def store_of(self, tier: int) -> ObjectStore | None:
        return self.tiers.find_store(tier)

    def producer_ids_leased(self, end: int) -> None:
        """Have the current tier's manifest record that producer ids below `end` are assigned."""
        self.rounds.producer_ids_leased(end)

    def broker_changed(self) -> None:
        """Apply changed broker settings, which may include the dynamic ones of all brokers. Before
        the start nothing is to do: it uses those that are valid then."""
        if not self._started:
            return
        self.rounds.cluster_changed()
        self._take_settings()
        self.uploader.wake()

    async def log_starts_reported(
        self, names: Iterable[tuple[str, int]], timeout_s: float
    ) -> set[tuple[str, int]]:
        """Publish the log starts of partitions (topic, index), which are in memory. Return the
        tiered ones that were not published in time and will follow. If another broker owns the
        bucket nothing is published, and none is returned."""
        tiered = set()
        for name, index in names:
            info = self.catalog.by_name.partition_of(name, index)
            partition = None if info is None else self.log.partitions.get(info.number)
            if partition is not None and partition.dispatch_offset:
                tiered.add((name, index))
        if not tiered or self.dispatcher.foreign:
            return set()
        task = self.env.spawn(self._notify(), "report log starts")
        await asyncio.wait({task}, timeout=timeout_s)
        if task.done():
            return set()
        task.cancel()
        return tiered

    async def _notify(self) -> None:
        """Publish pending changes; retry while the caller waits and the tier is open."""
        while self._started and self.rounds.owned:
            try:
                await self.rounds.publish()
                return
            except (StoreError, OSError):
                await self.env.sleep(REPORT_INTERVAL_S)

    async def _run(self) -> None:
        """Attach the bucket, with retries, then start the components and follow other brokers."""
        failures = 0
        self.dispatcher.detach(self.state)
        self.uploader.start()
        await self.topic_disabler.find()
        if self.tiers.refusal:
            self._note_refusal(Refused("TierLeft", self.tiers.refusal))
            return
        while self.state != "attached":
            try:
                await self._attach()
            # Even after a defect the tier keeps trying.
            except Exception as failure:
                failures += 1
                if not isinstance(failure, StoreError | OSError | WorkerError):
                    logger.exception("cannot attach the remote tier, retrying")
                self._note_refusal(failure)
                whole_s, jitter = self._retry_max_s(), self.env.random.random()
                refused = isinstance(failure, Refused)
                await self.env.sleep(whole_s if refused else wait_s(failures, whole_s, jitter))
        self.remover.start()
        self.packer.start()
        if self.tiers.moving:
            self.mover.start()
        await self._other_uploads.run()

    async def _attach(self, *, accept_loss: bool = False) -> None:
        """Claim the bucket and begin to upload. Raises what `Rounds.open` raises, and Refused."""
        async with self._opening:
            if self.state != "attached":
                await self.rounds.open(accept_loss=accept_loss)
                # A store that ignores conditions would let two brokers own the bucket.
                await check_conditional_put(self.store)
                await check_listing(self.store)
                self._finish_attaching()

    def _finish_attaching(self) -> None:
        self.state, self.error = "attached", None
        self.fence.lower()
        self.dispatcher.attach()
        logger.info("attached the remote tier %s", self.tiers.current.url)
        self.uploader.wake()

    @property
    def refused(self) -> str:
        """Why an operator must act before this broker can use its tier; empty if not."""
        found = [self.rounds.error, self.uploader.refusal]
        for failure in [self.error] if self.state == "refused" else found:
            if isinstance(failure, Refused):
                return f"the remote tier {self.tiers.current.url} cannot be used: {failure}"
        return ""

    def _note_refusal(self, failure: Exception) -> None:
        """Log why the bucket cannot be attached, once as an ERROR if an operator must act."""
        reported = str(self.error) == str(failure)
        self.error = failure
        code = failure.code if isinstance(failure, StoreError) else type(failure).__name__
        self.dispatcher.detach(code)
        if not isinstance(failure, Refused):
            self._warnings.warn("attaching the remote tier", failure, known=True)
            return
        other = isinstance(failure, OwnedByOther)
        self.state = "owned by another" if other else "refused"
        self.dispatcher.owned_by_other(other)
        if other:
            self.fence.put(failure)
        if not reported:
            logger.error(
                "the remote tier %s cannot be used, records stay on the disk of this broker, and "
                "it is tried again every %g s: %s",
                self.tiers.current.url,
                self._retry_max_s(),
                failure,
            )

    def _trouble(self) -> str:
        """Return why nothing at all can be uploaded; empty if uploads are possible."""
        if self.state == "attached":
            return ""
        return self.state if self.error is None else f"{self.state}: {self.error}"

    def _object_lost(self, segment: Segment) -> None:
        # Once the manifest has been compared: if the whole bucket is lost an operator must decide.
        self.rounds.read_again()
        self._lost[segment.row.id] = segment

    def _may_not_write(self) -> bool:
        return bool(not self.rounds.owned or self.dispatcher.foreign or self.dispatcher.paused)

    def _topic_of(self, number: int) -> str:
        location = self.catalog.locate(number)
        return "" if location is None else location.topic

    def _grace_ms(self) -> int:
        return max(1, self.config.tier_delete_delay_ms)

    def _retry_max_s(self) -> float:
        return self.config.tier_retry_max_ms / 1000

    async def _watch(self) -> None:
        while True:
            await self.env.sleep(SCAN_INTERVAL_S)
            if not self.rounds.owned and not self.dispatcher.foreign:
                self.state = "owned by another"
                self.error = self.rounds.error
                self.fence.put(self.error)
                self.dispatcher.owned_by_other(True)
                self.remover.owned_by_other()
            self._follow_manifest()
            try:
                if self._take_settings():
                    self.uploader.wake()
                await self.upload_lag.scan()
            except Exception:  # retried
                logger.warning("checking the remote tier failed, retrying", exc_info=True)

    def _follow_manifest(self) -> None:
        """Stop uploads while a bucket that was attached lacks its objects, and have single lost
        objects uploaded again."""
        lost = self.rounds.error
        if self.state == "attached" and isinstance(lost, ObjectsLost):
            self._note_refusal(lost)
        elif isinstance(self.error, ObjectsLost) and self.rounds.attached:
            self._finish_attaching()
        if self.state == "attached" and self.rounds.attached:
            for segment in self._lost.values():
                self.repairer.report(segment, Copy.OBJECT)
            self._lost.clear()

    def _take_settings(self) -> bool:
        """Read the settings of the broker that may change; return whether they have."""
        self.fence.apply_setting()
        config, limits, dispatcher = self.config, self.dispatcher.limits, self.dispatcher
        # Kafka's name and default, which is the largest int64: no limit.
        rate = config.remote_log_manager_copy_max_bytes_per_second
        now = UploadLimits(
            config.tier_upload_buffer_bytes,
            config.tier_upload_threads,
            -1 if rate >= NO_LIMIT else rate,
            self._retry_max_s(),
        )
        paused = "tier.paused" if config.tier_paused else ""
        changed = now != limits or paused != dispatcher.paused
        if dispatcher.paused and not paused:
            dispatcher.resume_uploads(self.env.clock.monotonic())
        dispatcher.limit(now)
        dispatcher.pause(paused)
        return changed
