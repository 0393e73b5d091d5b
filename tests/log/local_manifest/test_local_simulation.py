"""The local manifest in the simulation of the log: lives that end at any step.

A reader of the folder at any moment finds each offset below a partition's end in exactly one
segment, with the written record; after a power failure there may be no manifest, or one that cannot
be read, until the next start. At the end of each quiet life it matches the log.

Covers: kafkawire.log.local_manifest.maintenance, kafkawire.log.local_manifest.maintenance.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from kafkawire.codec.format_errors import FormatError
from kafkawire.fsck.report import FsckReport
from kafkawire.log.local_manifest.files import ManifestFiles
from kafkawire.log.local_manifest.maintenance import MaintainedManifest
from kafkawire.log.local_manifest.service import LocalManifest
from kafkawire.log.partition.index_eviction import evict
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.reader import Current, LostManifest, NoManifest
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.port import SegmentRow
from tests.kit.log.life import LIVES, QUIET_ROUNDS, Life
from tests.kit.log.local_manifest import (
    check_settled,
    offsets_of,
    read_local,
    reader,
    rows_of,
    writer_of,
)
from tests.kit.log.logs import FOLDER, read_all
from tests.kit.log.model import Model
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.simloop import run

SEEDS = int(os.environ.get("SIM_SEEDS", "10"))


class ManifestModel(Model):
    """`readable`: whether the folder must have a manifest that can be read; `calm`: SQL never
    fails, so that the mark of a clean end is trusted."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.readable = False
        self.known: Manifest | None = None
        self.calm = self.rng.random() < 0.5
        self.scans = self.settled = self.kept = self.believed = 0


class ManifestLife(Life):
    """A life with a local manifest, and readers of it."""

    model: ManifestModel

    @property
    def sql_fails(self) -> bool:
        return self.sql_is_bad and not self.model.calm

    @sql_fails.setter
    def sql_fails(self, bad: bool) -> None:
        self.sql_is_bad = bad

    async def start(self) -> None:
        self.scan(self.model.readable)
        await super().start()
        self.manifest = LocalManifest(
            self.env, self.log, self.log.segments.storage, self.log._catalog
        )
        self.manifest.start()
        self.lose_answers()
        self.looking = self.env.spawn(self.onlooker(), "onlooker")

    @contextmanager
    def after_each_write(self) -> Iterator[None]:
        """Read the manifest whenever a file of it was written."""
        write, begin = ManifestFiles.write, MaintainedManifest._begin

        def write_and_look(files: ManifestFiles, key: str, data: bytes) -> None:
            write(files, key, data)
            self.scan(self.attached, False)

        def begin_and_count(
            maintained: MaintainedManifest, current: Current, sequence: int
        ) -> None:
            self.model.believed += not maintained.rebuilds
            begin(maintained, current, sequence)

        with (
            patch.object(ManifestFiles, "write", write_and_look),
            patch.object(MaintainedManifest, "_begin", begin_and_count),
        ):
            yield

    def lose_answers(self) -> None:
        """Make SQL sometimes lose the response to changes of segments."""
        storage = self.log.segments.storage
        ask = storage.segments_by_id

        async def fail_or_ask(ids: Sequence[int]) -> list[SegmentRow]:
            if self.sql_fails and self.rng.random() < 0.2:
                raise MetadataError("the database is locked")
            return await ask(ids)

        storage.segments_by_id = fail_or_ask  # type: ignore[method-assign]

    @property
    def attached(self) -> bool:
        """Whether there must be a manifest."""
        maintained = self.manifest.maintained
        return maintained is not None and maintained.attached

    async def onlooker(self) -> None:
        while not self.over:
            await self.env.sleep(self.rng.random() * 0.1)
            self.scan(self.attached, self.rng.random() < 0.1)
            quiet = self.log.segments.swapper.quiet and not self.log.hooks.doubts
            if self.manifest.settled and quiet:
                self.model.settled += 1
                store = self.log.segments.store
                partitions = {p.number: p for p in self.partitions}
                check_settled(self.model.fs, FOLDER, store, partitions, None, self.model.known)

    def scan(self, must: bool, whole: bool = True) -> None:
        """Check what a reader finds now; `whole`: in the segments, too."""
        fs, model = self.model.fs, self.model
        try:
            # A reader that continues through all ends, and sometimes a new one.
            known = None if self.rng.random() < 0.05 else model.known
            manifest = model.known = read_local(fs, FOLDER, known)
        except (NoManifest, LostManifest, FormatError):
            assert not must
            return
        model.scans += 1
        values = dict(model.promised)
        for number in manifest.numbers:
            offsets_of(manifest, number)
            if not whole:
                continue
            try:
                rows = rows_of(reader(fs, FOLDER), manifest, number)
            except FileNotFoundError:  # its delay is over: the next manifest has another one
                assert model.config.file_delete_delay_ms < 1000 or not must
                continue
            assert len(dict(rows)) == len(rows)
            for offset, value in rows:
                assert values.get((number, offset), value) == value
                assert value in model.sent

    async def end(self, tasks: list[asyncio.Task[None]]) -> None:
        self.looking.cancel()
        model = self.model
        if self.attached:
            model.readable = True
        if self.rng.random() < 0.5:
            for task in tasks:
                task.cancel()
            self.over = True
            await self.log.upkeep.stop()
            await self.manifest.close()
        await super().end(tasks)
        if model.trace[-1][0] == "power":
            model.readable = False


class LastManifestLife(ManifestLife):
    """A life without writers."""

    async def main(self) -> None:
        self.sql_fails = False
        await self.start()
        for _ in range(QUIET_ROUNDS):
            await self.env.sleep(0.2)
            await self.log.segments.tend()
        await self.env.sleep(2.0)
        await self.check()
        partitions = {p.number: p for p in self.partitions}
        logged = {p.number: await read_all(p) for p in self.partitions}
        assert self.manifest.settled
        check_settled(self.model.fs, FOLDER, self.log.segments.store, partitions, logged)
        self.over = True
        await self.log.upkeep.stop()
        await self.manifest.close()
        await self.log.close()


async def no_fsck(*_: Any) -> Any:
    """Skip fsck, which the simulation of the log covers."""
    return FsckReport()


def simulate(seed: int) -> ManifestModel:
    model = ManifestModel(seed)
    # More space for files left over from processes without a reader.
    model.config.file_delete_delay_ms = model.rng.choice((0, 100, 100_000))
    with (
        patch("tests.kit.log.life.fsck", no_fsck),
        patch(
            "kafkawire.log.maintenance.indexer.evict",
            partial(evict, bytes_at_most=model.rng.choice((0, 1 << 20))),
        ),
        patch("kafkawire.log.segments.merge.plan.MAX_SMALL", model.rng.choice((2, 4, 32))),
        patch(
            "kafkawire.log.local_manifest.service.LINGER_S", model.rng.choice((0.001, 0.02, 0.2))
        ),
        patch(
            "kafkawire.log.local_manifest.maintenance.FOLDED_AFTER", model.rng.choice((2, 5, 100))
        ),
        patch("kafkawire.log.local_manifest.maintenance.KEPT_MS", model.rng.choice((0, 100))),
    ):
        for kind in [ManifestLife] * LIVES + [LastManifestLife]:
            model.fs.faults.__init__()  # type: ignore[misc]
            life = kind(model)
            with life.after_each_write():
                run(life.loop, life.main())
            writer = writer_of(life.manifest)
            model.kept += 0 if writer is None else writer.rebuilds
    return model


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_folder_matches_log_in_simulation(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
def test_simulation_reads_manifests() -> None:
    models: list[ManifestModel] = []
    with quiet():
        for seed in range(40):  # a start trusts a manifest in about one of four
            models.append(simulate(seed))
            if sum(model.believed for model in models) and len(models) >= 3:
                break
    assert sum(model.scans for model in models) > 100
    assert sum(model.kept for model in models) > 5
    assert sum(model.settled for model in models) > 20
    assert sum(model.believed for model in models) > 0
