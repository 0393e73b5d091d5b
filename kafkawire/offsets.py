"""The offset system as a library: assign, store, recover, subscribe. See docs/offsets.md.

Brings no broker and no SQLAlchemy; an SQL storage imports it when it needs it.
"""

from __future__ import annotations

from kafkawire.client.errors import ClientError
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.metadata.store import MetadataError, open_metadata
from offsets.integration import OffsetIntegration
from offsets.live import LiveSource
from offsets.manager import PartitionOffsetManager
from offsets.memory_storage import MemoryRows, MemoryStorage
from offsets.registry import OffsetAssigner, OffsetRegistry, recovered_next_offset
from offsets.rocks_storage import RocksStorage
from offsets.sql_storage import SqlStorage
from offsets.stats import OffsetMetrics, PartitionStats, partition_stats, total_lag
from offsets.storage import (
    Mapping,
    OffsetStorage,
    PartitionRow,
    SegmentRow,
    StaleSwap,
    StorageMetrics,
    StoredStats,
    Swap,
)
from offsets.subscription import OffsetSource, Seeker, Subscriber, Subscription
from offsets.types import OffsetOutOfRange, OffsetRange, OffsetType, validate_offset_range

__all__ = [
    "Checkpoint",
    "ClientError",
    "LiveSource",
    "Mapping",
    "MemoryRows",
    "MemoryStorage",
    "MetadataError",
    "OffsetAssigner",
    "OffsetIntegration",
    "OffsetMetrics",
    "OffsetOutOfRange",
    "OffsetRange",
    "OffsetRegistry",
    "OffsetSource",
    "OffsetStorage",
    "OffsetType",
    "PartitionCheckpoint",
    "PartitionOffsetManager",
    "PartitionRow",
    "PartitionStats",
    "RocksStorage",
    "Seeker",
    "SegmentRow",
    "SqlStorage",
    "StaleSwap",
    "StorageMetrics",
    "StoredStats",
    "Subscriber",
    "Subscription",
    "Swap",
    "open_metadata",
    "partition_stats",
    "recovered_next_offset",
    "total_lag",
    "validate_offset_range",
]
