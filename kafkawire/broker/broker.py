"""One broker: creates its components, starts them in order and stops them in reverse order.

Start: metadata (SQL) -> log (recovery) -> table of partitions -> topics, the remote tier, groups,
transactions. Stop: transactions and groups answer parked requests, the tier stops, the local
manifest is completed, the log commits and writes a last checkpoint, metadata closes. The broker
serves no requests itself: handlers receive it and use its components. Created by `server.run`, by
`kafkawire.testing` and by tests, which pass fakes as `env` and `metadata`.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

from kafkawire.broker.answer_memory import AnswerMemory
from kafkawire.broker.config_service import warn_of_clamped
from kafkawire.broker.features import FeatureService
from kafkawire.broker.followers.opening import StartingReplicas, wait_until_startable
from kafkawire.broker.followers.replica_lists import ReplicaLists
from kafkawire.broker.following.older_metadata import OlderMetadataStop
from kafkawire.broker.following.removal import BrokerRemoval
from kafkawire.broker.liveness.service import Liveness
from kafkawire.broker.liveness.starting import StartingHeartbeats
from kafkawire.broker.moving.controlled_shutdown import ControlledShutdown
from kafkawire.broker.moving.mover import PartitionMover, Services
from kafkawire.broker.moving.plan import is_draining
from kafkawire.broker.moving.reassignment import Reassignment
from kafkawire.broker.new_topics import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    check_replicas,
)
from kafkawire.broker.objects.fresh import (
    begin_afresh,
    check_fresh,
    check_unchanged,
    replacing_if_behind,
)
from kafkawire.broker.objects.opening import leads_movable, open_object_logs, register
from kafkawire.broker.overrides import Layers, layers_of
from kafkawire.broker.partitions import PartitionTable
from kafkawire.broker.producer_ids import ProducerIds
from kafkawire.broker.rack_reads.copies import FollowedLogs
from kafkawire.broker.rack_reads.selector import ReplicaSelector
from kafkawire.broker.rack_reads.views import PartitionViews
from kafkawire.broker.stored_formats import refuse_newer_files
from kafkawire.broker.topics import TopicService, services_of
from kafkawire.client.security import NO_SECURITY, ClientSecurity, read_security
from kafkawire.codec.configs.durability_rules import BEYOND_FOLDER, DURABILITY
from kafkawire.codec.configs.settings import BrokerConfig, ShareGroupSettings
from kafkawire.log import fresh_folder
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.manager import Log, leave_folder, lock_folder
from kafkawire.log.recovery.identity import (
    Folder,
    IdentityError,
    IdentityRecorder,
    check_pairing,
    inspect_folder,
    is_superseded,
    refuse_absent,
)
from kafkawire.log.segments.strays import check_segments
from kafkawire.metadata import pairing
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.pairing import SeenInSql, StoredPairing
from kafkawire.metadata.statements import check_broker_epoch
from kafkawire.metadata.store import SqlStore
from kafkawire.metric_counters import Counts
from kafkawire.offsets.catalog.port import COPY_FINISHED, SegmentCatalog
from kafkawire.offsets.catalog.sql.statements import LeaderTerm
from kafkawire.offsets.storage.open import check_storage, open_storage
from kafkawire.schedules.starter import ScheduleStarter
from kafkawire.security.acls.security import Security
from kafkawire.security.quotas.arithmetic import SampleWindow
from kafkawire.security.quotas.service import Quotas
from kafkawire.security.versions import CLIENT_QUOTAS, SCRAM_CREDENTIALS

if TYPE_CHECKING:
    from kafkawire.broker.dead_letter_topics import ClusterDeadLetterTopics
    from kafkawire.broker.markers import MarkerWriter
    from kafkawire.broker.other_brokers import EndOffsets, OtherBrokers, RemoteShareStates
    from kafkawire.broker.streams_topics import StreamsTopics
    from kafkawire.broker.verification import TransactionVerifier
    from kafkawire.groups.model.transactional import Verification, Verified
    from kafkawire.groups.service import GroupService
    from kafkawire.log.local_manifest.service import LocalManifest
    from kafkawire.schedules.service import ScheduleService
    from kafkawire.security.sasl.credentials import Credentials
    from kafkawire.share.service import ShareService
    from kafkawire.share.state.persister import StatePersister
    from kafkawire.share.state.service import ShareStateService
    from kafkawire.telemetry.service import TelemetryService
    from kafkawire.tiering.admin.commands import TierCommands
    from kafkawire.tiering.service import Tiering
    from kafkawire.tiering.store.metering import Meter
    from kafkawire.tiering.store.port import ObjectStore
    from kafkawire.transactions.service import TransactionService

logger = logging.getLogger(__name__)

Address = tuple[str, int]
DEAD_LETTERS_FROM = 2
"""The first level of share.version with dead letters (KIP-1191)."""


class Broker:
    """The components of a running broker. Create one with `Broker.start`."""

    def __init__(
        self,
        env: Env,
        metadata: SqlStore,
        storage: SegmentCatalog,
        catalog: Catalog,
        config: BrokerConfig,
        static: dict[str, str],
        log: Log,
        listeners: dict[str, Address],
        folder: str,
        security: Security | None = None,
        seen: SeenInSql | None = None,
    ) -> None:
        self.env = env
        self.security = Security() if security is None else security
        self.metadata = metadata
        self.storage = storage
        self.catalog = catalog
        self.config = config
        self.static = static
        self.log = log
        self.listeners = listeners
        self.folder = folder
        self.node_id = config.node_id
        self.counts = Counts()
        self.answer_memory = AnswerMemory(config.inflight_answer_bytes, env.call_soon)
        self.table = PartitionTable(catalog, log.loader, self.node_id)
        self.replica_selector = ReplicaSelector(
            catalog, self.node_id, listeners, enabled=bool(config.replica_selector_class)
        )
        data = os.path.dirname(os.path.dirname(folder))  # of all brokers of this machine
        copies = FollowedLogs(env, config, catalog, log, data)
        self.views = PartitionViews(env, catalog, storage, log, self.node_id, copies)
        self.producer_ids = ProducerIds(metadata, self._producer_ids_leased)
        self.older_metadata = OlderMetadataStop(log, folder)
        self.identity = IdentityRecorder(
            env, metadata, folder, config.node_id, catalog.cluster_id, config.tier_url,
            seen, self.older_metadata.on_older_metadata,
        )  # fmt: skip
        log.hooks.when_stored(self.identity.note_change)
        self.liveness = Liveness(env, metadata, catalog, self.node_id, config.lease_ms)
        self.liveness.when_superseded(self.on_superseded)
        self.schedules = ScheduleStarter(env, catalog, self._make_schedules)
        log.hooks.register(self.schedules)
        self.topics = TopicService(
            self, self._may_lead, self._check_moves, self.liveness.wait_until_decided
        )
        self.mover: PartitionMover = PartitionMover(
            self, self.topics.lock, self._moved_services(), self.liveness.may_lead
        )
        self.controlled_shutdown = ControlledShutdown(self, self.mover)
        self.moves = Reassignment(
            self, self.topics.lock, self.topics.changes, check_replicas, self.mover.check
        )
        self.removal = BrokerRemoval(self, self.topics.lock, self.topics.changes)
        self.features = FeatureService(catalog, metadata, config.node_id, self.topics.lock)
        self.quotas: Quotas = Quotas(
            metadata,
            env.clock.monotonic,
            SampleWindow(config.quota_window_num, config.quota_window_size_seconds * 1000),
            SampleWindow(
                config.controller_quota_window_num,
                config.controller_quota_window_size_seconds * 1000,
            ),
            env.slices.give_way,
        )
        self._users: Credentials | None = None
        self._loading_users = asyncio.Lock()
        self.manifest: LocalManifest | None = None
        self.tiering: Tiering | None = None
        self.tier_commands: TierCommands | None = None

    def _moved_services(self) -> Services:
        """Return what has coordinators that end before their partitions are moved."""

        async def schedules() -> ScheduleStarter:
            return self.schedules

        return {**services_of(self), self.schedules.topic: schedules}

    def _check_moves(self) -> None:
        """Start what a change of the catalog by another broker requires here."""
        self.controlled_shutdown.check()
        self.mover.check()

    def _may_lead(self) -> list[int]:
        """Return the brokers that new partitions are given to, in order."""
        alive = self.liveness.may_lead()
        return [node for node in alive if not is_draining(self.catalog, node)] or alive

    @cached_property
    def groups(self) -> GroupService:
        """Created when a client first uses a group, or at the start if there are groups: importing
        its modules takes a sixth of the start."""
        from kafkawire.groups.model.share_states import LoadedShareStates
        from kafkawire.groups.service import GroupService

        return GroupService(
            self.env,
            self.config,
            self.folder,
            self.log.commit_log,
            self.topics.offsets_partitions,
            self.catalog,
            self._verify_offsets,
            LoadedShareStates(self._load_share_persister),
        )

    async def _load_share_persister(self) -> StatePersister:
        await self.load_share_states()
        return self.share_persister

    @cached_property
    def telemetry(self) -> TelemetryService:
        """Created by the first request about client metrics, whose handler has imported it."""
        from kafkawire.telemetry.service import TelemetryService

        return TelemetryService(self.env, self.catalog, self.config.telemetry_max_bytes)

    @cached_property
    def markers(self) -> MarkerWriter:
        """Created when the first transaction ends."""
        from kafkawire.broker.markers import MarkerWriter
        from kafkawire.broker.other_brokers import RemoteMarkers

        return MarkerWriter(
            self.env, self.node_id, self.catalog, self.table, self.log.commit_log,
            lambda index, marker: self.groups.write_marker(index, marker),
            RemoteMarkers(self._other_brokers()),
        )  # fmt: skip

    @cached_property
    def transactions(self) -> TransactionService:
        """Created when a client first uses a transaction, or at the start if there are any."""
        from kafkawire.transactions.service import TransactionService

        return TransactionService(
            self.env, self.config, self.folder, self.log.commit_log,
            self.topics.transaction_state_partitions, self.catalog, self.markers,
            self.producer_ids.next_id,
        )  # fmt: skip

    @cached_property
    def share_states(self) -> ShareStateService:
        """Created when a share group is first used, or at the start if there are any."""
        from kafkawire.share.state.service import ShareStateService

        return ShareStateService(
            self.env, self.config, self.folder, self.log.commit_log,
            self.topics.share_state_partitions, self.catalog,
        )  # fmt: skip

    @cached_property
    def remote_share_states(self) -> RemoteShareStates:
        """The share coordinators of other brokers."""
        from kafkawire.broker.other_brokers import RemoteShareStates

        return RemoteShareStates(self._other_brokers())

    @cached_property
    def share_persister(self) -> StatePersister:
        """Where the leaders of share partitions and group coordinators find share states."""
        from kafkawire.share.state.persister import StatePersister

        return StatePersister(self.env, self.node_id, self.share_states, self.remote_share_states)

    @cached_property
    def end_offsets(self) -> EndOffsets:
        """The ends of partitions, wherever they are led."""
        from kafkawire.broker.other_brokers import EndOffsets

        return EndOffsets(self.node_id, self.catalog, self.table, self._other_brokers())

    async def load_share_states(self) -> ShareStateService:
        """Return `share_states`, like `load_groups`."""
        if "share_states" not in self.__dict__:
            await self.env.offload.submit("files", _import_share_states)
        return self.share_states

    async def load_groups(self) -> GroupService:
        """Return `groups`, whose modules the first call imports in a thread: on the event loop that
        would delay other clients by 20 ms."""
        if "groups" not in self.__dict__:
            await self.env.offload.submit("files", _import_groups)
        return self.groups

    async def _make_schedules(self) -> ScheduleService:
        """Create the service of schedule topics, whose modules are imported in a thread."""
        await self.env.offload.submit("files", _import_schedules)
        from kafkawire.schedules.service import ScheduleService
        from kafkawire.schedules.targets import ScheduleTargets

        targets = ScheduleTargets(
            self.catalog,
            self.log.loader.configs.config_of_topic,
            self.table.load_partition,
            self.producer_ids.next_id,
        )
        return ScheduleService(
            self.env, self.folder, self.log.commit_log, self.catalog,
            self.topics.schedule_state_partitions, targets, self.table.load_partition, self.node_id,
        )  # fmt: skip

    @cached_property
    def shares(self) -> ShareService:
        """Created when a member of a share group first fetches from this broker."""
        from kafkawire.share.counts import ShareCounts
        from kafkawire.share.dead_letters import DeadLetterWriter
        from kafkawire.share.leader import ShareParts
        from kafkawire.share.service import ShareService

        counts = ShareCounts()
        letters = DeadLetterWriter(
            self.env, self.log.commit_log, self.dead_letter_topics, self._share_settings, counts
        )
        parts = ShareParts(self.env, self.share_persister, self._share_settings, letters, counts)
        return ShareService(
            parts, self.table.find_by_id, self.config.group_share_max_share_sessions,
            self.config.parked_fetches_max,
        )  # fmt: skip

    @cached_property
    def streams_topics(self) -> StreamsTopics:
        """Creates the internal topics of streams groups."""
        from kafkawire.broker.streams_topics import StreamsTopics

        return StreamsTopics(self.env)

    @cached_property
    def dead_letter_topics(self) -> ClusterDeadLetterTopics:
        """Created with `shares`."""
        from kafkawire.broker.dead_letter_topics import ClusterDeadLetterTopics

        return ClusterDeadLetterTopics(
            self.node_id, self.config, self.catalog, self.log.loader.configs.config_of_topic,
            self.table.load_partition, self.topics.create, self.producer_ids.next_id,
            self._other_brokers,
        )  # fmt: skip

    async def load_shares(self) -> ShareService:
        """Return `shares`, like `load_groups`."""
        if "shares" not in self.__dict__:
            await self.env.offload.submit("files", _import_shares)
        return self.shares

    def _share_settings(self, group_id: str) -> ShareGroupSettings:
        """Return the settings of a share group, without dead letters below share.version 2."""
        settings = self.config.share_group_settings(group_id)
        if self.config.share_version < DEAD_LETTERS_FROM and settings.dead_letter_topic:
            return settings._replace(dead_letter_topic="")
        return settings

    async def load_users(self) -> Credentials:
        """Return the SCRAM credentials of users, read from SQL by the first call, and again after
        changes by other brokers. Raises MetadataError."""
        async with self._loading_users:
            if self._users is None:
                from kafkawire.security.sasl.credentials import Credentials

                users = Credentials(
                    self.metadata, self.env.random.randbytes, self.env.slices.give_way
                )
                await users.load()
                self._users = users
            else:
                await self._users.refresh()
        return self._users

    async def _refresh_users(self, version: int) -> None:
        if self._users is not None:
            await self._users.refresh_from(version)

    async def load_transactions(self) -> TransactionService:
        """Return `transactions`, like `load_groups`."""
        if "transactions" not in self.__dict__:
            await self.env.offload.submit("files", _import_transactions)
        return self.transactions

    def when_superseded(self, fn: Callable[[str], None]) -> None:
        """Call `fn` with the reason when this broker was started elsewhere, so that this process
        cannot acknowledge records of topics with durability=s3 or replicated any more."""
        for each in (self.log.object_logs, self.log.replication):
            if each is not None:
                each.when_superseded(fn)

    def on_superseded(self, why: str) -> None:
        """Note that another process was started as this broker. A broker with topics of
        durability=s3 or replicated has to end then, or one that machines take over from each other;
        another one continues to serve reads."""
        logs = self.log.object_logs
        ends = self.config.cluster_takeover_enable or leads_movable(self.catalog, self.node_id)
        if logs is not None and ends:
            logs.on_superseded(why)

    @property
    def cluster_id(self) -> str:
        """22 characters of base64, created once for each metadata database."""
        return self.catalog.cluster_id

    @classmethod
    async def start(
        cls,
        env: Env,
        metadata: SqlStore,
        folder: str,
        static: Mapping[str, str],
        listeners: dict[str, Address],
        after: int = -1,
    ) -> Broker:
        """Open everything under `folder`; when this returns, requests can be served.

        `static`: validated settings as strings, those of single listeners, too; `listeners`: the
        advertised address of each; `after`: the epoch of a broker that is taken over, or -1. Raises
        MetadataError, LogError (a second process, damage), OSError or BrokerReturns, after closing
        `metadata`.
        """
        starting = StartingHeartbeats(env, metadata, guest=after >= 0)
        return await starting.cover(
            cls._start(env, metadata, folder, static, listeners, after, starting=starting)
        )

    @classmethod
    async def _start(
        cls,
        env: Env,
        metadata: SqlStore,
        folder: str,
        static: Mapping[str, str],
        listeners: dict[str, Address],
        after: int,
        *,
        starting: StartingHeartbeats,
    ) -> Broker:
        config = BrokerConfig(Layers({}, {}, static).merge_settings())
        node_id, guest = config.node_id, after >= 0
        home = f"{folder}/brokers/{node_id}"
        # Before anything is written: a second process must not change the first one's rows.
        lock = lock_folder(env, home)
        store: ObjectStore | None = None
        try:
            await env.offload.submit("files", refuse_newer_files, env.fs, home)
            found = inspect_folder(env.fs, folder, home, node_id)
            catalog, stored, fresh = await _open_metadata(metadata, found, env.fs, home, config)
            after, catalog = await wait_until_startable(
                env, metadata, config, catalog, listeners, folder, after, fresh=fresh
            )
            config = BrokerConfig(
                layers_of(catalog, node_id, static).merge_settings(), catalog.features,
                catalog.group_overrides,
            )  # fmt: skip
            warn_of_clamped(catalog, config)
            seen = SeenInSql(lambda: catalog.stored_version)
            storage = await _open_storage(env, config, metadata, home, catalog, seen)
            store = await _open_tier(config, storage, catalog, folder)
            await check_fresh(found, storage, catalog, metadata, fresh)
            unchanged = partial(check_unchanged, metadata, stored, node_id, fresh)
            await register(
                env, config, metadata, catalog, listeners, folder, store, after, unchanged
            )
            await starting.start(node_id, catalog)
            logs, meter = await open_object_logs(env, config, store, metadata, storage, catalog)
            replicas = await StartingReplicas.load(
                env, config, metadata, catalog, listeners, folder, guest=guest
            )
            if fresh:
                found, stored = await begin_afresh(
                    env, found, home, storage, catalog, config, store, metadata, stored,
                    replicas.copy_into,
                )  # fmt: skip
        except BaseException:
            await _close(starting, metadata, store)
            leave_folder(env, home, lock)
            raise
        security = Security()
        try:
            security = await Security.open(env, metadata, config)
            async with replacing_if_behind(env, found, storage, catalog, home):
                log = await Log.open(
                    env, home, config, catalog, storage, metadata, node_id, lock,
                    found.identity is None and found.has_log,
                    pinned_topics=INTERNAL_TOPICS,  # coordinators refer to the partitions
                    object_logs=logs, replication=replicas.open(fresh=fresh), fresh=fresh,
                )  # fmt: skip
        except BaseException:
            await _close(starting, security, metadata, store)
            raise
        options = config, dict(static), log, listeners, home, security, seen
        broker = cls(env, metadata, storage, catalog, *options)
        try:
            await broker._pair(found, stored, fresh)
            await starting.close()
            await broker._start_services(store, meter)
        except BaseException:
            await _close(starting, broker, store)
            raise
        await broker._start_coordinators()
        return broker

    async def _pair(self, found: Folder, stored: StoredPairing, fresh: bool) -> None:
        """Pair the data folder with the metadata, after checking its segments if it has no
        identity; a fresh one is complete then."""
        if found.identity is None and found.has_log:
            await check_segments(self.env, self.folder, self.log.segments.strays, self.metadata)
        await self.identity.start(found, stored)
        if fresh:
            await self.env.offload.submit("files", fresh_folder.complete, self.env.fs, self.folder)
            if self.log.replication is not None:
                self.log.replication.note_complete_folder()

    async def _start_services(self, store: ObjectStore | None, meter: Meter | None) -> None:
        """Start what runs next to the log. `store`: of the remote tier, if there is one; `meter`:
        counts its requests."""
        self.topics.follower.start()
        self.liveness.start()
        self.controlled_shutdown.check()
        if self.config.replication_listener:
            wanted = self.config.replica_group_size - 1
            live = (lambda: None) if self.log.replication is None else self.log.replication.live
            ReplicaLists(self.env, self.metadata, self.catalog, wanted, self.node_id, live).start()
        await self.quotas.start()
        refresh = {
            CLIENT_QUOTAS: self.quotas.refresh_from, SCRAM_CREDENTIALS: self._refresh_users,
        }  # fmt: skip
        others = partial(self.catalog.living_others, self.node_id)
        await self.security.start_refresh(self.env, self.metadata, refresh, self.node_id, others)
        if self.config.local_manifest_enable:
            self._start_manifest()
        if store is not None:
            await self._start_tiering(store, meter)

    @cached_property
    def verifier(self) -> TransactionVerifier:
        """Created when a transaction first writes records or offsets."""
        from kafkawire.broker.other_brokers import RemoteCoordinators
        from kafkawire.broker.verification import TransactionVerifier

        remote = RemoteCoordinators(self.node_id, self.catalog, self._other_brokers())
        return TransactionVerifier(self, remote)

    def _other_brokers(self) -> OtherBrokers:
        from kafkawire.broker.other_brokers import OtherBrokers

        first = self.config.inter_broker_listener_name
        names = (first, *self.listeners) if first else (*self.listeners,)
        return OtherBrokers(self.env, self.catalog, names, self._client_security)

    def _client_security(self) -> ClientSecurity:
        path = self.config.inter_broker_client_config
        return read_security("inter.broker.client.config", path) if path else NO_SECURITY

    async def _verify_offsets(self, asked: Verification) -> Verified:
        return await self.verifier.verify_offsets(asked)

    async def _start_coordinators(self) -> None:
        """Start to load groups and transactions that exist, which may read from the tier."""
        if GROUP_METADATA_TOPIC in self.catalog.by_name:
            await self.groups.start()
        if TRANSACTION_STATE_TOPIC in self.catalog.by_name:
            await self.transactions.start()  # after the groups, which take its markers
        if SHARE_GROUP_STATE_TOPIC in self.catalog.by_name:
            await self.share_states.start()
        self.schedules.start()

    def _start_manifest(self) -> None:
        """Start the local manifest before anything changes, because it records changes from now
        on."""
        from kafkawire.log.local_manifest.service import LocalManifest

        self.manifest = LocalManifest(self.env, self.log, self.storage, self.catalog)
        self.manifest.start()

    async def _start_tiering(self, store: ObjectStore, meter: Meter | None = None) -> None:
        """Start the remote tier; a broker without one does not import it. `meter` has the requests
        of its log objects."""
        from kafkawire.tiering.admin.commands import TierCommands
        from kafkawire.tiering.service import Tiering

        check_epoch = partial(
            check_broker_epoch,
            node_id=self.node_id,
            expected=self.catalog.brokers[self.node_id].epoch,
        )
        self.tiering = Tiering(
            self.env, self.config, self.log, self.storage, self.catalog, store, self.node_id,
            self.cluster_id, meter, check_current=lambda: self.metadata.transact(check_epoch),
        )  # fmt: skip
        self.tier_commands = TierCommands(self.tiering)
        await self.tiering.start()

    def _producer_ids_leased(self, end: int) -> None:
        """Have the remote tier's manifest record `end` as the next free producer id."""
        if self.tiering is not None:
            self.tiering.producer_ids_leased(end)

    async def close(self) -> None:
        """Commit accepted records and close. Another call has no effect."""
        await self.liveness.close()
        await self.topics.follower.close()
        await self.controlled_shutdown.close()
        await self.mover.close()
        if "shares" in self.__dict__:
            self.shares.close()
            self.dead_letter_topics.close()
        await self.schedules.close()
        await self._close_coordinators()
        if self.tier_commands is not None:
            await self.tier_commands.close()
        if self.tiering is not None:
            await self.tiering.stop()
        if self.manifest is not None:
            await self.log.upkeep.stop()  # nothing may change after the last delta
            await self.manifest.close()
        await self.log.upkeep.stop()
        await self.identity.close()  # while the folder is locked
        await self.log.close()
        if self.tiering is not None:
            await self.tiering.close()  # the log has stored its last log objects there
        await self.storage.close()
        await self.security.close()
        await self.metadata.close()

    async def _close_coordinators(self) -> None:
        if "transactions" in self.__dict__:
            await self.transactions.close()  # before the groups, which take its markers
        if "markers" in self.__dict__:
            self.markers.close()
        if "verifier" in self.__dict__:
            self.verifier.close()
        if "groups" in self.__dict__:
            await self.groups.close()
        if "remote_share_states" in self.__dict__:
            self.remote_share_states.close()
        if "end_offsets" in self.__dict__:
            self.end_offsets.close()
        if "share_states" in self.__dict__:
            await self.share_states.close()


class _Closable(Protocol):
    async def close(self) -> None: ...


async def _close(*opened: _Closable | None) -> None:
    """Close what was opened before a start failed, in this order."""
    for each in opened:
        if each is not None:
            await each.close()


def _import_groups() -> None:
    """Import what `Broker.groups` needs."""
    import kafkawire.groups.service  # noqa: F401


def _import_shares() -> None:
    """Import what `Broker.shares` needs."""
    import kafkawire.broker.dead_letter_topics
    import kafkawire.share.service  # noqa: F401

    _import_share_states()


def _import_share_states() -> None:
    """Import what share groups and `Broker.share_persister` need, and compile their codecs."""
    import kafkawire.broker.other_brokers
    import kafkawire.share.state.persister  # noqa: F401
    from kafkawire.groups.model.records import ShareKind, compile_group_records
    from kafkawire.share.state.records import compile_records

    compile_group_records(ShareKind)
    compile_records()


def _import_schedules() -> None:
    """Import what `ScheduleStarter` needs to deliver."""
    import kafkawire.schedules.service
    import kafkawire.schedules.targets  # noqa: F401


def _import_transactions() -> None:
    """Import what `Broker.transactions` and the first transaction need."""
    import kafkawire.broker.markers
    import kafkawire.broker.other_brokers
    import kafkawire.broker.verification
    import kafkawire.transactions.machine.wire
    import kafkawire.transactions.service  # noqa: F401


async def _open_metadata(
    metadata: SqlStore, found: Folder, fs: FileSystem, home: str, config: BrokerConfig
) -> tuple[Catalog, StoredPairing, bool]:
    """Open the catalog and the identity of the data folder in SQL; return both, and whether the
    folder is to be filled from the remote tier. Raises IdentityError if the metadata does not
    belong to the folder; missing metadata is not created then."""
    if metadata.absent():
        refuse_absent(found, metadata.name)
    catalog = await metadata.open()
    stored = await metadata.transact(lambda session: pairing.load(session, found.node_id))
    begun = fresh_folder.is_begun(fs, home)
    # With takeover also a broker that leads nothing moves between machines; `_check_fresh` refuses
    # one that has records only in another folder.
    moves = config.cluster_takeover_enable and bool(config.tier_url)
    adopts = moves or leads_movable(catalog, found.node_id)
    if begun or (is_superseded(found, stored) and adopts):
        return catalog, stored, True
    check_pairing(found, stored, metadata.name)
    return catalog, stored, False


async def _open_storage(
    env: Env, config: BrokerConfig, metadata: SqlStore, home: str, catalog: Catalog, seen: SeenInSql
) -> SegmentCatalog:
    """Open the offset storage of a registered broker. Raises what `check_storage` raises."""
    node_id = config.node_id
    await check_storage(config.offset_storage, metadata, home, node_id)
    term = LeaderTerm(catalog.epoch_of, lambda: catalog.brokers[node_id].epoch)
    return open_storage(
        config.offset_storage, metadata, home, node_id, env.clock.now_ms, catalog.leader_of,
        term=term, seen=seen,
    )  # fmt: skip


async def _open_tier(
    config: BrokerConfig, storage: SegmentCatalog, catalog: Catalog, data: str
) -> ObjectStore | None:
    """Open the store of `tier.url`; None without one. Raises IdentityError if this broker may not
    use it, or topics need one."""
    if not config.tier_url:
        _check_durability(catalog)
        await _check_objects(storage, config, data)
        return None
    from kafkawire.objectstore.url import parse_tier
    from kafkawire.tiering.publishing.compatibility import check_tier, holds_objects
    from kafkawire.tiering.store.open import open_store

    url = parse_tier(config.tier_url).url
    seen = await holds_objects(url, storage, config.node_id)
    store = open_store(config.tier_url, config, seen=seen)
    try:
        await check_tier(store, url, storage, config.node_id, catalog.cluster_id, data)
    except BaseException:
        await store.close()
        raise
    return store


async def _check_objects(storage: SegmentCatalog, config: BrokerConfig, data: str) -> None:
    """Raise IdentityError if this broker has objects in a tier that it is started without: what has
    left the local disk could not be read, and nothing more would be uploaded. With
    `tier.missing.action=serve` that is only logged."""
    some = await storage.objects(config.node_id, (COPY_FINISHED,), 1)
    if not some:
        return
    urls = [row.url for row in await storage.tiers() if row.id == some[0].tier]
    where = urls[0] if urls else "a remote tier"
    if config.tier_missing_action == "refuse":
        raise IdentityError(
            f"records of {data} are in {where}, and the broker is started without a tier: start "
            f"with --tier {where}; or, to serve only what is on the local disk, with "
            "--set tier.missing.action=serve"
        )
    logger.error(
        "records of %s are in %s, and the broker runs without a tier: reads of what is not on the "
        "local disk fail, and nothing is uploaded",
        data,
        where,
    )


def _check_durability(catalog: Catalog) -> None:
    """Raise IdentityError if topics are stored in a remote tier before they are acknowledged, which
    a broker without one cannot do."""
    for topic_id, configs in catalog.list_configured():
        durability = configs.get(DURABILITY, "").strip()
        if durability in BEYOND_FOLDER:
            name = catalog.by_id[topic_id].name
            raise IdentityError(
                f"topic {name} has {DURABILITY}={durability}, which needs a remote tier: start the "
                "broker with --tier URL"
            )
