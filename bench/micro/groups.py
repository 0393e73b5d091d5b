"""CPU time of the broker for heartbeats of many groups, and for rebalances of one large group.

    python -m bench.micro.groups [--groups 1000] [--large 5000]

One broker on one core. Heartbeats that change nothing, of groups with the classic protocol (one
member each) and with the consumer protocol (KIP-848, ten members each): the CPU time of one, and
the share of a core for 10,000 members that send one each 3 s. Then the members of one consumer
group join together, and one joins later: how long it takes until all have what they are to have.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.admin import Admin
from bench.micro.fetch_sessions import threads_ns
from bench.report import number, show
from bench.server import Server, kafkawire
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.sync_group import SyncGroupRequest
from tests.kit.client import Client

OF_A_GROUP = 10
PARTITIONS = 100
MEMBERS = 10_000
INTERVAL_S = 3.0
PAUSE_S = 0.2
"""Between two heartbeats of members that wait for partitions; clients wait some seconds."""
ROUNDS = 3
CONSUMER, CLASSIC = 1, 3
"""Versions of the requests."""
AT_ONCE = 64
"""Requests that are sent before their answers are read."""


async def call_all(client: Client, requests: list[Any], version: int) -> list[Any]:
    answers = []
    for start in range(0, len(requests), AT_ONCE):
        part = requests[start : start + AT_ONCE]
        for request in part:
            client.send(request, version)
        answers += [await client.receive() for _ in part]
    for answer in answers:
        assert answer.error_code == 0, answer
    return answers


async def find_coordinators(server: Server) -> None:
    """Have the broker make the topic of the groups, and wait until it leads its partitions."""
    client = await Client.connect(server.port)
    while (await client.call(FindCoordinatorRequest("any"), 1)).error_code:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await client.close()


async def join_classic(client: Client, groups: int) -> list[HeartbeatRequest]:
    """Make groups of one member each; return their heartbeats."""
    ids = [f"classic-{n}" for n in range(groups)]
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"m")
    joined = await call_all(
        client,
        [
            JoinGroupRequest(
                group_id, 300_000, 300_000, protocol_type="consumer", protocols=[protocol]
            )
            for group_id in ids
        ],
        CLASSIC,
    )
    pairs = list(zip(ids, joined, strict=True))
    await call_all(
        client,
        [SyncGroupRequest(group, got.generation_id, got.member_id) for group, got in pairs],
        CLASSIC,
    )
    return [HeartbeatRequest(group, got.generation_id, got.member_id) for group, got in pairs]


class ConsumerMember:
    """A member of a consumer group, which has what it is to have as soon as it is answered."""

    def __init__(self, group: str, name: str, topic: str) -> None:
        self.group = group
        self.name = name
        self.topic = topic
        self.epoch = 0
        self.owned: list[TopicPartitions] = []
        self.changed = True

    def beat(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(self.group, self.name, self.epoch)
        if self.epoch == 0:
            request.rebalance_timeout_ms = 300_000
            request.subscribed_topic_names = [self.topic]
        if self.changed:
            request.topic_partitions = self.owned
        self.changed = False
        return request

    def take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = answer.assignment.topic_partitions
            self.changed = True

    @property
    def size(self) -> int:
        return sum(len(each.partitions) for each in self.owned)


async def beat_all(client: Client, members: list[ConsumerMember]) -> None:
    answers = await call_all(client, [member.beat() for member in members], CONSUMER)
    for member, answer in zip(members, answers, strict=True):
        member.take(answer)


async def settle(client: Client, members: list[ConsumerMember], partitions: int) -> None:
    """Send heartbeats until all partitions are owned in one epoch."""
    while (
        len({member.epoch for member in members}) > 1
        or any(member.changed for member in members)
        or sum(member.size for member in members) < partitions
    ):
        await beat_all(client, members)
        await asyncio.sleep(PAUSE_S)


async def heartbeat_us(server: Server, requests: list[Any], version: int) -> float:
    """Return the CPU time of the broker for a heartbeat, in microseconds: the least of ROUNDS."""
    process, client = psutil.Process(server.pid), await Client.connect(server.port)
    found = []
    for _ in range(ROUNDS + 1):  # the first compiles the messages
        before = threads_ns(process)
        await call_all(client, requests, version)
        now = threads_ns(process)
        spent = sum(now[thread] - before.get(thread, 0) for thread in now)
        found.append(spent / 1e3 / len(requests))
    await client.close()
    return min(found)


async def measure_heartbeats(server: Server, groups: int) -> list[list[str]]:
    client = await Client.connect(server.port)
    classic = await join_classic(client, groups)
    members = [
        ConsumerMember(f"consumer-{n}", f"m{at}", "heartbeats")
        for n in range(groups)
        for at in range(OF_A_GROUP)
    ]
    await settle(client, members, groups * PARTITIONS)
    rows = []
    for name, requests, version in (
        ("classic", classic * OF_A_GROUP, CLASSIC),
        ("consumer", [member.beat() for member in members], CONSUMER),
    ):
        us = await heartbeat_us(server, requests, version)
        share = MEMBERS / INTERVAL_S * us / 1e6
        rows.append([name, f"{len(requests):,}", number(us), f"{share:.0%}"])
    await client.close()
    return rows


async def measure_rebalances(server: Server, count: int) -> list[list[str]]:
    process, client = psutil.Process(server.pid), await Client.connect(server.port)
    rows = []
    members = [ConsumerMember("large", f"m{n:05}", "large") for n in range(count)]
    for what, more in (
        (f"{count:,} members join", []),
        ("one more joins", [ConsumerMember("large", "late", "large")]),
    ):
        members += more
        before, began = threads_ns(process), time.monotonic()
        await beat_all(client, more)
        await settle(client, members, 2 * count)
        took_s, now = time.monotonic() - began, threads_ns(process)
        spent_s = sum(now[thread] - before.get(thread, 0) for thread in now) / 1e9
        rows.append([what, number(took_s), number(spent_s)])
    await client.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--large", type=int, default=5000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        server = Server(kafkawire(), Path(folder) / "broker", {0})
        try:
            server.start()
            with Admin(server.port) as admin:
                admin.create_topic("heartbeats", PARTITIONS)
                admin.create_topic("large", 2 * given.large)
            asyncio.run(find_coordinators(server))
            beats = asyncio.run(measure_heartbeats(server, given.groups))
            large = asyncio.run(measure_rebalances(server, given.large))
        finally:
            server.discard()
    head = ("protocol", "heartbeats", "CPU us of one", f"core for {MEMBERS:,}")
    show("Heartbeats that change nothing", head, beats)
    show("Rebalances of one consumer group", ("", "seconds", "CPU s of the broker"), large)


if __name__ == "__main__":
    main()
