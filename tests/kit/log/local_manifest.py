"""The manifest in a broker's folder, read like a reader that has no broker, and compared with the
log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from kafkawire.codec.batches import Record, iter_batches, records
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.local_manifest.maintenance import MaintainedManifest
from kafkawire.log.local_manifest.service import LocalManifest
from kafkawire.log.manager import Log
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.store.segment_store import SegmentStore
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import segment_key
from kafkawire.manifest.reader import read_manifest, refresh_manifest
from kafkawire.offsets.catalog.port import LIVE
from tests.kit.env import OffloadWorker
from tests.kit.log.logs import FOLDER, read_all
from tests.kit.tier.local import LocalWorld
from tests.kit.waiting import until

Row = tuple[int, bytes | None]


def reader(fs: FileSystem, folder: str) -> Callable[[str], bytes]:
    """Files by key."""

    def get(key: str) -> bytes:
        file = fs.open(f"{folder}/{key}")
        return file.pread(file.size(), 0)

    return get


def read_local(fs: FileSystem, folder: str, known: Manifest | None = None) -> Manifest:
    """The manifest of a folder; `known`: an older one. NoManifest, LostManifest, FormatError."""
    get = reader(fs, folder)
    return read_manifest(get) if known is None else refresh_manifest(known, get)


def writer_of(manifest: LocalManifest) -> MaintainedManifest | None:
    """The writer of a local manifest; None until its module is loaded."""
    writer = manifest.maintained
    assert writer is None or isinstance(writer, MaintainedManifest)
    return writer


def offsets_of(manifest: Manifest, number: int) -> tuple[int, int]:
    """(log start, end) of a partition; every offset between them must be covered exactly once."""
    row = manifest.get_partition(number)
    if row is None:
        return 0, 0
    at = row.log_start
    for span in manifest.spans(number):
        assert span.base == at, f"offsets {at} to {span.base} of {number} are in nothing"
        at = span.end
    assert at == row.end, f"offsets {at} to {row.end} of {number} are in nothing"
    return row.log_start, row.end


def rows_of(get: Callable[[str], bytes], manifest: Manifest, number: int) -> list[Row]:
    """(offset, value) of every record. FileNotFoundError if a segment is gone."""
    found: list[Row] = []
    for span in manifest.spans(number):
        entry = manifest.entries[span.entry]
        data = get(segment_key(manifest.objects.uuid(span.object)))
        part = data[entry.start : entry.start + entry.length]
        for position, _ in iter_batches(part):
            for record in records(part, position):
                assert isinstance(record, Record)
                if span.base <= record.offset < span.end:
                    value = None if record.value is None else bytes(record.value)
                    found.append((record.offset, value))
    return found


def check_settled(
    fs: FileSystem,
    folder: str,
    store: SegmentStore,
    partitions: Mapping[int, Partition],
    logged: Mapping[int, list[Row]] | None = None,
    known: Manifest | None = None,
) -> None:
    """Check, once no change is in progress, that the manifest matches the log below each cut
    offset; `logged` is compared, too."""
    manifest, get = read_local(fs, folder, known), reader(fs, folder)
    living = {s.row.uuid for s in store.by_id.values() if s.row.state == LIVE and s.row.local}
    assert {manifest.objects.uuid(at) for at in range(len(manifest.objects))} == living
    for number, partition in partitions.items():
        start, end = offsets_of(manifest, number)
        cut = max(partition.cut_offset, partition.log_start)
        if cut or end:
            assert (start, end) == (partition.log_start, cut)
        if logged is None:
            continue
        wanted = [row for row in logged[number] if row[0] < partition.cut_offset]
        assert rows_of(get, manifest, number) == wanted


class ManifestWorld(LocalWorld):
    """A broker with a local manifest, in which a test triggers each cut and upload."""

    manifest: LocalManifest

    async def start(self, *, load: bool = True) -> Log:
        assert isinstance(self.env.worker, OffloadWorker)
        self.env.worker._closed = False  # each process has its own
        log = await super().start(load=load)
        self.manifest = LocalManifest(self.env, log, self.storage, self.catalog)
        self.manifest.start()
        return log

    async def complete_manifest(self) -> Manifest:
        """The manifest once it is complete; it is compared with the log."""
        await self.written()
        partitions = self.log.partitions
        logged = {
            number: [row for row in await read_all(partition) if row[0] < partition.cut_offset]
            for number, partition in partitions.items()
            if all(map(self.log.segments.store.is_local, partition.segments.segment))
        }
        store = self.log.segments.store
        check_settled(self.fs, FOLDER, store, {n: partitions[n] for n in logged}, logged)
        return read_local(self.fs, FOLDER)

    async def written(self) -> None:
        await until(lambda: self.manifest.settled and not self._folding, "the manifest at rest")

    @property
    def _folding(self) -> bool:
        maintained = writer_of(self.manifest)
        return maintained is not None and maintained.folding is not None

    async def end(self) -> None:
        """End cleanly, like Broker.close."""
        await self.log.upkeep.stop()
        await self.manifest.close()
        await self.log.close()

    async def restart(self) -> Log:
        await self.end()
        return await self.start()

    @property
    def damaged(self) -> bool:
        """Whether a fold has found that the chain cannot be read."""
        maintained = writer_of(self.manifest)
        return maintained is not None and maintained._folder.damaged

    def names(self) -> list[str]:
        """Files of the manifest."""
        return self.fs.listdir(f"{FOLDER}/manifest")

    def states(self) -> dict[str, bytes]:
        """All manifest files, with their bytes."""
        folder = f"{FOLDER}/manifest"
        return {name: bytes(self.fs.files[f"{folder}/{name}"].data) for name in self.names()}

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, like the topic service."""
        info = self.catalog.by_name[name]
        await self.metadata.delete_topics([info.id])
        self.catalog.remove_topic(info.id)
        self.log.remove_topic(info)
        await self.log.commit_log.wait_until_committed()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the delays of manifest writes that let several changes go into one delta."""
    monkeypatch.setattr("kafkawire.log.local_manifest.service.LINGER_S", 0.0)
    monkeypatch.setattr("kafkawire.log.local_manifest.service.RETRY_S", 0.001)


@asynccontextmanager
async def begun(cuts: int = 1) -> AsyncIterator[ManifestWorld]:
    """A broker whose topic has several segments, and records in its journals."""
    world = ManifestWorld()
    partition = await world.begin()
    for _ in range(cuts):
        await world.fill(partition, 40)
        await world.cut()
    try:
        yield world
    finally:
        await world.end()


def flip(world: ManifestWorld, name: str) -> None:
    data = world.fs.files[f"{FOLDER}/manifest/{name}"].data
    data[len(data) // 2] ^= 1


def cut_short(world: ManifestWorld, name: str) -> None:
    data = world.fs.files[f"{FOLDER}/manifest/{name}"].data
    del data[len(data) // 2 :]


def remove(world: ManifestWorld, name: str) -> None:
    del world.fs.files[f"{FOLDER}/manifest/{name}"]
