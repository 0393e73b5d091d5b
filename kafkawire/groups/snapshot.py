"""Where the snapshot of a partition of `__consumer_offsets` is (format: coordination.snapshot).

Pure; used by kafkawire.groups.coordinator and by backups.
"""

from __future__ import annotations

from kafkawire.coordination.snapshot import SnapshotLocation

MAGIC = b"KWGROUPS"


def group_snapshot(folder: str, topic_id: bytes, partition: int) -> SnapshotLocation:
    """Return the location; `folder`: that of the groups of a broker."""
    return SnapshotLocation(folder, topic_id, partition, MAGIC, "offsets")
