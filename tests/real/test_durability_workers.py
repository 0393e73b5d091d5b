"""`serve --workers` with durability=s3: a worker is killed, all lose their folder, and a worker is
replaced by a process elsewhere.

Covers: kafkawire.log.object_logs, kafkawire.supervisor.worker, kafkawire.supervisor.run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kafkawire.server.service_manager import SUPERSEDED_CODE
from kafkawire.testing.process import BrokerProcess
from tests.kit.cluster import SETTINGS, metadata_url
from tests.kit.history.clients import RecordedLoad
from tests.kit.ports import free_port
from tests.kit.waiting import wait_until
from tests.kit.workers import Workers

pytestmark = [pytest.mark.real, pytest.mark.slow]

TOPIC, PARTITIONS = "load", 4
ENDED_WITHIN_S = 60.0


@pytest.fixture
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    return metadata_url("postgresql", tmp_path, request)


@pytest.fixture
def workers(tmp_path: Path, url: str, tier_url: str) -> Iterator[Workers]:
    settings = {"tier.url": tier_url, "durability": "s3"}
    ports = [free_port(), free_port()]
    with Workers(
        tmp_path / "data", arguments=("--metadata", url), settings=settings, ports=ports
    ) as made:
        yield made


def kill_all(workers: Workers) -> None:
    """Kill the supervisor and its workers."""
    children = [psutil.Process(pid) for pid in workers.worker_pids().values()]
    for each in children:
        each.kill()
    workers.kill()
    _, alive = psutil.wait_procs(children, ENDED_WITHIN_S)
    assert not alive


def test_workers_that_are_killed_or_lose_their_folder_have_everything(
    workers: Workers, tmp_path: Path
) -> None:
    assert set(workers.create(TOPIC, PARTITIONS)) == {1, 2}
    with RecordedLoad(workers.bootstrap, TOPIC, PARTITIONS) as load:
        load.wait_for_progress()
        load.history.fault("kill worker 2")
        workers.wait_for_worker(2, other_than=workers.kill_worker(2))
        load.heal()
        load.history.fault("kill all, delete the folder")
        kill_all(workers)
        shutil.rmtree(workers.data)
        workers.start()
        load.heal()
    assert load.findings(workers.bootstrap, tmp_path / "history") == []
    assert workers.output.count("appended what") == 2


def test_worker_whose_broker_was_started_elsewhere_is_not_started_again(
    workers: Workers, tmp_path: Path, url: str, tier_url: str
) -> None:
    workers.create(TOPIC, PARTITIONS)
    settings = {**SETTINGS, "tier.url": tier_url, "durability": "s3"}
    others = [
        BrokerProcess(
            tmp_path / f"other-{node}",
            settings={**settings, "node.id": node},
            arguments=["--metadata", url],
        )
        for node in (2, 1)
    ]
    try:
        for other, left in zip(others, ({1}, set()), strict=True):
            node = int(other.settings["node.id"])
            other.start()
            wait_until(lambda: set(workers.worker_pids()) == left, "the end of the worker")  # noqa: B023
            line = f"broker {node} was started elsewhere, its worker has ended and is not started"
            wait_until(lambda: line in workers.output, "the line")  # noqa: B023
            if left:
                assert workers.running
        wait_until(lambda: not workers.running, "the end of the supervisor")
        assert workers._child is not None
        assert workers._child.returncode == SUPERSEDED_CODE
        assert all(each.running for each in others)
    finally:
        for each in others:
            each.kill() if each.running else each.stop()
