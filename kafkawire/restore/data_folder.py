"""Evidence from a data folder about topics, partitions and producers, without decisions.

Every frame up to the end of the log is read. The local manifest adds what only it has. Blocks:
nothing else runs.
"""

from __future__ import annotations

import os.path
from dataclasses import replace

from kafkawire.codec.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    CRC,
    CRC_FROM,
    HEAD,
    LAST_DELTA,
    LEADER_EPOCH,
    LENGTH,
    PRODUCER_ID,
    TRANSACTIONAL,
)
from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment.format import ORIGIN, PartitionState, read_header, read_origin
from kafkawire.codec.types import uuid_parse
from kafkawire.crc32c import crc32c
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.io.read_only_disk import ReadOnlyFileSystem
from kafkawire.log.journal.format import (
    BATCH_LENGTH_OVERHEAD,
    HEAD_BYTES,
    HEADER_BYTES,
    KIND_BATCH,
    KIND_NAMING,
    KIND_ROLL,
    KIND_TOPIC_DELETED,
    read_catalog,
    read_naming,
    topics_of,
)
from kafkawire.log.journal.ledger import bounds_of, expected_ledger
from kafkawire.log.journal.run_file import read_run
from kafkawire.log.journal.salvage import offsets_of
from kafkawire.log.journal.scan import marker_of
from kafkawire.log.recovery.recover import recover
from kafkawire.log.recovery.result import RecoveredJournal
from kafkawire.log.recovery.unknown_topics import frames
from kafkawire.log.segments.file.open import SUFFIX, SegmentFile
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.reader import LostManifest, NoManifest, read_manifest
from kafkawire.metadata.checkpoint import producers_at, unpack_epochs, unpack_producers
from kafkawire.progress import Progress
from kafkawire.restore.evidence import (
    FolderEvidence,
    PartitionSeen,
    SegmentSeen,
    SegmentShare,
    TopicSeen,
)

MAX_FILE_BYTES = 1 << 32
"""Largest file that is read; a larger one is no manifest (kafkawire.log.local_manifest.files)."""
NEWEST = 1 << 62
"""As a time: a catalog frame has none, and that of a segment comes first."""
Newest = dict[tuple[int, bytes], tuple[int, PartitionState]]
"""By partition number and topic id: the end of its newest segment, and its state there."""


def gather_from_folder(
    env: Env, home: str, progress: Progress, checkpoint: int = 0
) -> FolderEvidence:
    """Read all of `<data>/brokers/<node>`. `checkpoint`: the log position that SQL has, up to which
    all is committed; 0: SQL is lost. FormatError for journals or segments that a newer program has
    written, OSError from the disk."""
    seen = FolderEvidence()
    env = replace(env, fs=ReadOnlyFileSystem(env.fs))
    # Before the journals, whose replay begins with the epochs and producers of segments.
    _read_segments(env, os.path.join(home, "segments"), seen, progress)
    last = read_run(env.fs, home)
    clean_end = last.end if last is not None else -1
    ledger, _ = expected_ledger(env.fs, home, last)
    # The recovery of a start, on files that do not change: a rebuilt folder and its next start must
    # agree on the end of the log.
    recovered = recover(env, os.path.join(home, "journals"), checkpoint, clean_end, ledger)
    seen.recovered, seen.bounds = recovered, bounds_of(ledger)
    seen.damage = recovered.examined
    seen.journals = len(recovered.found)
    # What follows the last known commit is read too, but may not be durable: the next start writes
    # it again, from this log position on.
    claims = [found.extent().claimed for found in recovered.found]
    seen.log_position = min(max([0, clean_end, *claims]), recovered.written)
    for at, found in enumerate(recovered.found):
        progress("journals", at, len(recovered.found))
        _read_journal(env, found, seen)
    progress("journals", len(recovered.found), len(recovered.found))
    seen.has_manifest = add_local_manifest(env.fs, home, seen)
    return seen


def _read_segments(env: Env, folder: str, seen: FolderEvidence, progress: Progress) -> None:
    try:
        names = sorted(name for name in env.fs.listdir(folder) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return
    newest: Newest = {}
    for at, name in enumerate(names):
        progress("segments", at, len(names))
        path = os.path.join(folder, name)
        try:
            _read_segment(env, path, seen, newest)
        except NewerFormatError:
            raise
        except FormatError as failure:
            seen.unreadable.append((path, str(failure)))
    for (number, topic_id), (end, state) in newest.items():
        _begin_replay(seen.get_or_add(number, topic_id), end, state)
    progress("segments", len(names), len(names))


def _read_segment(env: Env, path: str, seen: FolderEvidence, newest: Newest) -> None:
    """Take all of a file, or nothing if it is damaged."""
    file = SegmentFile(env.fs, path)
    try:
        states = file.states()
        made = read_header(file.view[:HEADER_BYTES])
        one = SegmentSeen(made.uuid, made.created_ms, len(file.view), path)
        ids = [_last_producer_id(state) for state in states.values()]
        _note_origin(file, made.created_ms, seen)
    finally:
        file.close()
    seen.last_producer_id = max([seen.last_producer_id, *ids])
    seen.segments.append(one)
    for entry in file.directory:
        partition = seen.get_or_add(entry.number, entry.topic_id)
        partition.shares.append(SegmentShare(one, entry))
        partition.topic, partition.index = entry.topic, entry.index
        partition.next_offset = max(partition.next_offset, entry.end_offset)
        state = states.get(entry.number)
        if state is not None:
            partition.log_start = max(partition.log_start, state.log_start)
            key = entry.number, entry.topic_id
            if entry.end_offset > newest.get(key, (-1,))[0]:
                newest[key] = entry.end_offset, state


def _note_origin(file: SegmentFile, created_ms: int, seen: FolderEvidence) -> None:
    """Note the cluster and the topics a segment was written for, if it has an origin section."""
    section = file.trailer.optional(ORIGIN)
    if section is None:
        return
    try:
        origin = read_origin(file.read_section(section))
    # Its records are intact.
    except FormatError:
        return
    before = seen.clusters.get(origin.cluster_id, created_ms)
    seen.clusters[origin.cluster_id] = min(before, created_ms)
    for topic in origin.topics:
        seen.origins[topic.id] = topic


def _last_producer_id(state: PartitionState) -> int:
    # Only to verify the epochs, too: a damaged file must fail before anything of it is taken.
    unpack_epochs(state.leader_epochs)
    return max((entry.producer_id for entry in unpack_producers(state.producers)), default=-1)


def _begin_replay(partition: PartitionSeen, end: int, state: PartitionState) -> None:
    """Start from the newest segment's state."""
    # Without what was appended after its end: that may never have been committed, and committed
    # batches are replayed.
    partition.epochs = [pair for pair in unpack_epochs(state.leader_epochs) if pair[1] < end]
    partition.epoch = max((epoch for epoch, _ in partition.epochs), default=0)
    partition.producers.load(producers_at(unpack_producers(state.producers), end))
    partition.replay_from = end


def _read_journal(env: Env, found: RecoveredJournal, seen: FolderEvidence) -> None:
    journal = found.journal
    view = journal.warm(env.fs)
    named: dict[int, bytes] = {}
    for position, head, starts in frames(view, journal.number, journal.end):
        payload = view[position + HEAD_BYTES : position + HEAD_BYTES + head.length]
        if head.kind == KIND_BATCH:
            partition = seen.get_or_add(head.number, named.get(head.number, b""))
            _replay_batches(view, partition, starts, seen)
            partition.places.append(head.log_position)
            partition.ends.append(partition.ranges[-1][1])
        elif head.kind == KIND_NAMING:
            naming = read_naming(payload)
            named[head.number] = naming.topic_id
            partition = seen.get_or_add(head.number, naming.topic_id)
            partition.topic, partition.index = naming.topic, naming.index
            partition.log_start = max(partition.log_start, naming.log_start)
            partition.stored_start = max(partition.stored_start, naming.log_start)
            partition.next_offset = max(partition.next_offset, naming.next_offset)
            partition.epoch = max(partition.epoch, naming.leader_epoch)
        elif head.kind == KIND_TOPIC_DELETED:
            seen.deleted.add(uuid_parse(read_catalog(payload)["id"]))
        elif head.kind != KIND_ROLL:
            body = read_catalog(payload)
            if "cluster" in body:
                seen.clusters.setdefault(str(body["cluster"]), NEWEST)
            for topic in topics_of(body):
                topic_id = uuid_parse(topic["id"])
                # Removed first: topics are in the order of their newest frames.
                seen.topics.pop(topic_id, None)
                numbers = {index: number for number, index in topic["partitions"]}
                seen.topics[topic_id] = TopicSeen(
                    topic_id, topic["name"], configs=dict(topic["configs"]), count=len(numbers),
                    numbers=numbers,
                )  # fmt: skip
    del view
    journal.cool()


def _replay_batches(
    view: memoryview, partition: PartitionSeen, starts: list[int], seen: FolderEvidence
) -> None:
    for position in starts:
        fields = HEAD.unpack_from(view, position)
        base, epoch = fields[BASE_OFFSET], fields[LEADER_EPOCH]
        end = base + fields[LAST_DELTA] + 1
        stop = position + fields[LENGTH] + BATCH_LENGTH_OVERHEAD
        damaged = crc32c(view[position + CRC_FROM : stop]) != fields[CRC]
        # The frame's checksum covers the base offset and the epoch only.
        if damaged:
            end = base + offsets_of(view[position:stop])
        if partition.ranges and partition.ranges[-1][1] == base:
            partition.ranges[-1] = partition.ranges[-1][0], end
        else:
            partition.ranges.append((base, end))
        partition.next_offset = max(partition.next_offset, end)
        partition.epoch = max(partition.epoch, epoch)
        if not partition.epochs or epoch > partition.epochs[-1][0]:
            partition.epochs.append((epoch, base))
        if fields[PRODUCER_ID] >= 0 and not damaged:
            seen.last_producer_id = max(seen.last_producer_id, fields[PRODUCER_ID])
            if base >= partition.replay_from or not fields[ATTRIBUTES] & TRANSACTIONAL:
                partition.producers.replay(fields, marker_of(view, position, fields))


def add_local_manifest(fs: FileSystem, home: str, seen: FolderEvidence) -> bool:
    """Add log starts, broker settings and next numbers of the manifest in a broker's folder; return
    whether there is a readable one."""
    # It follows SQL by a second or two and is never ahead of it. It is not synced, so after a power
    # failure it may be unreadable or older: it only adds facts.
    try:
        manifest = read_manifest(lambda key: _read_file(fs, os.path.join(home, key)))
    except (NoManifest, LostManifest, FormatError, OSError):
        return False
    _add_manifest_topics(manifest, seen)
    cluster, head = manifest.cluster, manifest.state
    seen.configs = dict(cluster.configs)
    seen.next_partition = max(seen.next_partition, cluster.next_partition)
    seen.last_producer_id = max(seen.last_producer_id, cluster.next_producer_id - 1)
    seen.clusters.setdefault(head.cluster_id, head.created_ms)
    return True


def _add_manifest_topics(manifest: Manifest, seen: FolderEvidence) -> None:
    """Add topics that no frame describes, as the oldest, and log starts of known partitions."""
    owners: dict[int, bytes] = {}
    more = {}
    for topic in manifest.state.topics:
        owners.update(dict.fromkeys(topic.partitions, topic.id))
        if topic.id not in seen.topics and topic.id not in seen.deleted:
            more[topic.id] = TopicSeen.from_topic(topic)
    seen.topics = {**more, **seen.topics}
    for row in manifest.state.partitions:
        slot = seen.slot(row.number, owners.get(row.number, b""))
        partition = seen.partitions.get(slot) if slot is not None else None
        if partition is not None and partition.topic_id == owners.get(row.number):
            partition.log_start = max(partition.log_start, row.log_start)
            partition.stored_start = max(partition.stored_start, row.log_start)


def _read_file(fs: FileSystem, path: str) -> bytes:
    file = fs.open(path)
    try:
        if file.size() > MAX_FILE_BYTES:
            raise FormatError(f"{path} has {file.size()} bytes")
        return file.pread(file.size(), 0)
    finally:
        file.close()
