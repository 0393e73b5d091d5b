"""Topics with aborted and committed transactions, by librdkafka, and what a read_committed reader
must find in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

LIMIT_S = 60


class TransactionalTopic:
    """Transactions of a topic. `committed`: (partition, value) of committed records, in the order
    in which they were produced."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic, self._bootstrap = topic, bootstrap
        self._producers: dict[str, Producer] = {}
        self._open: dict[str, list[tuple[int, bytes]]] = {}
        self._order = 0
        self._committed: list[tuple[int, int, bytes]] = []
        self._numbers: dict[bytes, int] = {}

    @property
    def committed(self) -> list[tuple[int, bytes]]:
        """Return committed records in the order in which they were produced."""
        return [(partition, value) for _, partition, value in sorted(self._committed)]

    def write(self, who: str, values: Iterable[bytes], partitions: Sequence[int] = (0, 1)) -> None:
        """Produce values to these partitions in turn, within a transaction of `who`."""
        producer = self._begun(who)
        for n, value in enumerate(values):
            partition = partitions[n % len(partitions)]
            producer.produce(self.topic, value, partition=partition)
            self._open[who].append((partition, value))
            self._numbers[value] = len(self._numbers)
        assert producer.flush(LIMIT_S) == 0

    def offsets(self, who: str, group: str, offset: int) -> None:
        """Commit an offset of partition 0 for a group, within a transaction."""
        producer = self._begun(who)
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        try:
            producer.send_offsets_to_transaction(
                [TopicPartition(self.topic, 0, offset)], consumer.consumer_group_metadata(), LIMIT_S
            )
        finally:
            consumer.close()

    def end(self, who: str, *, commits: bool) -> None:
        """End the transaction of a producer."""
        producer, records = self._producers[who], self._open.pop(who)
        if commits:
            producer.commit_transaction(LIMIT_S)
            self._committed += [(self._numbers[value], *at) for at in records for value in at[1:]]
        else:
            producer.abort_transaction(LIMIT_S)

    def _begun(self, who: str) -> Producer:
        if who not in self._producers:
            name = f"{self.topic}-{who}"
            settings = {"bootstrap.servers": self._bootstrap, "transactional.id": name}
            self._producers[who] = Producer(settings)
            self._producers[who].init_transactions(LIMIT_S)
        if who not in self._open:
            self._producers[who].begin_transaction()
            self._open[who] = []
        return self._producers[who]
