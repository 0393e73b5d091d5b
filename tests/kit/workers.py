"""`kafkawire serve --workers N` as a child process, with its workers.

with Workers(folder) as workers:
    workers.kill_worker(2)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkawire.testing.process import BrokerProcess
from tests.kit.cluster import QUIET, SETTINGS
from tests.kit.waiting import wait_until


class Workers(BrokerProcess):
    """The supervisor and its workers; `bootstrap` is the shared address. `ports`: the own ports of
    the workers, which they keep when all are started again; else they have free ones."""

    def __init__(
        self,
        data: Path,
        workers: int = 2,
        *,
        arguments: tuple[str, ...] = (),
        settings: Mapping[str, object] | None = None,
        ports: Sequence[int] = (),
    ) -> None:
        own = ",".join(map(str, ports or [0] * workers))
        super().__init__(
            data,
            settings={**SETTINGS, **(settings or {})},
            arguments=["--workers", str(workers), "--worker-ports", own, *arguments],
            start_timeout_s=90,
        )

    def worker_pids(self) -> dict[int, int]:
        """The processes of the workers that run, by node id."""
        found = {}
        for child in psutil.Process(self.pid).children():
            try:
                words = child.cmdline()
            except psutil.Error:
                continue
            if "--worker" in words:
                nodes = [word for word in words if word.startswith("node.id=")]
                found[int(nodes[-1].removeprefix("node.id="))] = child.pid
        return found

    def signal_worker(self, node: int, number: signal.Signals) -> int:
        """Send a signal to a worker; return its process id."""
        pid = self.worker_pids()[node]
        os.kill(pid, number)
        return pid

    def kill_worker(self, node: int) -> int:
        return self.signal_worker(node, signal.SIGKILL)

    def wait_for_worker(self, node: int, other_than: int) -> None:
        """Wait until a worker serves that is another process."""
        line = f"started worker {node} as process "

        def serves() -> bool:
            pid = self.worker_pids().get(node, other_than)
            after = self.output.partition(f"{line}{pid}")[2]
            return pid != other_than and f"worker {node} serves at" in after

        wait_until(serves, f"worker {node} serves again")

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": QUIET})

    def create(self, topic: str, partitions: int) -> list[int]:
        """Create a topic; return the leaders of its partitions."""
        admin = self.admin()
        admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)
        return list(self.leaders_of(topic, partitions).values())

    def leaders_of(self, topic: str, partitions: int) -> dict[int, int]:
        """Wait until a topic is seen with this many partitions; return their leaders."""

        def found() -> dict[int, int]:
            topics = self.admin().list_topics(timeout=30).topics
            rows = topics[topic].partitions if topic in topics else {}
            return {n: p.leader for n, p in rows.items()} if len(rows) == partitions else {}

        return wait_until(found, f"topic {topic} is there")

    def read_all(self, topic: str, partitions: int) -> dict[int, list[bytes]]:
        """All values of a topic by partition, up to its present ends."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "unused", "log_level": QUIET}
        consumer = Consumer(settings)
        try:
            found: dict[int, list[bytes]] = {}
            for index in range(partitions):
                at = TopicPartition(topic, index, 0)
                consumer.assign([at])
                _, end = consumer.get_watermark_offsets(at, timeout=60)
                values = found[index] = []
                while len(values) < end:
                    for message in consumer.consume(end - len(values), 1):
                        assert message.error() is None, message.error()
                        values.append(message.value() or b"")
            return found
        finally:
            consumer.close()
