"""`python -m bench.growth`: what a request and the memory of a broker cost as more things exist.

For each kind of thing (topics, partitions, connections, groups, producers, open transactions):
start a broker, make a few, measure, make many, measure again. A measurement is the CPU time of a
small Produce (acks=1, 8 in flight) to a topic of its own, and anonymous memory. The table has the
ratio of the costs, and bytes of memory for each thing.
"""

from __future__ import annotations

import argparse
import resource
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import client, report
from bench.admin import Admin
from bench.loads import produce
from bench.micro.topics import Caller, create
from bench.server import Server, kafkawire
from kafkawire.codec.batches import build
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PROBE, USED = "probe", "used"
ROUNDS, WINDOW_S = 5, 0.6
TARGET = 1.1
"""The most that a request may cost more when there are many."""
IDLE_S = 2.0
"""After making things: work that follows, such as commits and checkpoints."""
CONTROL_RETRY_S = 0.05
TRANSACTIONAL = 1 << 4
CONCURRENT_TRANSACTIONS, LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 51, 14, 15, 16
RETRIED = (CONCURRENT_TRANSACTIONS, LOADING, NOT_AVAILABLE, NOT_COORDINATOR)


@dataclass(slots=True)
class Crowd:
    """A broker, and what was made on it. `held`: sockets that stay open."""

    server: Server
    caller: Caller
    made: int = 0
    held: list[socket.socket] = field(default_factory=list)


def make_topics(crowd: Crowd, count: int) -> None:
    """Topics of one partition."""
    create(crowd.caller, count, crowd.made)


def make_partitions(crowd: Crowd, count: int) -> None:
    """Partitions of one topic, another one each time."""
    with Admin(crowd.server.port) as admin:
        admin.create_topic(f"{USED}-{count}", count)


def make_connections(crowd: Crowd, count: int) -> None:
    """Connections that have sent nothing."""
    for _ in range(crowd.made, count):
        crowd.held.append(socket.create_connection(("127.0.0.1", crowd.server.port), 60))


def make_groups(crowd: Crowd, count: int) -> None:
    """Groups without members, each with a committed offset."""
    _use_topic(crowd)
    _find_coordinator(crowd, 0)
    rows = [OffsetCommitRequestTopic(USED, partitions=[OffsetCommitRequestPartition(0, 1)])]
    for number in range(crowd.made, count):
        request = OffsetCommitRequest(f"group-{number}", topics=rows)
        _until_done(
            lambda r=request: crowd.caller.call(8, r, 7).topics[0].partitions[0].error_code  # type: ignore[misc]
        )


def make_producers(crowd: Crowd, count: int) -> None:
    """Idempotent producers that have written a record to one partition."""
    _use_topic(crowd)
    for _ in range(crowd.made, count):
        got = crowd.caller.call(22, InitProducerIdRequest(None, 60_000), 1)
        _append(crowd, got.producer_id, got.producer_epoch, None)


def make_transactions(crowd: Crowd, count: int) -> None:
    """Open transactions of one record in one partition."""
    _use_topic(crowd)
    _find_coordinator(crowd, 1)
    for number in range(crowd.made, count):
        name = f"transaction-{number}"
        got = None

        def begin(name: str = name) -> int:
            nonlocal got
            got = crowd.caller.call(22, InitProducerIdRequest(name, 900_000), 1)
            return int(got.error_code)

        _until_done(begin)
        assert got is not None
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=got.producer_id,
            v3_and_below_producer_epoch=got.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(USED, [0])],
        )
        _until_done(
            lambda r=request: (  # type: ignore[misc]
                crowd.caller.call(24, r, 2)
                .results_by_topic_v3_and_below[0]
                .results_by_partition[0]
                .partition_error_code
            )
        )
        _append(crowd, got.producer_id, got.producer_epoch, name)


def _use_topic(crowd: Crowd) -> None:
    if not crowd.made:
        with Admin(crowd.server.port) as admin:
            admin.create_topic(USED, 1)


def _find_coordinator(crowd: Crowd, kind: int) -> None:
    """Have the topic of the coordinators created; `kind`: 0 for groups, 1 for transactions."""
    _until_done(lambda: crowd.caller.call(10, FindCoordinatorRequest("any", kind), 1).error_code)


def _append(crowd: Crowd, producer_id: int, epoch: int, transaction: str | None) -> None:
    batch = build(
        [(None, b"x" * 100)],
        timestamp_ms=int(time.time() * 1000),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL if transaction else 0,
    )
    data = [TopicProduceData(USED, partition_data=[PartitionProduceData(0, bytes(batch))])]
    request = ProduceRequest(transaction, -1 if transaction else 1, 30_000, data)
    answer = crowd.caller.call(0, request, 7)
    code = answer.responses[0].partition_responses[0].error_code
    if code:
        raise client.LoadError(f"Produce was answered with error {code}")


def _until_done(call: Callable[[], int]) -> None:
    while code := call():
        if code not in RETRIED:
            raise client.LoadError(f"a request was answered with error {code}")
        time.sleep(CONTROL_RETRY_S)


@dataclass(frozen=True, slots=True)
class Kind:
    """Things of one kind: how to make them, few and many."""

    name: str
    make: Callable[[Crowd, int], None]
    few: int
    many: int


KINDS = (
    Kind("topics", make_topics, 100, 100_000),
    Kind("partitions of a topic", make_partitions, 10, 10_000),
    Kind("idle connections", make_connections, 10, 5_000),
    Kind("groups with an offset", make_groups, 10, 10_000),
    Kind("idempotent producers", make_producers, 10, 20_000),
    Kind("open transactions", make_transactions, 10, 5_000),
)
HEAD = ("what", "few", "us", "many", "us", "ratio", "target", "bytes each")


def request_us(server: Server) -> float:
    """The broker's CPU time for a small Produce, the median of ROUNDS."""
    options: dict[str, int | float | str] = {
        "port": server.port, "server_pid": server.pid, "client_core": 1, "warmup": 0.1,
        "seconds": WINDOW_S,
    }  # fmt: skip
    load = produce(acks=1, inflight=8)
    job = client.Job(load.mode, {**load.options, "topic": PROBE})
    return median(client.run([job], options)[0].cpu_us for _ in range(ROUNDS))


def measure(kind: Kind, folder: Path, scale: float) -> list[str]:
    """A row of the table."""
    server = Server(kafkawire(), folder, {0})
    server.discard()
    server.start()
    crowd = Crowd(server, Caller(server.port))
    few, many = max(1, int(kind.few * scale)), max(2, int(kind.many * scale))
    try:
        with Admin(server.port) as admin:
            admin.create_topic(PROBE, 1)
        found: list[tuple[float, int]] = []
        for count in (few, many):
            kind.make(crowd, count)
            crowd.made = count
            time.sleep(IDLE_S)
            found.append((request_us(server), server.memory().anon_bytes))
        (cost, memory), (cost_many, memory_many) = found
    finally:
        for each in (crowd.caller.socket, *crowd.held):
            each.close()
        server.discard()
    each_bytes = (memory_many - memory) / (many - few)
    return [
        kind.name, f"{few:,}", f"{cost:.2f}", f"{many:,}", f"{cost_many:.2f}",
        f"{cost_many / cost:.2f}", f"{TARGET}", f"{max(0.0, each_bytes):,.0f}",
    ]  # fmt: skip


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 when the bench could not run."""
    parser = argparse.ArgumentParser("python -m bench.growth", description=__doc__.split("\n")[0])
    parser.add_argument("--kinds", default="", help="only those whose name has one of these words")
    parser.add_argument("--scale", type=float, default=1.0, help="of all numbers, to try it out")
    parser.add_argument("--data", type=Path, default=client.OUT / "growth", help="folder, removed")
    options = parser.parse_args(given)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    words = [word for word in options.kinds.split(",") if word]
    chosen = [kind for kind in KINDS if not words or any(word in kind.name for word in words)]
    rows = []
    try:
        with report.progress(len(chosen)) as step:
            for kind in chosen:
                step(kind.name, False)
                rows.append(measure(kind, options.data, options.scale))
                step(" ".join(rows[-1]), True)
    except (client.LoadError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    report.show("cost of a small Produce, and memory", HEAD, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
