"""Records of a bucket, of a data folder or of a broker, read and searched from Python.

`open_bucket`, `open_folder` and `open_broker` return a `TopicReader`, which lists topics and
partitions and reads by offset, by time or by key (docs/library.md). `segments` reads files without
a broker, `journals` the data folder of a stopped one, `broker` any Kafka; all implement `port`.
`kafkawire find` is made of it.

Spark and SQL read columns instead of records: `catalog` lists topics and the files of their
offsets, `plan` splits ranges of offsets into tasks of about the same bytes, `read_task` reads a
task as Arrow batches with `decode`, from `files` and, for records that are in no segment yet, from
the broker (`tail`). `source` has the values that all of these share.

Easy to get wrong: a bucket has the records that were uploaded; a broker has newer ones in segments
and journals. While it runs only the broker itself can read its journals.
"""

from __future__ import annotations

from kafkawire.client.security import NO_SECURITY, ClientSecurity
from kafkawire.extras import need
from kafkawire.progress import Progress, silent
from kafkawire.reading.files.traffic import ReadCost
from kafkawire.reading.model.records import PartitionBounds, TopicRecord, UnknownName
from kafkawire.reading.model.source import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    DamagedData,
    Source,
    SourceError,
)
from kafkawire.reading.port import Backend, OnDamage
from kafkawire.reading.reader import Moment, TopicReader

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
    need("reading", f"reading {url}")
    from kafkawire.reading.files.data_folder import is_data_folder
    from kafkawire.reading.files.locations import FolderPlace
    from kafkawire.reading.files.open import open_place
    from kafkawire.reading.segments import SegmentRecords

    source, place = Source(url, isolation=isolation), open_place(url)
    backend: Backend
    if isinstance(place, FolderPlace) and is_data_folder(place):
        from kafkawire.reading.journals import FolderRecords

        backend = FolderRecords(source, place)
    else:
        backend = SegmentRecords(source)
    return TopicReader(backend, on_damage=on_damage, progress=progress)


def open_folder(
    path: str,
    *,
    isolation: str = READ_COMMITTED,
    on_damage: OnDamage | None = None,
    progress: Progress = silent,
) -> TopicReader:
    """Open the data folder of a stopped broker, with the tiers that its metadata names, or the
    folder of a tier. Raises SourceError if there is neither a manifest nor a journal.

    No broker can start in the folder until the reader is closed. If one is running, records that
    are only in its journals are not read: `TopicReader.unread`.
    """
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
