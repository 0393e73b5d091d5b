"""`kafkawire backup DEST`: metadata, offsets and committed group offsets of a running broker.

    DEST/manifest.json                       the files, each with size and SHA-256
    DEST/metadata.db                         all tables, as an SQLite file (metadata.copies)
    DEST/groups/<node>/offsets-N.snapshot    live records of __consumer_offsets
    (kafkawire.coordination.snapshot)

Group offsets are read first, then the metadata, then the ends of the logs, so that no committed
offset is beyond the stored end of its log. Records are not copied. The backup is written to
DEST.unfinished, which is renamed when it is complete and removed after a failure.
kafkawire.cli.restore.from_backup restores it.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.new_folder import new_folder
from kafkawire.cli.shared.outcomes import connect_cluster
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import LOCAL, Data, Json, Metadata, Server
from kafkawire.cli.shared.paths import check_metadata_url, refuse_inside
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.fetching import fetch_next
from kafkawire.client.notation import OptionError
from kafkawire.client.offsets import EARLIEST, LATEST, leaders, list_offsets
from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, records
from kafkawire.codec.control import ABORT, COMMIT, read_marker
from kafkawire.codec.types import Buffer
from kafkawire.coordination import snapshot
from kafkawire.coordination.snapshot import Contents, PendingPair
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.metadata import copies, schema
from kafkawire.metadata.store import MetadataError
from kafkawire.plural import count

FORMAT = 1
MANIFEST = "manifest.json"
METADATA = "metadata.db"
UNFINISHED = ".unfinished"
GROUPS_TOPIC = "__consumer_offsets"
TOPICS_AT_ONCE = 500
"""Topics whose ends are requested together."""
At = tuple[int, bytes]
"""Offset and value of a record."""


def backup(
    dest: Annotated[str, typer.Argument(metavar="DEST", help="New folder for the backup.")],
    data: Data = "kafkawire-data",
    metadata: Metadata = "",
    server: Server = LOCAL,
    as_json: Json = False,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", hidden=True, help="Of a broker: DEST is in its folder.")
    ] = False,
) -> None:
    """Back up metadata and offsets of a running broker.

    The backup has topics, settings, offsets and committed offsets of groups, but no records, and
    is verified. To back up a stopped broker, copy its data folder.

    Examples:
      kafkawire backup /backups/today --data kafkawire-data
    """
    folder, source = Path(dest), Path(data) / METADATA
    try:
        if not dest or "\0" in dest:
            raise OptionError("DEST", dest, "a new folder")
        check_metadata_url("--metadata", metadata)
        if not scheduled:
            refuse_inside("DEST", dest)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            fail(f"{dest} is not empty: choose a new folder for the backup", 2)
        if not metadata and not source.is_file():
            fail(
                f"{source} does not exist: give the broker's data folder with --data, or "
                "its metadata URL with --metadata",
                2,
            )
    except OptionError as error:
        fail(error, 2)
    except OSError as error:
        fail(f"{error.filename} cannot be used: {error.strerror}", 2)

    with connect_cluster(server) as cluster:
        manifest, pairs = _build(cluster, folder.absolute(), str(source), metadata)
        if as_json:
            print_json(manifest)
        else:
            rows = manifest["rows"]
            print(
                f"{dest}: {count(rows['topics'], 'topic')}, "
                f"{count(rows['partitions'], 'partition')}, {count(pairs, 'group record')}, "
                f"{count(len(manifest['files']), 'file')}, verified"
            )


def _build(
    cluster: Cluster, folder: Path, source: str, metadata_url: str
) -> tuple[dict[str, Any], int]:
    """Write the complete folder or nothing; return its manifest and the number of group records."""
    try:
        with new_folder(folder, UNFINISHED) as building:
            pairs = _copy_groups(cluster, building)
            _copy_metadata(cluster, building, source, metadata_url)
            manifest = _write_manifest(building, pairs)
    except (MetadataError, OSError) as error:
        raise ClientError(str(error)) from None
    return manifest, pairs


def _copy_groups(cluster: Cluster, folder: Path) -> int:
    """Write snapshots of the live records of __consumer_offsets; return their number."""
    (topic,) = cluster.metadata([GROUPS_TOPIC]).topics
    if topic.error_code:  # no group has committed yet
        return 0
    count = 0
    for row in topic.partitions:
        if row.leader_id < 0:
            raise ClientError(f"{GROUPS_TOPIC}-{row.partition_index} has no leader")
        live = _live_records(cluster, row.leader_id, row.partition_index)
        if not live.next_offset:
            continue
        home = str((folder / "groups" / str(row.leader_id)).absolute())
        place = group_snapshot(home, topic.topic_id, row.partition_index)
        snapshot.write(DiskFileSystem(), place, live)
        if snapshot.read(DiskFileSystem(), place) != live:
            raise ClientError(f"{place.path} differs from what was written")
        count += len(live.pairs) + len(live.pending)
    return count


def _live_records(cluster: Cluster, node: int, index: int) -> Contents:
    """Return the live records of a partition, up to its present end."""
    place = (GROUPS_TOPIC, index)
    offset = list_offsets(cluster, {place: EARLIEST}, {place: node})[place]
    end = list_offsets(cluster, {place: LATEST}, {place: node})[place]
    live = LiveRecords()
    while offset < end:
        got, after = fetch_next(cluster, node, place, offset)
        for position, head in got.batches():
            if not got.sound(position, head):
                raise ClientError(
                    f"{GROUPS_TOPIC}-{index}: CRC mismatch at offset {head.base_offset}"
                )
            live.add(got.records, position, head, offset, end)
        offset = after
    return live.contents(end)


class LiveRecords:
    """The live records of a partition of `__consumer_offsets`, as a snapshot stores them: the last
    value of each key that has one, and the values of open transactions by producer. Pure.

    Keys and values stay encoded, so that records of unknown types are kept. Records of a
    transaction become live with its commit marker, unless a later record of their key is live
    already."""

    __slots__ = ("_live", "_pending")

    def __init__(self) -> None:
        self._live: dict[bytes, At] = {}
        self._pending: dict[int, dict[bytes, At]] = {}

    def add(self, buffer: Buffer, position: int, head: BatchHead, first: int, end: int) -> None:
        """Apply the records of a batch with offsets from `first` on, below `end`. Raises KafkaError
        for invalid bytes."""
        if head.attributes & CONTROL:
            kind = read_marker(buffer, position, head).kind
            if first <= head.base_offset < end and kind in (ABORT, COMMIT):
                self._end(head.producer_id, commit=kind == COMMIT)
            return
        into = self._live
        if head.attributes & TRANSACTIONAL:
            into = self._pending.setdefault(head.producer_id, {})
        for record in records(buffer, position):
            if not first <= record.offset < end or record.key is None:
                continue
            if record.value is not None:
                into[record.key] = record.offset, record.value
                continue
            for values in (self._live, *self._pending.values()):
                values.pop(record.key, None)

    def _end(self, producer_id: int, *, commit: bool) -> None:
        for key, found in self._pending.pop(producer_id, {}).items():
            if commit and found[0] > self._live.get(key, (-1, b""))[0]:
                self._live[key] = found

    def contents(self, next_offset: int) -> Contents:
        """Return them as the contents of a snapshot of the records below `next_offset`."""
        found = sorted(
            (offset, PendingPair(producer_id, self._is_later(key, offset), key, value))
            for producer_id, values in self._pending.items()
            for key, (offset, value) in values.items()
        )
        live = [(key, value) for key, (_, value) in self._live.items()]
        return Contents(next_offset, live, [pair for _, pair in found])

    def _is_later(self, key: bytes, offset: int) -> bool:
        return self._live.get(key, (-1, b""))[0] > offset


def _copy_metadata(cluster: Cluster, folder: Path, source: str, url: str) -> None:
    target = str(folder / METADATA)
    if url and not url.startswith("sqlite"):
        copies.export(url, target)
    else:
        copies.copy_sqlite(url.partition(":///")[2] or source, target)
    cluster_id, living = copies.contents(target)
    served = cluster.metadata([]).cluster_id
    if served != cluster_id:
        raise ClientError(
            f"the broker belongs to cluster {served}, the metadata to cluster {cluster_id}: "
            "--server and --data must name the same broker"
        )
    numbers: dict[str, dict[int, int]] = {}
    for name, index, number in living:
        numbers.setdefault(name, {})[index] = number
    copies.enter_ends(target, _ends(cluster, numbers))


def _ends(cluster: Cluster, numbers: dict[str, dict[int, int]]) -> list[copies.End]:
    """Return log start and log end offset of every partition that ever had a record."""
    found: list[copies.End] = []
    names = sorted(numbers)
    for at in range(0, len(names), TOPICS_AT_ONCE):
        some = names[at : at + TOPICS_AT_ONCE]
        there = {t.name for t in cluster.metadata(some).topics if not t.error_code}
        led_by = leaders(cluster, there)  # a topic may have been deleted since the copy
        low = list_offsets(cluster, dict.fromkeys(led_by, EARLIEST), led_by)
        for (name, index), end in list_offsets(
            cluster, dict.fromkeys(led_by, LATEST), led_by
        ).items():
            number = numbers[name].get(index)
            if end and number is not None:
                found.append((number, low[name, index], end))
    return found


def _write_manifest(folder: Path, pairs: int) -> dict[str, Any]:
    """Verify the written files, then write the manifest durably."""
    copies.check(str(folder / METADATA))
    files = {
        str(path.relative_to(folder)): describe(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = {
        "format": FORMAT,
        "made_by": f"kafkawire {version('kafkawire')}",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": schema.REVISION,
        "rows": copies.counts(str(folder / METADATA)),
        "group_records": pairs,
        "files": files,
    }
    sync(folder)
    new = folder / f"{MANIFEST}.new"
    new.write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    sync(folder)
    new.rename(folder / MANIFEST)
    sync(folder)
    return manifest


def describe(path: Path) -> dict[str, Any]:
    """Return size and checksum of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def sync(folder: Path) -> None:
    """Sync files and folders to disk, the folder itself last."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        else:
            DiskFileSystem().sync_dir(str(path))
    DiskFileSystem().sync_dir(str(folder))
