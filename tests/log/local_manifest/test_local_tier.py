"""The local manifest of a broker with a remote tier: segments leave the disk, are downloaded,
cleaned and deleted, and the process is killed at steps of all that.

At any moment the manifest in the folder is true: what it lists is there with its records, and only
what is in the remote tier alone is missing.
"""

from __future__ import annotations

import logging

import pytest

from kafkawire.codec.format_errors import FormatError
from kafkawire.log.local_manifest.service import LocalManifest
from kafkawire.manifest.reader import LostManifest, NoManifest
from kafkawire.offsets.catalog.port import LIVE
from tests.kit.log.local_manifest import read_local, writer_of
from tests.kit.log.logs import FOLDER
from tests.kit.tier.crash_points import Points
from tests.kit.tier.life import Life
from tests.kit.tier.world import TierWorld, read_partition
from tests.tiering.test_crash_points import STRIDE as ALL
from tests.tiering.test_crash_points import (
    Act,
    cleaning,
    deletion,
    disabling,
    local_retention,
    topic_deletion,
)

ACTS: list[Act] = [cleaning, deletion, disabling, local_retention, topic_deletion]
STRIDE = 10 * ALL


class ManifestLife(Life):
    """One process, with both listeners."""

    async def start(self) -> None:
        await super().start()
        self.manifest = LocalManifest(self.env, self.log, self.storage, self.catalog)
        self.manifest.start()

    async def close(self) -> None:
        await self.tiering.close()
        await self.log.upkeep.stop()
        await self.manifest.close()
        await super().close()

    async def settle(self) -> None:
        """Settle like other lives; then check the folder."""
        await super().settle()
        await self.env.sleep(5.0)
        assert self.manifest.settled
        manifest = read_local(self.world.fs, FOLDER)
        store = self.log.segments.store
        here = {s.row.uuid for s in store.by_id.values() if s.row.state == LIVE and s.row.local}
        assert {manifest.objects.uuid(at) for at in range(len(manifest.objects))} == here
        assert set(manifest.topics) == set(self.catalog.by_name)
        for partition in await self.partitions():
            rows = partition.segments
            wanted = [
                (max(base, partition.log_start), end)
                for base, end, segment in zip(rows.base, rows.end, rows.segment, strict=True)
                if store.is_local(segment)
            ]
            found = [(span.base, span.end) for span in manifest.spans(partition.number)]
            assert _joined(found) == _joined(wanted)
            row = manifest.get_partition(partition.number)
            if row is not None:
                assert row.log_start == partition.log_start
                assert row.end == max(partition.log_start, partition.cut_offset)
            assert await read_partition(partition, partition.log_start) is not None


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for base, end in ranges:
        if joined and joined[-1][1] == base:
            joined[-1] = joined[-1][0], end
        elif base < end:
            joined.append((base, end))
    return joined


def live(act: Act, fatal: int) -> Points:
    """A life that may die at a point, and the one after it."""
    world = TierWorld(1)
    points = Points(fatal)
    first = ManifestLife(world, points)

    async def begin() -> None:
        await act(first)
        points.on = False
        await first.settle()
        await first.close()

    first.run(begin)
    if points.dead:
        try:
            read_local(world.fs, FOLDER)
        except (NoManifest, LostManifest, FormatError):
            assert not getattr(first.manifest.maintained, "attached", False)
    second = ManifestLife(world)

    async def go_on() -> None:
        await second.start()
        await second.settle()
        maintained = writer_of(second.manifest)
        assert maintained is not None
        assert maintained.rebuilds == bool(points.dead)
        await second.close()

    second.run(go_on)
    return points


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_folder_lists_local_segments(act: Act) -> None:
    logging.disable(logging.CRITICAL)
    try:
        points = live(act, -1)
        assert len(points.names) > 10
        for fatal in range(3, len(points.names), STRIDE):
            live(act, fatal)
    finally:
        logging.disable(logging.NOTSET)
