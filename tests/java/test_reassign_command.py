"""kafka-reassign-partitions moves partitions between two workers of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.java.tools import ToolServer
from tests.kit.cluster import QUIET
from tests.kit.waiting import wait_until
from tests.kit.workers import Workers

COMMAND = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("reassigned") / "data") as running:
        addresses = re.findall(r"worker \d serves at (\S+)", running.output)
        assert len(addresses) == 2
        for address in addresses:  # on a busy machine they may learn later of each other
            admin = AdminClient({"bootstrap.servers": address, "log_level": QUIET})
            wait_until(lambda: len(admin.list_topics(timeout=30).brokers) == 2, "both workers")  # noqa: B023
        yield running


def plan_file(folder: Path, topic: str, leaders: dict[int, int]) -> str:
    rows = [{"topic": topic, "partition": n, "replicas": [led]} for n, led in leaders.items()]
    path = folder / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(path)


def reassign(tools: ToolServer, workers: Workers, *words: str, code: int = 0) -> str:
    done = tools.run(COMMAND, ["--bootstrap-server", workers.bootstrap, *words], "", 90)
    assert done.code == code, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_plan_is_executed_and_verified(
    tool_server: ToolServer, workers: Workers, tmp_path: Path
) -> None:
    workers.create("t", 4)
    wanted = {0: 2, 1: 2, 2: 2, 3: 1}
    file = ("--reassignment-json-file", plan_file(tmp_path, "t", wanted))
    done = reassign(tool_server, workers, *file, "--execute")
    assert "Successfully started partition reassignments for" in done
    wait_until(lambda: workers.leaders_of("t", 4) == wanted, "the moves")
    found = reassign(tool_server, workers, *file, "--verify")
    assert found.count("is completed") == 4
    assert "No partition reassignments found" in reassign(tool_server, workers, "--list")
    cancelled = reassign(tool_server, workers, *file, "--cancel")
    assert "None of the specified partition reassignments are active" in cancelled


def test_plan_of_the_tool_is_executed(
    tool_server: ToolServer, workers: Workers, tmp_path: Path
) -> None:
    workers.create("u", 2)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "u"}]}))
    words = ("--topics-to-move-json-file", str(topics), "--broker-list", "1,2", "--generate")
    *_, last = reassign(tool_server, workers, *words).strip().splitlines()
    plan: Any = json.loads(last)
    (tmp_path / "plan.json").write_text(last)
    wanted = {row["partition"]: row["replicas"][0] for row in plan["partitions"]}
    file = ("--reassignment-json-file", str(tmp_path / "plan.json"))
    reassign(tool_server, workers, *file, "--execute")
    wait_until(lambda: workers.leaders_of("u", 2) == wanted, "the moves")


def test_broker_that_is_not_there_is_refused(
    tool_server: ToolServer, workers: Workers, tmp_path: Path
) -> None:
    workers.create("v", 1)
    file = ("--reassignment-json-file", plan_file(tmp_path, "v", {0: 9}))
    refused = reassign(tool_server, workers, *file, "--execute", code=1)
    assert "9" in refused
