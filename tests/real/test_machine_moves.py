"""Partitions that are moved between machines, each with a data folder of its own, under load whose
history is checked: what the new leader has of them is in the remote tier.

Covers: kafkawire.broker.moving.mover, kafkawire.broker.moving.plan,
kafkawire.broker.moving.controlled_shutdown, kafkawire.log.handover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.kit.cli import Typed
from tests.kit.history.clients import RecordedLoad
from tests.kit.history.history import Kind, Result
from tests.kit.machines import REPLICATED, Machines, running
from tests.kit.minio import Minio
from tests.kit.steady_load import TOPIC as MOVING
from tests.kit.steady_load import Load, check, loaded
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.machines

TOPIC, PARTITIONS = "load", 6
SPREAD = [1, 2, 3, 1, 2, 3]
"""Leaders of the partitions."""
SETTINGS: dict[str, dict[str, object]] = {"s3": {"durability": "s3"}, "replicated": REPLICATED}
HANDS_OVER = {"controlled.shutdown.enable": True}


@pytest.fixture(params=["s3", "replicated"])
def machines(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[Machines]:
    settings = {**SETTINGS[request.param], **HANDS_OVER}
    with running(tmp_path, request, minio, tier_url, settings) as made:
        made.create_everywhere(TOPIC, SPREAD)
        made.create_everywhere(MOVING, SPREAD)
        yield made


def run(machines: Machines, *words: str) -> None:
    done = Typed(machines.bootstrap(1), "cluster", *words)
    assert done.code == 0, done.err


def led_by(machines: Machines, node: int) -> set[tuple[str, int]]:
    """Return the partitions of the load that a broker leads, as one that runs knows."""
    asked = next(at for at, machine in machines.machines.items() if machine.running)
    return {
        (topic, index)
        for topic in (TOPIC, MOVING)
        for index, leader in machines.leaders(asked, topic).items()
        if leader == node
    }


def heal(load: RecordedLoad, loads: Sequence[Load], note: str) -> None:
    """Wait for progress of all clients, so that no transaction lasts for several faults."""
    load.heal(note)
    for each in loads:
        each.wait_for_more()


def test_moves_restarts_and_a_kill_lose_nothing(machines: Machines, tmp_path: Path) -> None:
    load = RecordedLoad(machines.addresses, TOPIC, PARTITIONS, socket_timeout_ms=10_000)
    with load, loaded(machines.addresses) as loads:
        load.wait_for_progress()
        load.history.fault("drain broker 2")
        run(machines, "drain", "2")
        assert not led_by(machines, 2)
        heal(load, loads, "broker 2 leads nothing")
        load.history.fault("balance")
        run(machines, "drain", "2", "--undo")
        run(machines, "balance")
        assert led_by(machines, 2)
        heal(load, loads, "broker 2 has got partitions")
        for node in machines.machines:
            load.history.fault(f"restart machine {node}")
            led = led_by(machines, node)
            machines.stop(node)
            # The others see in a moment what the last poll of the database has not shown them.
            wait_until(
                lambda node=node: not led_by(machines, node),  # type: ignore[misc]
                lambda node=node: f"machine {node} leads {led_by(machines, node)}",  # type: ignore[misc]
            )
            heal(load, loads, f"others lead what machine {node} led")
            machines.start(node)
            machines.wait_for_all_at_home()
            wait_until(
                lambda node=node, led=led: led_by(machines, node) == led,  # type: ignore[misc]
                lambda node=node, led=led: (  # type: ignore[misc]
                    f"machine {node} leads {led} again; it leads {led_by(machines, node)}"
                ),
            )
            if machines.machines[node].settings["durability"] == "replicated":
                machines.wait_for_all_in_sync()
            heal(load, loads, f"machine {node} runs its broker")
        load.history.fault("kill machine 2, which has got partitions")
        machines.kill(2)
        machines.wait_for_host(2, {1, 3})
        heal(load, loads, "another machine runs broker 2")
        load.history.fault("start machine 2")
        machines.start(2)
        machines.wait_for_all_at_home()
        heal(load, loads, "machine 2 runs its broker")
        assert check(loads, *(machines.bootstrap(node) for node in machines.machines)) > 0
    assert load.findings(machines.bootstrap(2), tmp_path / "history") == []
    produced = [each for each in load.history.events if each.kind is Kind.PRODUCE]
    assert {each.result for each in produced} == {Result.INVOKE, Result.OK}
