"""A share group while the machine of its coordinators is killed, taken over, and comes back.

Covers: kafkawire.broker.other_brokers, kafkawire.share.leader.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkawire.codec.types import uuid_text
from tests.kit.cli import Typed
from tests.kit.machines import REPLICATED, Machines, running
from tests.kit.minio import Minio
from tests.kit.share_load import HOLDS, check_settled, share_loaded
from tests.kit.steady_load import PARTITIONS, TOPIC, check, loaded
from tests.kit.waiting import wait_until
from tests.real.test_share_groups import set_group

pytestmark = pytest.mark.machines

SPREAD = [1, 2, 3, 1, 2, 3]
"""Leaders of the partitions."""
GROUP_KEY, SHARE_KEY = 0, 2
"""Types of the keys of FindCoordinator."""
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": 1,  # all states are of one broker
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 300,
    "group.share.min.session.timeout.ms": 1000,
    "group.share.session.timeout.ms": 10_000,
    "group.share.min.record.lock.duration.ms": 1000,
    "group.share.record.lock.duration.ms": 10_000,
    # A record is released once, and may be held by members and leaders that end.
    "group.share.delivery.count.limit": 10,
}
DURABILITY: dict[str, dict[str, object]] = {"s3": {"durability": "s3"}, "replicated": REPLICATED}


@pytest.fixture(params=["s3", "replicated"])
def machines(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[Machines]:
    settings = {**DURABILITY[request.param], **SETTINGS}
    with running(tmp_path, request, minio, tier_url, settings) as made:
        made.create_everywhere(TOPIC, SPREAD)
        yield made


def group_of_one_broker(machines: Machines) -> tuple[str, int]:
    """Return the name of a group whose coordinator also has the states of its share partitions, and
    that broker."""

    def coordinator(key: str, kind: int) -> int:
        return wait_until(lambda: machines.coordinator(1, key, kind), f"a coordinator of {key}")

    shares = coordinator(f"any:{uuid_text(b'any topic of any')}:0", SHARE_KEY)
    names = (f"pool-{number}" for number in range(50))
    return next(name for name in names if coordinator(name, GROUP_KEY) == shares), shares


@contextmanager
def holder(machines: Machines, group: str) -> Iterator[None]:
    """A member that has records when the block begins, and is killed with them at its end."""
    words = ["-m", "tests.kit.share_load", machines.addresses, group, TOPIC]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().strip() == HOLDS
            yield
        finally:
            child.kill()


def lags(machines: Machines, group: str) -> list[int | None]:
    described = Typed(machines.addresses, "groups", "describe", group, "--json").json
    return [row["lag"] for row in described[0]["offsets"]]


def test_machine_of_the_coordinators_is_killed_and_comes_back(machines: Machines) -> None:
    group, victim = group_of_one_broker(machines)
    set_group(machines.bootstrap(1), group, share_auto_offset_reset="earliest")
    everywhere = range(PARTITIONS)
    with (
        loaded(machines.addresses) as loads,
        share_loaded(machines.addresses, group, TOPIC) as members,
    ):
        members.wait_for_progress(everywhere)
        with holder(machines, group):
            machines.kill(victim)
        machines.wait_for_host(victim, machines.machines.keys() - {victim})
        members.wait_for_progress(everywhere)
        with holder(machines, group):
            machines.start(victim)
            machines.wait_for_all_at_home()
        members.wait_for_progress(everywhere)
        assert check(loads, machines.bootstrap(victim)) > 0
        wait_until(
            lambda: lags(machines, group) == [0] * PARTITIONS,
            lambda: f"the end of each partition: {lags(machines, group)}",
        )
    produced = {
        (index, at) for each in loads for index, rows in each.acked.items() for at, _ in rows
    }
    settled = list(members.settled())
    print(f"{len(settled)} deliveries: {Counter(each.error for each in settled)}")
    assert check_settled(produced, settled) == []
