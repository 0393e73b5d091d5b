"""Kafka Connect, distributed, with exactly.once.source.support: a source that counts."""

from __future__ import annotations

import collections
import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from tests.java.brokers import OwnBroker, create_topics
from tests.java.children import JavaChild
from tests.java.committed import CommittedReader, read_all
from tests.java.conftest import Program
from tests.kit.ports import free_port
from tests.real.members import wait_for

TASKS = 2


class Worker:
    """One worker of a Connect cluster, with its REST interface."""

    def __init__(self, program: Program, folder: Path, bootstrap: str, group: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        settings = folder / f"worker-{port}.properties"
        settings.write_text("".join(f"{k}={v}\n" for k, v in self._settings(bootstrap, group)))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self.child: JavaChild = program(main, str(settings))
        self.child.start()

    def _settings(self, bootstrap: str, group: str) -> list[tuple[str, str]]:
        names = [(f"{kind}.storage.topic", f"{group}-{kind}s") for kind in ("config", "offset")]
        names.append(("status.storage.topic", f"{group}-status"))
        replicas = [(name.replace("topic", "replication.factor"), "1") for name, _ in names]
        converter = "org.apache.kafka.connect.storage.StringConverter"
        return [
            *names,
            *replicas,
            ("bootstrap.servers", bootstrap),
            ("group.id", group),
            ("exactly.once.source.support", "enabled"),
            # A restarted worker waits for transactions of the killed one in its offsets topic. A
            # restart of the broker must take less.
            ("producer.transaction.timeout.ms", "8000"),
            ("listeners", self.url),
            ("key.converter", converter),
            ("value.converter", converter),
            ("offset.storage.partitions", "2"),
            ("status.storage.partitions", "1"),
            ("plugin.discovery", "service_load"),
            ("session.timeout.ms", "3000"),
            ("heartbeat.interval.ms", "500"),
            ("rebalance.timeout.ms", "5000"),
            ("scheduled.rebalance.max.delay.ms", "0"),
            ("task.shutdown.graceful.timeout.ms", "1000"),
        ]

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The response of the REST interface; None while it does not succeed."""
        data = json.dumps(body).encode() if body is not None else None
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, head, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.loads(response.read() or b"{}")
        except OSError:  # HTTPError too: 404 and 409 while the cluster rebalances
            assert self.child.running, self.child.output[-4000:]
            return None

    def states(self, connector: str) -> list[str] | None:
        """The states of the connector's tasks; None while they are not known."""
        status = self.ask("GET", f"/connectors/{connector}/status")
        if status is None:
            return None
        failed = [task["trace"] for task in status["tasks"] if task["state"] == "FAILED"]
        assert not failed, failed
        return [task["state"] for task in status["tasks"]]


def test_source_writes_every_number_once(
    own_broker: OwnBroker, program: Program, tmp_path: Path, name: str
) -> None:
    """The worker is killed; the broker is killed; a paused worker wakes up as a zombie after
    another has taken over its tasks."""
    bootstrap = own_broker.bootstrap
    create_topics(bootstrap, {name: 2})
    first = Worker(program, tmp_path, bootstrap, f"{name}-connect")
    connector = {
        "connector.class": "NumberSource",
        "tasks.max": str(TASKS),
        "topic": name,
        "pause.ms": "30",
        "exactly.once.support": "required",
        "transaction.boundary": "interval",  # so that a transaction is open whenever one is killed
        "transaction.boundary.interval.ms": "300",
    }
    wait_for(lambda: bool(first.ask("PUT", "/connectors/numbers/config", connector)))
    numbers = CommittedReader(bootstrap, name)
    numbers.count(300)
    first.child.kill()
    first.child.start()
    numbers.more(300)
    own_broker.crash()
    numbers.more(300)
    second = Worker(program, tmp_path, bootstrap, f"{name}-connect")
    wait_for(lambda: second.states("numbers") == ["RUNNING"] * TASKS)
    first.child.signal(signal.SIGSTOP)
    numbers.more(1000)
    first.child.signal(signal.SIGCONT)
    numbers.more(300)
    wait_for(lambda: second.ask("PUT", "/connectors/numbers/stop") is not None)
    wait_for(lambda: second.states("numbers") == [])
    stored = second.ask("GET", "/connectors/numbers/offsets")["offsets"]
    assert by_task(read_all(bootstrap, name)) == {
        row["partition"]["number"]: list(range(row["offset"]["next"])) for row in stored
    }
    assert len(stored) == TASKS


def by_task(records: list[Message]) -> dict[str, list[int]]:
    """The numbers of each task, in their order."""
    found: dict[str, list[int]] = collections.defaultdict(list)
    for record in records:
        found[(record.key() or b"").decode()].append(int(record.value() or b""))
    return found
