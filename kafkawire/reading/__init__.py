"""Records of a bucket, of a data folder or of a broker, read and searched from Python.

`open_bucket`, `open_folder` and `open_broker` return a `TopicReader`, which lists topics and
partitions and reads by offset, by time or by key (docs/library.md). `segments` reads files without
a broker, `broker` any Kafka; both implement `port`. `kafkawire find` is made of it.

Easy to get wrong: a folder or bucket has the records that are in segments; a broker keeps newer
ones in its journals, which only the broker reads.
"""

from __future__ import annotations

from kafkawire.client.security import NO_SECURITY, ClientSecurity
from kafkawire.progress import Progress, silent
from kafkawire.reading.model import PartitionBounds, TopicRecord, UnknownName
from kafkawire.reading.port import OnDamage
from kafkawire.reading.reader import Moment, TopicReader
from kafkawire.spark.model.source import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    DamagedData,
    Source,
    SourceError,
)
from kafkawire.spark.source.files.traffic import ReadCost

__all__ = [
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "DamagedData",
    "Moment",
    "OnDamage",
    "PartitionBounds",
    "ReadCost",
    "SourceError",
    "TopicReader",
    "TopicRecord",
    "UnknownName",
    "open_broker",
    "open_bucket",
    "open_folder",
]


def open_bucket(
    url: str,
    *,
    isolation: str = READ_COMMITTED,
    on_damage: OnDamage | None = None,
    progress: Progress = silent,
) -> TopicReader:
    """Open a remote tier: s3://BUCKET/PREFIX with options as in `tier.url`. Credentials are those
    of boto3's environment. Raises SourceError if there is no manifest."""
    from kafkawire.reading.segments import SegmentRecords  # imports numpy

    backend = SegmentRecords(Source(url, isolation=isolation))
    return TopicReader(backend, on_damage=on_damage, progress=progress)


def open_folder(
    path: str,
    *,
    isolation: str = READ_COMMITTED,
    on_damage: OnDamage | None = None,
    progress: Progress = silent,
) -> TopicReader:
    """Open the data folder of a stopped broker, with the tiers that its metadata names, or the
    folder of a tier. Raises SourceError if there is no manifest."""
    return open_bucket(path, isolation=isolation, on_damage=on_damage, progress=progress)


def open_broker(
    server: str,
    *,
    isolation: str = READ_COMMITTED,
    security: ClientSecurity = NO_SECURITY,
    on_damage: OnDamage | None = None,
    progress: Progress = silent,
) -> TopicReader:
    """Open a cluster by HOST:PORT[,HOST:PORT...] of any Kafka brokers. Raises SourceError if none
    answers."""
    from kafkawire.reading.broker import BrokerRecords

    backend = BrokerRecords(server, isolation, security)
    return TopicReader(backend, on_damage=on_damage, progress=progress)
