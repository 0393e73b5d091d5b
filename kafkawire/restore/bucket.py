"""Evidence from a bucket about topics, partitions and objects, without decisions.

The brokers of a tier may each have a folder `nodes/<node id>` there, with a manifest and objects.
With a manifest, its contents are compared with a listing. Producers are read from the newest object
of each partition. The contents of objects that the manifest does not name (the last uploads of the
lost broker) are read from their footers. Without a usable manifest every object's footer is read,
with two requests each. Log objects are added by kafkawire.restore.log_objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment.format import PartitionState
from kafkawire.log.io.ports import Env
from kafkawire.log.partition.producers import Producers
from kafkawire.log_lines import reason_of
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import LOGS, OWNER, SEGMENTS, segment_key, segment_uuid
from kafkawire.manifest.reader import LostManifest, NoManifest, read_manifest_async
from kafkawire.metadata.checkpoint import producers_at, unpack_epochs, unpack_producers
from kafkawire.objectstore.errors import NoSuchObject
from kafkawire.progress import Progress
from kafkawire.restore.combine import combine_brokers
from kafkawire.restore.evidence import (
    BucketEvidence,
    DoubtKind,
    PartitionSeen,
    SegmentSeen,
    TopicSeen,
)
from kafkawire.restore.log_objects import gather_logs
from kafkawire.tiering.publishing.owner import DamagedOwner, OwnedByOther, OwnerRecord
from kafkawire.tiering.store.object_footer import Tail, read_tail
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls, side_by_side
from kafkawire.tiering.store.store_folder import StoreFolder
from kafkawire.tiering.store.tiers import NODES, folder_of

AFTER_SLASH = "0"
"""The character after the slash: keys from there on are not in a folder."""


MAX_NAMED = 3
"""Maximum number of objects of one kind listed by name; the others are only counted."""
UnusableManifest = NoManifest | LostManifest | FormatError


class SeveralBrokers(ValueError):
    """A tier that several brokers use; the text is one sentence for the operator."""


async def gather_from_bucket(
    env: Env, store: ObjectStore, progress: Progress, *, of_one: bool = False
) -> BucketEvidence:
    """Gather the evidence of all brokers of a tier. Raises StoreError, NewerFormatError for data of
    a newer program, and SeveralBrokers if it must be `of_one` broker."""
    folders = await list_broker_folders(env, store)
    nodes = [each.node_id for each in folders if each.has_manifest]
    if of_one and nodes:
        raise SeveralBrokers(
            f"the tier has objects of several brokers, those of node {nodes[0]} in "
            f"{NODES}/{nodes[0]}: restore all of them into a new data folder with "
            "`kafkawire restore TIER`"
        )
    parts = [await gather_from_part(env, store, progress)]
    for folder in map(folder_of, nodes):
        part = await gather_from_part(env, StoreFolder(store, folder), progress)
        for each in part.segments:
            each.folder = folder
        parts.append(part)
    seen = parts[0]
    if len(parts) > 1:
        seen = combine_brokers([part for part in parts if part.segments or part.topics])
    await gather_logs(env, store, [each.node_id for each in folders], seen, progress)
    return seen


class BrokerFolder(NamedTuple):
    """A broker's folder. `has_manifest`: it has more than log objects, which the broker whose
    segments are in the tier itself has in a folder, too."""

    node_id: int
    has_manifest: bool


async def list_broker_folders(env: Env, store: ObjectStore) -> list[BrokerFolder]:
    """Return the brokers' folders in a tier, by node id: about three LIST requests for each. Raises
    StoreError."""
    asking, prefix, after = RetryingCalls(env, store), f"{NODES}/", ""
    nodes: list[int] = []
    while found := await asking.first_key(prefix, after):
        name = found[len(prefix) :].partition("/")[0]
        if name.isascii() and name.isdigit():
            nodes.append(int(name))
        # Above all keys of the folder.
        after = f"{prefix}{name}{AFTER_SLASH}"
    return [BrokerFolder(node, await _has_manifest(asking, node)) for node in sorted(nodes)]


async def _has_manifest(asking: RetryingCalls, node: int) -> bool:
    folder = f"{folder_of(node)}/"
    logs = folder + LOGS
    first = await asking.first_key(folder, "")
    if first is None or not first.startswith(logs):
        return first is not None
    return await asking.first_key(folder, logs.removesuffix("/") + AFTER_SLASH) is not None


async def gather_from_part(env: Env, store: ObjectStore, progress: Progress) -> BucketEvidence:
    """Gather the evidence of one broker's manifest and objects in a tier. Raises StoreError, and
    NewerFormatError for data of a newer program."""
    asking = RetryingCalls(env, store)
    seen = BucketEvidence()
    seen.cluster_id = await _read_owner(asking)
    manifest = await read_usable_manifest(asking)
    if not isinstance(manifest, Manifest):
        seen.add_doubt(
            DoubtKind.MANIFEST,
            f"no manifest can be used ({reason_of(manifest)}): what objects say of themselves is "
            "taken",
        )
    sizes = await _list_objects(asking, seen, progress)
    gathering = _Gathering(asking, seen, sizes, progress)
    if isinstance(manifest, Manifest):
        await gathering.gather_from_manifest(manifest)
    else:
        await gathering.gather_from_objects(sorted(sizes))
    return seen


async def _read_owner(asking: RetryingCalls) -> str | None:
    """Return the cluster in the owner object, which was the last to write here."""
    try:
        return OwnerRecord.unpack(await asking.whole(OWNER)).cluster_id
    # Then the cluster is that of most objects.
    except (NoSuchObject, OwnedByOther, DamagedOwner):
        return None


async def read_usable_manifest(asking: RetryingCalls) -> Manifest | UnusableManifest:
    """Return the manifest of a tier, or why it cannot be used. Raises StoreError, and
    NewerFormatError for one of a newer program."""

    async def get(key: str) -> bytes:
        try:
            return await asking.whole(key)
        except NoSuchObject:
            raise LookupError(key) from None

    try:
        return await read_manifest_async(get)
    except NewerFormatError:
        raise
    except (NoManifest, LostManifest, FormatError) as failure:
        return failure


async def _list_objects(
    asking: RetryingCalls, seen: BucketEvidence, progress: Progress
) -> dict[bytes, int]:
    sizes: dict[bytes, int] = {}
    strange: list[str] = []
    async for page in asking.pages(SEGMENTS):
        for listed in page:
            uuid = segment_uuid(listed.key)
            if uuid is None:
                strange.append(listed.key)
            else:
                sizes[uuid] = listed.size_bytes
        progress("listing", len(sizes), len(sizes))
    if strange:
        shown = ", ".join(strange[:MAX_NAMED])
        seen.add_doubt(DoubtKind.UNREADABLE, f"{len(strange)} objects have strange names: {shown}")
    return sizes


class _Gathering:
    """The evidence gathered so far. `_newest`: number -> end offset its state was taken from."""

    def __init__(
        self,
        asking: RetryingCalls,
        seen: BucketEvidence,
        sizes: dict[bytes, int],
        progress: Progress,
    ) -> None:
        self._asking = asking
        self._seen = seen
        self._sizes = sizes
        self._progress = progress
        self._newest: dict[int, int] = {}

    async def gather_from_manifest(self, manifest: Manifest) -> None:
        """Gather evidence from the manifest, completed from objects."""
        seen, head = self._seen, manifest.state
        seen.has_manifest = True
        seen.cluster_id, seen.node_id = head.cluster_id, head.node_id
        cluster = manifest.cluster
        seen.next_partition = cluster.next_partition
        seen.last_producer_id = cluster.next_producer_id - 1
        seen.configs = cluster.configs
        for topic in head.topics:
            seen.topics[topic.id] = TopicSeen.from_topic(topic)
        for row in head.partitions:
            try:
                epochs = unpack_epochs(bytes(row.epochs))
            except FormatError as failure:
                seen.add_doubt(DoubtKind.MANIFEST, f"of partition {row.number}, {failure}")
                epochs = []
            epoch = max((each for each, _ in epochs), default=0)
            known = [pair for pair in epochs if pair[1] < row.end]
            seen.partitions[row.number] = PartitionSeen(
                row.number, log_start=row.log_start, next_offset=row.end, epoch=epoch, epochs=known
            )
        self._take_named_objects(manifest)
        seen.deleted_objects = sum(uuid in self._sizes for uuid in manifest.deleted)
        named = {each.object for each in seen.segments}
        others = sorted(self._sizes.keys() - named - manifest.deleted.keys())
        for tail, uuid in await self._read_footers(others):
            found = self._segment_of(uuid, tail)
            found.named = False
            seen.segments.append(found)
        await self._read_newest_states()

    def _take_named_objects(self, manifest: Manifest) -> None:
        seen, missing = self._seen, 0
        for row, each in enumerate(manifest.objects):
            size = self._sizes.get(each.uuid)
            # Incomplete objects are not read as unnamed ones, either.
            if size != each.size_bytes:
                missing += 1
                if missing <= MAX_NAMED:
                    how = "is not there" if size is None else f"has {size} bytes"
                    text = f"{segment_key(each.uuid)} of {each.size_bytes} bytes {how}"
                    seen.add_doubt(DoubtKind.MISSING, text)
                self._sizes.pop(each.uuid, None)
                continue
            seen.segments.append(
                SegmentSeen(
                    each.segment, each.created_ms, each.size_bytes, "", each.uuid, each.node_id,
                    each.generation, manifest.objects.classes[each.class_at], each.max_timestamp,
                    seen.cluster_id, manifest.object_entries(row),
                )
            )  # fmt: skip
        if missing > MAX_NAMED:
            text = f"and {missing - MAX_NAMED} more objects are not there or not whole"
            seen.add_doubt(DoubtKind.MISSING, text)

    async def _read_newest_states(self) -> None:
        """Read producers, which no manifest has, from the object at each partition's end."""
        ends: dict[int, tuple[int, int]] = {}
        objects = self._seen.segments
        for at, found in enumerate(objects):
            for entry in found.entries:
                if entry.end_offset > ends.get(entry.number, (-1, 0))[0]:
                    ends[entry.number] = entry.end_offset, at
        # The footers of the others were read already, with their states.
        wanted = sorted({objects[at].object for _, at in ends.values() if objects[at].named})
        for tail, _ in await self._read_footers(wanted):
            self._take_states(tail)

    async def gather_from_objects(self, uuids: Iterable[bytes]) -> None:
        """Gather all evidence from the footers of the objects."""
        seen = self._seen
        nodes: Counter[int] = Counter()
        for tail, uuid in await self._read_footers(list(uuids)):
            found = self._segment_of(uuid, tail)
            seen.segments.append(found)
            if seen.cluster_id in (None, found.cluster_id) or found.cluster_id is None:
                self._take_topics(tail)
                self._take_states(tail)
                nodes[found.node_id] += 1
        if nodes:
            seen.node_id = nodes.most_common(1)[0][0]

    def _take_topics(self, tail: Tail) -> None:
        """Take topics from the newest object that describes them."""
        reported = {} if tail.origin is None else {topic.id: topic for topic in tail.origin.topics}
        made_ms = tail.header.created_ms
        for entry in tail.directory:
            topic = self._seen.topics.setdefault(
                entry.topic_id, TopicSeen(entry.topic_id, entry.topic, described=False, seen_ms=-1)
            )
            topic.numbers[entry.index] = entry.number
            topic.count = max(topic.count, entry.index + 1)
            says = reported.get(entry.topic_id)
            if says is not None and made_ms > topic.seen_ms:
                topic.name, topic.described, topic.seen_ms = entry.topic, True, made_ms
                topic.internal, topic.created_ms = says.internal, says.created_ms
                topic.configs, topic.count = says.configs, max(topic.count, says.partitions)

    async def _read_footers(self, uuids: list[bytes]) -> list[tuple[Tail, bytes]]:
        """Read the footers of these objects; unreadable ones become doubts."""

        async def read(uuid: bytes) -> Tail | str:
            key = segment_key(uuid)
            try:
                return await read_tail(self._asking, key, self._sizes[uuid])
            except (FormatError, NoSuchObject) as failure:
                return f"{key} cannot be read: {failure}"

        found = []
        footers = await side_by_side(uuids, read, "objects", self._progress)
        for uuid, tail in zip(uuids, footers, strict=True):
            if isinstance(tail, str):
                self._seen.add_doubt(DoubtKind.UNREADABLE, tail)
            else:
                found.append((tail, uuid))
        return found

    def _segment_of(self, uuid: bytes, tail: Tail) -> SegmentSeen:
        header, origin = tail.header, tail.origin
        made = SegmentSeen(
            header.uuid, header.created_ms, tail.trailer.file_size, "", uuid, header.node_id,
            max_timestamp=max((e.max_timestamp for e in tail.directory), default=-1),
            entries=tail.directory,
        )  # fmt: skip
        if origin is not None:
            made.cluster_id, made.generation = origin.cluster_id, origin.generation
            made.retention_class = origin.retention_class
        return made

    def _take_states(self, tail: Tail) -> None:
        """Take log starts, epochs and producers of each partition from the object with its end."""
        for entry in tail.directory:
            state = tail.states.get(entry.number)
            if state is None:
                continue
            partition = self._seen.get_or_add(entry.number)
            partition.log_start = max(partition.log_start, state.log_start)
            if entry.end_offset > self._newest.get(entry.number, -1):
                try:
                    self._take_state(partition, state, entry.end_offset)
                except FormatError as failure:
                    text = f"the state of {entry.topic}-{entry.index} is lost: {failure}"
                    self._seen.add_doubt(DoubtKind.UNREADABLE, text)
                    continue
                self._newest[entry.number] = entry.end_offset

    def _take_state(self, partition: PartitionSeen, state: PartitionState, end: int) -> None:
        epochs, producers = unpack_epochs(state.leader_epochs), unpack_producers(state.producers)
        partition.epoch = max(partition.epoch, *(epoch for epoch, _ in epochs), 0)
        if not self._seen.has_manifest:
            partition.epochs = [pair for pair in epochs if pair[1] < end]
        ids = [entry.producer_id for entry in producers]
        self._seen.last_producer_id = max([self._seen.last_producer_id, *ids])
        partition.producers = Producers()
        # Without batches after `end`, which are lost: a retry of them must be accepted.
        partition.producers.load(producers_at(producers, end))
