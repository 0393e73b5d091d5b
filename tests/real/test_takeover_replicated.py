"""Three machines with durability=replicated that are killed, replaced, stopped and cut off, under
load whose history is checked."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from tests.kit.client import Client, batch
from tests.kit.history.clients import RecordedLoad
from tests.kit.history.history import Event, waits_for_acks
from tests.kit.machines import REPLICATED, SQL, Machines, follower, running
from tests.kit.minio import Minio
from tests.kit.produce_fetch import produce
from tests.kit.proxy import Network
from tests.kit.steady_load import TOPIC as MOVING
from tests.kit.steady_load import check, loaded
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.machines

TOPIC, PARTITIONS = "load", 6
SPREAD = [1, 2, 3, 1, 2, 3]
"""Leaders of the partitions."""
PROBED = "probed"


@pytest.fixture
def machines(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[Machines]:
    with running(tmp_path, request, minio, tier_url, REPLICATED) as made:
        made.create_everywhere(TOPIC, SPREAD)
        yield made


@pytest.fixture
def linked(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[Machines]:
    """Machines whose links to followers can fail, and a topic PROBED of broker 1."""
    with running(tmp_path, request, minio, tier_url, REPLICATED, followers_linked=True) as made:
        made.create_everywhere(TOPIC, SPREAD)
        made.create_everywhere(PROBED, [1])
        yield made


def load_of(machines: Machines) -> RecordedLoad:
    """Clients that do not wait for 60 s, as usual, for answers on a connection that is silent."""
    return RecordedLoad(machines.addresses, TOPIC, PARTITIONS, socket_timeout_ms=10_000)


def report(what: str, load: RecordedLoad, fault: Event) -> None:
    """Print the longest time without an acknowledgement in any partition since a fault."""
    waits = waits_for_acks(load.history, since=fault.at, until=time.monotonic())
    print(f"longest wait after {what}: {max(waits.values()):.1f} s")


def cut(network: Network, *nodes: int) -> None:
    """Cut the links from machine 1 to the followers of others, until `heal`."""
    for node in nodes:
        network.refuse("1", follower(node))
        network.cut("1", follower(node))


def probe(machines: Machines) -> ErrorCode:
    """Produce a record to PROBED with acks=all; return the error: REQUEST_TIMED_OUT without an
    answer within a second."""

    async def send() -> ErrorCode:
        client = await Client.connect(machines.brokers[1].port)
        try:
            async with asyncio.timeout(1):
                answer = await client.call(produce(PROBED, batch(b"x")), 9)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        finally:
            await client.close()
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    return asyncio.run(send())


def test_killed_and_replaced_machines_lose_nothing(machines: Machines, tmp_path: Path) -> None:
    machines.create_everywhere(MOVING, SPREAD)
    with load_of(machines) as load:
        load.wait_for_progress()
        with loaded(machines.addresses) as loads:
            killed = load.history.fault("kill machine 2")
            machines.kill(2)
            machines.wait_for_host(2, {1, 3})
            load.wait_for_progress()
            report("a kill", load, killed)
            for each in loads:
                each.wait_for_more()
            returned = load.history.fault("start machine 2")
            machines.start(2)
            machines.wait_for_host(2, {2})
            load.heal("machine 2 runs its broker")
            report("a return", load, returned)
            for each in loads:
                each.wait_for_more()
            assert check(loads, machines.bootstrap(2)) > 0
        load.history.fault("replace machine 3, whose disk is lost")
        machines.kill(3)
        machines.wipe(3)
        machines.wait_for_host(3, {1, 2})
        load.wait_for_progress()
        machines.start(3)
        machines.wait_for_all_at_home()
        load.heal("machine 3 runs its broker with an empty disk")
        load.history.fault("kill all machines")
        for node in machines.machines:
            machines.kill(node)
        with ThreadPoolExecutor() as threads:  # each start waits for the follower of another one
            list(threads.map(machines.start, machines.machines))
        machines.wait_for_all_at_home()
        load.heal("all at home")
    assert load.findings(machines.bootstrap(1), tmp_path / "history") == []


@pytest.mark.parametrize("return_s", [2, 20], ids=["before it serves", "after it serves"])
def test_machine_that_is_replaced_while_no_other_has_a_copy(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str, return_s: int
) -> None:
    """Of two machines: the other one has taken its broker over, which waits for a follower, as does
    its own broker. The new machine asks for its broker before or after its follower has the log."""
    settings = {**REPLICATED, "cluster.return.delay.ms": return_s * 1000}
    with running(tmp_path, request, minio, tier_url, settings, nodes=(1, 2)) as pair:
        pair.create_everywhere(PROBED, [1])
        wait_until(lambda: probe(pair) is ErrorCode.NONE, "the first record")
        pair.kill(1)
        pair.wipe(1)
        waits = "[1] kafkawire.log.followers.service: the start waits for followers"
        wait_until(lambda: waits in pair.machines[2].output, "broker 1 on machine 2")
        with ThreadPoolExecutor() as threads:
            started = threads.submit(pair.start, 1)  # returns when broker 1 serves there
            if return_s > 2:
                pair.wait_for_host(1, {2})
            pair.wait_for_all_at_home()
            started.result()
        wait_until(lambda: probe(pair) is ErrorCode.NONE, "a record after the loss")
        assert len(pair.read_all(2, PROBED)[0]) >= 2, "the records of before and after the loss"


def test_stopped_machines_and_followers_lose_nothing(machines: Machines, tmp_path: Path) -> None:
    with load_of(machines) as load:
        load.wait_for_progress()
        slow = load.history.fault("pause the follower of machine 1")
        pid = machines.pause_follower(1)
        load.wait_for_progress()
        report("a pause of a follower", load, slow)
        os.kill(pid, signal.SIGCONT)
        load.heal("the follower is back")
        paused = load.history.fault("pause machine 2")
        machines.pause(2)
        machines.wait_for_host(2, {1, 3})
        load.wait_for_progress()
        report("a pause", load, paused)
        machines.resume(2)
        output = "worker 2 has ended with code 3: its partitions"
        wait_until(lambda: output in machines.machines[2].output, "the end of its process")
        machines.wait_for_all_at_home()
        load.heal("machine 2 runs its broker")
        cut = load.history.fault("hold SQL of machine 3")
        with machines.network.silent("3", SQL):
            wait_until(lambda: machines.hosts(3) & {1, 2}, "broker 3 elsewhere")
            load.wait_for_progress()
            report("a loss of SQL", load, cut)
        machines.wait_for_all_at_home()
        load.heal("machine 3 runs its broker")
    assert load.findings(machines.bootstrap(1), tmp_path / "history") == []


def test_links_to_followers_that_fail_lose_nothing(linked: Machines, tmp_path: Path) -> None:
    """Links of machine 1: slow, silent in one direction, and cut."""
    network = linked.network
    with load_of(linked) as load:
        load.wait_for_progress()
        linked.wait_for_all_in_sync()
        slow = load.history.fault("slow links to both followers")
        network.delay("1", follower(2), forth_s=0.2, back_s=0.1)
        network.delay("1", follower(3), forth_s=0.1, back_s=0.2)
        load.wait_for_progress()
        report("a delay", load, slow)
        assert linked.in_sync()[1] == {2, 3}
        network.heal("1")
        for direction in ("forth", "back"):
            silent = load.history.fault(f"hold what is sent {direction} on the link to follower 2")
            network.silence("1", follower(2), forth=direction == "forth", back=direction == "back")
            linked.wait_for_in_sync(1, {3})
            load.wait_for_progress()
            report("silence", load, silent)
            network.heal("1")
            linked.wait_for_in_sync(1, {2, 3})
            load.heal("follower 2 is in sync")
        load.history.fault("cut the links to both followers")
        cut(network, 2, 3)
        wait_until(lambda: probe(linked) is ErrorCode.NOT_ENOUGH_REPLICAS, "the refusal")
        assert len(linked.in_sync()[1]) == 1, "the last one stays in the set"
        network.heal("1")
        wait_until(lambda: probe(linked) is ErrorCode.NONE, "the end of the refusal")
        linked.wait_for_in_sync(1, {2, 3})
        load.heal("both followers are in sync")
        killed = load.history.fault("cut the link to follower 2, then kill machine 1")
        cut(network, 2)
        linked.wait_for_in_sync(1, {3})
        load.wait_for_progress()
        linked.kill(1)
        linked.wait_for_host(1, {2, 3})
        load.wait_for_progress()
        report("a kill", load, killed)
        network.heal("1")
        linked.start(1)
        linked.wait_for_host(1, {1})
        load.heal("machine 1 runs its broker")
    assert load.findings(linked.bootstrap(1), tmp_path / "history") == []
