"""The Java client with a partition that gets another leader: it sends to the one that the error
names, though it would ask for the leader only after ten minutes, and Metadata names the old one.
"""

from __future__ import annotations

from pathlib import Path

from tests.java.conftest import Program
from tests.kit.moving_topic import moving_topic
from tests.kit.waiting import until


async def test_produce_and_fetch(program: Program, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    async with moving_topic(tmp_path) as moving:
        child = program("LeaderChange", moving.bootstrap, "t", str(moved))
        child.start()
        await until(lambda: "ready" in child.output or not child.running)
        await moving.move()
        moved.touch()
        await until(lambda: "read second" in child.output or not child.running)
        assert "sent 0" in child.output, child.output
        assert moving.second.table.find_by_name("t", 0).next_offset == 1
        child.kill()
