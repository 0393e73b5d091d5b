"""fsck of a simulated world that no broker serves."""

from __future__ import annotations

from kafkawire.fsck.check import check
from kafkawire.fsck.report import FsckReport
from tests.kit.log.logs import FOLDER, World


async def scanned(world: World) -> FsckReport:
    """Scan the folder of a stopped broker, like the command."""
    return await check(world.env, FOLDER, 1, world.catalog, world.storage, world.metadata)
