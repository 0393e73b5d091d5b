"""Transactions of librdkafka on a broker with durability=s3 that is killed and loses its folder.

Covers: kafkawire.log.adoption, kafkawire.log.object_logs.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.kit.cluster import QUIET, Cluster, metadata_url
from tests.kit.steady_load import read_partition
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.slow]

TOPIC, PARTITIONS, RECORDS = "t", 3, 6
ROUNDS, ENOUGH = 3, 10
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


class Transactions(threading.Thread):
    """Transactions of RECORDS records, every third of which is aborted, until `ended` is set.
    `outcomes`: by number, as far as the client knows."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._settings = {
            "bootstrap.servers": bootstrap, "transactional.id": "id", "linger.ms": 1,
            "reconnect.backoff.max.ms": 500, "log_level": QUIET,
        }  # fmt: skip
        self.outcomes: dict[int, str] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            producer = Producer(self._settings)
            try:
                producer.init_transactions(60)
                while not self.ended.is_set():
                    self._transaction(producer)
            except KafkaException:
                pass  # a producer that cannot continue is created again, as applications do
            finally:
                producer.purge()
                producer.flush(10)

    def _transaction(self, producer: Producer) -> None:
        number = len(self.outcomes)
        self.outcomes[number] = UNKNOWN
        producer.begin_transaction()
        for at in range(RECORDS):
            producer.produce(TOPIC, f"{number}".encode(), partition=at % PARTITIONS)
        try:
            if number % 3 == 2:
                producer.flush(60)
                producer.abort_transaction(60)
                self.outcomes[number] = ABORTED
            else:
                producer.commit_transaction(60)
                self.outcomes[number] = COMMITTED
        except KafkaException as failure:
            if failure.args[0].txn_requires_abort():
                producer.abort_transaction(60)
                self.outcomes[number] = ABORTED
            else:
                raise

    def count(self, outcome: str) -> int:
        return list(self.outcomes.values()).count(outcome)

    def wait_for_more(self) -> None:
        """Wait until more transactions are committed and aborted."""
        for outcome in (COMMITTED, ABORTED):
            wanted = self.count(outcome) + ENOUGH
            wait_until(lambda: self.count(outcome) >= wanted, f"{outcome} transactions")  # noqa: B023


def read_committed(bootstrap: str) -> Counter[int]:
    """The number of visible records of each transaction."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": QUIET}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    found: Counter[int] = Counter()
    try:
        for index in range(PARTITIONS):
            _, _, messages = read_partition(consumer, TOPIC, index)
            found.update(int(each.value() or b"") for each in messages)
    finally:
        consumer.close()
    return found


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest, tier_url: str) -> Iterator[Cluster]:
    url = metadata_url("postgresql", tmp_path, request)
    settings = {"tier.url": tier_url, "durability": "s3", "log.object.linger.ms": 10}
    with Cluster(tmp_path, url, [1], settings) as made:
        made.create(1, TOPIC, [1] * PARTITIONS)
        yield made


def test_transactions_are_whole_after_the_loss_of_the_folder(cluster: Cluster) -> None:
    load = Transactions(cluster.bootstrap(1))
    load.start()
    for _ in range(ROUNDS):
        load.wait_for_more()
        cluster.kill(1)
        cluster.wipe(1)
        cluster.start(1)
    load.wait_for_more()
    load.ended.set()
    load.join(120)
    assert not load.is_alive()
    found = read_committed(cluster.bootstrap(1))
    seen: dict[str, set[int]] = defaultdict(set)
    for number, outcome in load.outcomes.items():
        seen[outcome].add(found[number])
    assert seen[COMMITTED] == {RECORDS}
    assert seen[ABORTED] == {0}
    assert seen[UNKNOWN] <= {0, RECORDS}
    assert found.keys() <= load.outcomes.keys()
    assert cluster.setting(1, "__transaction_state", "durability") == "s3"
