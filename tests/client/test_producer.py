"""The producer of the commands: retries, halves of large batches, failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kafkawire.client import producer as module
from kafkawire.client.errors import BrokerError, ClientError, Closed
from kafkawire.client.producer import Failure, Producer, ProduceResult
from kafkawire.codec.batches import Record, read_head, records
from kafkawire.codec.errors import ErrorCode

PLACE, OTHER = ("t", 0), ("t", 1)


class Brokers:
    """Two partitions led by one broker. `script` has results of the next batches, by partition:
    an error code, or an exception for the whole request; without one a batch is stored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script: list[Any] = []
        self.stored: dict[tuple[str, int], list[tuple[int, int, list[bytes | None]]]] = {}
        self.ids = 0
        self.failed: list[Failure] = []
        self.reconnected = 0
        monkeypatch.setattr(module, "append", self.append)
        monkeypatch.setattr(module, "leaders", lambda cluster, topics: {PLACE: 1, OTHER: 1})
        monkeypatch.setattr(module, "new_producer_id", self.init_producer)
        monkeypatch.setattr(module, "RETRY_S", 0)

    def disconnect(self, node: int) -> None:
        self.reconnected += 1

    def reconnect(self) -> None:
        self.reconnected += 1

    def init_producer(self, cluster: object) -> tuple[int, int]:
        self.ids += 1
        return self.ids, 0

    def append(self, cluster: object, node: int, batches: Mapping[Any, Any], acks: int) -> Any:
        result = self.script.pop(0) if self.script else 0
        if isinstance(result, Exception):
            raise result
        return {place: self._one(place, batch, result) for place, batch in batches.items()}

    def _one(self, place: tuple[str, int], batch: Any, code: int) -> ProduceResult:
        if code:
            return ProduceResult(int(code), None, -1)
        head = read_head(batch)
        rows = self.stored.setdefault(place, [])
        base = sum(len(values) for _, _, values in rows)
        values = [each.value for each in records(batch)]
        rows.append((head.producer_id, head.base_sequence, values))
        return ProduceResult(0, None, base)

    def values(self, place: tuple[str, int] = PLACE) -> list[bytes | None]:
        return [value for _, _, values in self.stored.get(place, []) for value in values]

    def producer(self, **more: Any) -> Producer:
        cluster: Any = self
        return Producer(cluster, failed=self.failed.append, **more)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def sent(producer: Producer, *values: bytes, place: tuple[str, int] = PLACE) -> None:
    for number, value in enumerate(values):
        producer.send(place, Record(0, 1, None, value), number)
    producer.flush()


def test_batches_have_sequences_of_one_producer(brokers: Brokers) -> None:
    producer = brokers.producer()
    sent(producer, b"a", b"b")
    sent(producer, b"c")
    sent(producer, b"x", place=OTHER)
    assert brokers.stored[PLACE] == [(1, 0, [b"a", b"b"]), (1, 2, [b"c"])]
    assert brokers.stored[OTHER] == [(1, 0, [b"x"])]
    assert (producer.stored, producer.first, producer.last) == (
        4, {PLACE: 0, OTHER: 0}, {PLACE: 2, OTHER: 0},
    )  # fmt: skip


def test_results_of_batches_are_reported(brokers: Brokers) -> None:
    found: list[Any] = []
    producer = brokers.producer(acknowledged=lambda *each: found.append(each))
    sent(producer, b"a", b"b")
    brokers.script = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    sent(producer, b"c")
    brokers.script = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    sent(producer, b"d")
    assert found == [(PLACE, [0, 1], 0), (PLACE, [0], -1)]
    assert [each.code for each in brokers.failed] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def test_full_batches_are_sent(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_RECORDS", 3)
    sent(brokers.producer(), *[b"%d" % n for n in range(8)])
    assert [len(values) for _, _, values in brokers.stored[PLACE]] == [3, 3, 2]
    monkeypatch.setattr(module, "BATCH_BYTES", 250)
    sent(brokers.producer(), *[bytes(100)] * 3, place=OTHER)
    assert [len(values) for _, _, values in brokers.stored[OTHER]] == [1, 1, 1]


@pytest.mark.parametrize(
    "trouble",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, Closed("the connection failed"), ClientError("no answer")],
)
def test_failed_request_is_repeated_with_the_same_sequence(brokers: Brokers, trouble: Any) -> None:
    brokers.script = [0, trouble, trouble]
    producer = brokers.producer()
    sent(producer, b"a")
    sent(producer, b"b")
    assert brokers.stored[PLACE] == [(1, 0, [b"a"]), (1, 1, [b"b"])]
    assert not brokers.failed


def test_batch_that_was_already_stored_counts_once(brokers: Brokers) -> None:
    brokers.script = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    producer = brokers.producer()
    sent(producer, b"a")
    sent(producer, b"b")
    assert producer.stored == 2
    assert brokers.stored[PLACE] == [(1, 1, [b"b"])]


def test_batch_that_is_too_large_is_sent_in_halves(brokers: Brokers) -> None:
    brokers.script = [ErrorCode.MESSAGE_TOO_LARGE, 0, ErrorCode.MESSAGE_TOO_LARGE]
    producer = brokers.producer()
    sent(producer, b"a", b"b", b"c")
    assert brokers.values() == [b"a", b"b", b"c"]
    assert not brokers.failed
    brokers.script = [ErrorCode.MESSAGE_TOO_LARGE]
    sent(producer, b"huge")
    sent(producer, b"d")
    (failure,) = brokers.failed
    assert failure.numbers == [0]
    assert "MESSAGE_TOO_LARGE" in failure.reason
    assert brokers.values()[-1] == b"d"
    assert [row[1] for row in brokers.stored[PLACE]][-1] == 0  # with a new producer id


def test_refused_batch_is_reported_and_the_next_ones_are_sent(brokers: Brokers) -> None:
    brokers.script = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    producer = brokers.producer()
    sent(producer, b"a", b"b")
    sent(producer, b"c")
    assert [failure.numbers for failure in brokers.failed] == [[0, 1]]
    assert (producer.stored, brokers.values()) == (1, [b"c"])


def test_unknown_partition_is_not_retried(brokers: Brokers) -> None:
    sent(brokers.producer(), b"a", place=("t", 9))
    assert "UNKNOWN_TOPIC_OR_PARTITION" in brokers.failed[0].reason


def test_ends_when_no_broker_answers(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_FOR_S", -1)
    brokers.script = [ClientError("no answer")]
    producer = brokers.producer()
    with pytest.raises(ClientError, match="no broker has stored a batch"):
        sent(producer, b"a")
    assert [failure.numbers for failure in brokers.failed] == [[0]]
    producer.flush()
    assert not brokers.stored


def test_encoded_batch_keeps_its_records(brokers: Brokers) -> None:
    from kafkawire.codec.batches import pack

    producer = brokers.producer()
    sent(producer, b"a")
    rows = [Record(n, 5 + n, b"k", b"%d" % n) for n in range(3)]
    producer.send_batch(PLACE, pack(rows, codec=4), 3)
    assert brokers.stored[PLACE][1] == (1, 1, [b"0", b"1", b"2"])
    assert producer.last == {PLACE: 3}


def test_not_idempotent(brokers: Brokers) -> None:
    sent(brokers.producer(idempotent=False), b"a")
    sent(brokers.producer(acks=1), b"b")
    assert [row[:2] for row in brokers.stored[PLACE]] == [(-1, -1), (-1, -1)]


def test_error_of_metadata_is_reported(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(cluster: object, topics: object) -> Any:
        raise BrokerError("topic t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    monkeypatch.setattr(module, "leaders", gone)
    sent(brokers.producer(), b"a")
    assert brokers.failed[0].numbers == [0]


def test_forgotten_producer_gets_a_new_id(brokers: Brokers) -> None:
    producer = brokers.producer()
    sent(producer, b"a")
    brokers.script = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    sent(producer, b"b")
    assert brokers.stored[PLACE] == [(1, 0, [b"a"]), (2, 0, [b"b"])]
    brokers.script = [ErrorCode.UNKNOWN_PRODUCER_ID] * 2
    sent(producer, b"c")
    sent(producer, b"d")
    assert [failure.numbers for failure in brokers.failed] == [[0]]
    assert brokers.values() == [b"a", b"b", b"d"]


def test_partition_without_result_is_reported(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "append", lambda *arguments, **more: {})
    producer = brokers.producer()
    sent(producer, b"a")
    assert producer.stored == 0
    assert "no result in the answer" in brokers.failed[0].reason
