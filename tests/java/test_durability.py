"""A topic with durability=s3 with Kafka's tools: created, written, and read after the loss of the
data folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.java.brokers import TRANSACTIONS
from tests.java.conftest import run_tool
from tests.java.tools import ToolServer

pytestmark = pytest.mark.usefixtures("ours_only")


def test_records_of_tools_are_there_after_the_loss_of_the_folder(
    tool_server: ToolServer, tmp_path: Path
) -> None:
    settings = {**TRANSACTIONS, "tier.url": tmp_path / "tier", "durability": "s3"}
    metadata = ["--metadata", f"sqlite:///{tmp_path}/metadata.db"]
    lines = [f"value {i}" for i in range(50)]
    with BrokerProcess(tmp_path / "data", settings=settings, arguments=metadata) as broker:

        def run(tool: str, *arguments: str, data: str = "") -> str:
            return run_tool(
                tool_server, broker.bootstrap, tool, *arguments, "--topic", "t", data=data
            )

        run("TopicCommand", "--create")  # it refuses --config with settings that Kafka has not
        assert "durability=s3" in run("TopicCommand", "--describe")
        run("ConsoleProducer", "--command-property", "acks=all", data="\n".join(lines) + "\n")
        assert read(run, 20) == lines[:20]
        broker.kill()
        shutil.rmtree(broker.data)
        broker.start()
        # The group continues where the first consumer has committed.
        assert read(run, 30) == lines[20:]


def read(run: Callable[..., str], count: int) -> list[str]:
    """Read records as a member of a group; the tool prints advice after them."""
    limits = ("--from-beginning", "--timeout-ms", "30000", "--max-messages", str(count))
    return run("ConsoleConsumer", "--group", "g", *limits).splitlines()[:count]
