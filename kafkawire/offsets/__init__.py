"""Native offsets: the sequential number of each record of a partition, as a library.

The names below are public: assign, store, recover, subscribe (docs/offsets.md). Each is imported on
first use, so that the library imports neither the broker nor SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.client.errors import ClientError
    from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
    from kafkawire.metadata.sql import open_metadata
    from kafkawire.metadata.store import MetadataError
    from kafkawire.offsets.catalog.kv.rocksdb import RocksStorage
    from kafkawire.offsets.catalog.port import (
        PartitionRow,
        SegmentCatalog,
        SegmentRange,
        SegmentRow,
        StaleSwap,
        StorageMetrics,
        StoredStats,
        Swap,
    )
    from kafkawire.offsets.catalog.sql.storage import SqlStorage
    from kafkawire.offsets.integration import LiveSource, OffsetIntegration
    from kafkawire.offsets.manager import PartitionOffsetManager
    from kafkawire.offsets.registry import (
        OffsetAssigner,
        OffsetMetrics,
        OffsetRegistry,
        PartitionStats,
        partition_stats,
        recovered_next_offset,
        total_lag,
    )
    from kafkawire.offsets.storage.memory import MemoryRows, MemoryStorage
    from kafkawire.offsets.subscription import OffsetSource, Seeker, Subscriber, Subscription
    from kafkawire.offsets.types import (
        OffsetOutOfRange,
        OffsetRange,
        OffsetType,
        validate_offset_range,
    )

__all__ = [
    "Checkpoint",
    "ClientError",
    "LiveSource",
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
    "OffsetType",
    "PartitionCheckpoint",
    "PartitionOffsetManager",
    "PartitionRow",
    "PartitionStats",
    "RocksStorage",
    "Seeker",
    "SegmentCatalog",
    "SegmentRange",
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

_MODULES = {
    "Checkpoint": "kafkawire.metadata.checkpoint",
    "ClientError": "kafkawire.client.errors",
    "LiveSource": "kafkawire.offsets.integration",
    "SegmentRange": "kafkawire.offsets.catalog.port",
    "MemoryRows": "kafkawire.offsets.storage.memory",
    "MemoryStorage": "kafkawire.offsets.storage.memory",
    "MetadataError": "kafkawire.metadata.store",
    "OffsetAssigner": "kafkawire.offsets.registry",
    "OffsetIntegration": "kafkawire.offsets.integration",
    "OffsetMetrics": "kafkawire.offsets.registry",
    "OffsetOutOfRange": "kafkawire.offsets.types",
    "OffsetRange": "kafkawire.offsets.types",
    "OffsetRegistry": "kafkawire.offsets.registry",
    "OffsetSource": "kafkawire.offsets.subscription",
    "SegmentCatalog": "kafkawire.offsets.catalog.port",
    "OffsetType": "kafkawire.offsets.types",
    "PartitionCheckpoint": "kafkawire.metadata.checkpoint",
    "PartitionOffsetManager": "kafkawire.offsets.manager",
    "PartitionRow": "kafkawire.offsets.catalog.port",
    "PartitionStats": "kafkawire.offsets.registry",
    "RocksStorage": "kafkawire.offsets.catalog.kv.rocksdb",
    "Seeker": "kafkawire.offsets.subscription",
    "SegmentRow": "kafkawire.offsets.catalog.port",
    "SqlStorage": "kafkawire.offsets.catalog.sql.storage",
    "StaleSwap": "kafkawire.offsets.catalog.port",
    "StorageMetrics": "kafkawire.offsets.catalog.port",
    "StoredStats": "kafkawire.offsets.catalog.port",
    "Subscriber": "kafkawire.offsets.subscription",
    "Subscription": "kafkawire.offsets.subscription",
    "Swap": "kafkawire.offsets.catalog.port",
    "open_metadata": "kafkawire.metadata.sql",
    "partition_stats": "kafkawire.offsets.registry",
    "recovered_next_offset": "kafkawire.offsets.registry",
    "total_lag": "kafkawire.offsets.registry",
    "validate_offset_range": "kafkawire.offsets.types",
}

_FORMER = {"Mapping": "SegmentRange", "OffsetStorage": "SegmentCatalog"}
"""Names of earlier versions, kept for storages that use them."""


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name in _FORMER:
        return __getattr__(_FORMER[name])
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
