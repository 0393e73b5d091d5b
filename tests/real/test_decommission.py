"""A machine is lost forever: another one runs its broker until that has nothing left and removes
itself.

Covers: kafkawire.cli.cluster.decommission, kafkawire.broker.following.removal.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.manifest.keys import (
    CONDITIONAL_PUT,
    CURRENT,
    DELTAS,
    LOGS,
    OWNER,
    SEGMENTS,
    SNAPSHOTS,
)
from tests.kit.history.clients import RecordedLoad
from tests.kit.machines import Machine, Machines, running
from tests.kit.minio import Minio
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.machines

TOPIC, PARTITIONS = "load", 6
SPREAD = [1, 2, 3, 1, 2, 3]
SETTINGS = {
    "controlled.shutdown.enable": True,
    "log.retention.ms": -1,
    "log.segment.delete.delay.ms": 1000,
    "tier.delete.delay.ms": 1000,
    "tiering.max.lag.ms": 5000,
    "log.flush.offset.checkpoint.interval.ms": 2000,
}
MANIFEST = (OWNER, CURRENT, SNAPSHOTS, DELTAS, CONDITIONAL_PUT)
TIMEOUT_S = 480
"""On a busy machine: dozens of segments are copied, one after another, under load."""


@pytest.fixture
def machines(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[Machines]:
    with running(tmp_path, request, minio, tier_url, SETTINGS) as made:
        made.create_everywhere(TOPIC, SPREAD)
        yield made


def command(machines: Machines, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "kafkawire", "cluster", *words]
    line += ["--server", machines.bootstrap(1)]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=TIMEOUT_S, env=dict(os.environ), check=False
    )


def ended(machine: Machine) -> bool:
    """Return whether a machine has run the broker until it was removed."""
    return "broker 2 was removed from the cluster and has ended here" in machine.output


def keys(minio: Minio, tier_url: str) -> set[str]:
    """The keys of broker 2, relative to its place: a folder, or the tier itself if it was first."""
    bucket, _, prefix = tier_url.removeprefix("s3://").partition("/")
    found: set[str] = set()
    pages = minio.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
    for page in pages:
        found |= {each["Key"].removeprefix(f"{prefix}/") for each in page.get("Contents", [])}
    own = {each.removeprefix("nodes/2/") for each in found if each.startswith("nodes/2/")}
    return own or {each for each in found if not each.startswith("nodes/")}


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
def test_broker_of_a_lost_machine_is_removed(
    machines: Machines, tmp_path: Path, minio: Minio, tier_url: str, stopped: bool
) -> None:
    """A machine that was stopped has handed over what its broker led: no other one runs that."""
    load = RecordedLoad(machines.addresses, TOPIC, PARTITIONS, socket_timeout_ms=10_000)
    with load:
        load.wait_for_progress()
        wait_until(
            lambda: any(each.startswith(SEGMENTS) for each in keys(minio, tier_url)),
            "uploads of broker 2",
        )
        load.history.fault("kill or stop machine 2 forever")
        if stopped:
            machines.stop(2)
        else:
            machines.kill(2)
            machines.wait_for_host(2, {1, 3})
        load.wait_for_progress()
        load.history.fault("decommission broker 2")
        done = command(machines, "decommission", "2")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "broker 2 was removed from the cluster\n"
        # The command may find the broker of a stopped machine already started on another one.
        assert stopped or "is not alive" not in done.stderr
        load.heal("broker 2 is removed")
        wait_until(lambda: sum(map(ended, machines.machines.values())) == 1, "its process ends")
        for node in (1, 3):
            assert machines.listed(node) == [1, 3]
        load.wait_for_progress()
    assert machines.hosts(2) == set()
    for node in (1, 3):
        machine = machines.machines[node]
        # The next machine in the ring tries, too, if the first one takes longer than a lease.
        assert machine.output.count("broker 2 is not alive on its machine") >= ended(machine)
    left = keys(minio, tier_url)
    fences = {each for each in left if each.startswith(LOGS)}
    assert len(fences) == 1, "that of the process on the lost machine"
    assert not {each for each in left - fences if not each.startswith(MANIFEST)}
    assert load.findings(machines.bootstrap(1), tmp_path / "history") == []
