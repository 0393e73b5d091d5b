"""Facts that only the local manifest has: log starts, broker settings, next numbers.

The manifest (kafkawire.log.manifest) follows SQL by a second or two and is never ahead of it. It is
not synced, so after a power failure it may be unreadable or older; it only adds facts. Blocks.
"""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from kafkawire.codec.format_errors import FormatError
from kafkawire.log.io.ports import FileSystem
from kafkawire.manifest.reader import LostManifest, NoManifest, read_manifest
from kafkawire.restore.evidence import FolderEvidence, TopicSeen

if TYPE_CHECKING:
    from kafkawire.manifest.contents import Manifest

MAX_FILE_BYTES = 1 << 32
"""Largest file that is read; a larger one is no manifest (kafkawire.log.manifest.files)."""


def add_local_manifest(fs: FileSystem, home: str, seen: FolderEvidence) -> bool:
    """Add the facts of the manifest in a broker's folder; return whether there is a readable
    one."""
    try:
        manifest = read_manifest(lambda key: _read(fs, os.path.join(home, key)))
    except (NoManifest, LostManifest, FormatError, OSError):
        return False
    _topics(manifest, seen)
    cluster, head = manifest.cluster, manifest.state
    seen.configs = dict(cluster.configs)
    seen.next_partition = max(seen.next_partition, cluster.next_partition)
    seen.last_producer_id = max(seen.last_producer_id, cluster.next_producer_id - 1)
    seen.clusters.setdefault(head.cluster_id, head.created_ms)
    return True


def _topics(manifest: Manifest, seen: FolderEvidence) -> None:
    """Add topics that no frame describes, as older than all others, and log starts of known
    partitions."""
    owners: dict[int, bytes] = {}
    more = {}
    for topic in manifest.state.topics:
        owners.update(dict.fromkeys(topic.partitions, topic.id))
        if topic.id not in seen.topics and topic.id not in seen.deleted:
            more[topic.id] = TopicSeen.of(topic)
    seen.topics = {**more, **seen.topics}
    for row in manifest.state.partitions:
        slot = seen.slot(row.number, owners.get(row.number, b""))
        partition = seen.partitions.get(slot) if slot is not None else None
        if partition is not None and partition.topic_id == owners.get(row.number):
            partition.log_start = max(partition.log_start, row.log_start)
            partition.stored_start = max(partition.stored_start, row.log_start)


def _read(fs: FileSystem, path: str) -> bytes:
    file = fs.open(path)
    try:
        if file.size() > MAX_FILE_BYTES:
            raise FormatError(f"{path} has {file.size()} bytes")
        return file.pread(file.size(), 0)
    finally:
        file.close()
