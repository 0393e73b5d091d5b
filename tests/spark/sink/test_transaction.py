"""The commit of a batch: each record once, wherever the driver is killed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kafkawire.client.errors import BrokerError, Closed
from kafkawire.codec.errors import ErrorCode
from kafkawire_spark.sink.options import PROGRESS_TOPIC, SinkError, SinkOptions, parse_options
from kafkawire_spark.sink.rows import Partitioner, RowEncoder
from kafkawire_spark.sink.staging import StagedPart, StagingWriter
from kafkawire_spark.sink.transaction import BatchIdentity, SinkConnection, SinkTransaction, waves
from tests.kit.spark.sink import FakeCluster, Killed

QUERY = "3b6e9b2c"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster({"out": 3})
    made.patch(monkeypatch)
    return made


def options(**more: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": "localhost:1", "topic": "out", "batchBytes": "300", **more}
    return parse_options(given, streaming=True)


def staged(number: int, rows: int = 100) -> tuple[StagedPart, ...]:
    """The rows of micro-batch `number`, in batches of several records."""
    values = [b"%d-%d" % (number, row) for row in range(rows)]
    batch = pa.record_batch({"key": values, "value": values})
    encoder = RowEncoder(options(), Partitioner(lambda topic: 3, 0), StagingWriter(None, "q"))
    return encoder.encode([batch])


def commit(
    number: int | None,
    rows: int = 100,
    *,
    chosen: SinkOptions | None = None,
    query: str = QUERY,
    who: str = "id",
) -> bool:
    identity = BatchIdentity(who, number, query)
    made = SinkTransaction(SinkConnection("localhost:1"), chosen or options(), identity, None)
    return made.commit(staged(number or 0, rows))


def wanted(*numbers: int) -> list[bytes]:
    return sorted(b"%d-%d" % (number, row) for number in numbers for row in range(100))


def values(cluster: FakeCluster) -> list[bytes]:
    return sorted(value for _, value in cluster.values)


def test_micro_batch_is_one_transaction_with_its_number(cluster: FakeCluster) -> None:
    assert commit(0)
    assert values(cluster) == wanted(0)
    assert {place for place, _ in cluster.values} == {("out", 0), ("out", 1), ("out", 2)}
    assert cluster.offsets == {"id": {(PROGRESS_TOPIC, 0): (1, QUERY)}}
    assert cluster.steps.count("end") == cluster.steps.count("init_producer") == 1
    assert cluster.steps.count("add_partitions") == 1
    assert cluster.steps.count("append") > 3  # several batches of a partition, one by one


def test_committed_micro_batch_is_not_written_again(cluster: FakeCluster) -> None:
    assert commit(0)
    assert not commit(0)
    assert commit(1)
    assert not commit(0)
    assert values(cluster) == wanted(0, 1)


def steps_of_a_commit() -> int:
    with pytest.MonkeyPatch.context() as patched:
        cluster = FakeCluster({"out": 3})
        cluster.patch(patched)
        commit(0)
        cluster.restart_driver()
        commit(1)
        return len(cluster.steps)


@pytest.mark.parametrize("when", ["before", "after"])
def test_each_record_is_there_once_wherever_driver_is_killed(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = steps_of_a_commit()
    assert count > 8
    for step in range(count):
        cluster = FakeCluster({"out": 3})
        cluster.patch(monkeypatch)
        commit(0)
        cluster.restart_driver()
        cluster.kill_at = (step, when)
        with pytest.raises(Killed):
            commit(1)
        assert values(cluster) in (wanted(0), wanted(0, 1))
        cluster.restart_driver()
        commit(1)  # Spark repeats the micro-batch
        commit(2)
        assert values(cluster) == wanted(0, 1, 2), f"killed {when} {cluster.steps[step]}"


def test_driver_presumed_dead_is_fenced(cluster: FakeCluster) -> None:
    """It sends its last batches after the other driver has committed the same micro-batch."""

    def other_driver(step: str) -> None:
        if step == "add_offsets":
            cluster.trouble = lambda step: None
            assert commit(0)

    cluster.trouble = other_driver
    with pytest.raises(SinkError, match="another writer with the same transactionalId"):
        commit(0)
    assert values(cluster) == wanted(0)


@pytest.mark.parametrize("step", ["init_producer", "append", "commit_offsets", "end"])
def test_lost_answer_is_asked_for_again(step: str, cluster: FakeCluster) -> None:
    """The request was executed, but its answer was lost."""
    call = getattr(cluster, f"_{step}")
    left = [1]

    def lost(*given: object, **named: object) -> object:
        found = call(*given, **named)
        if left:
            left.pop()
            raise Closed("the connection was closed")
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cluster, f"_{step}", lost)
        cluster.patch(patched)
        assert commit(0)
    assert values(cluster) == wanted(0)


def test_error_that_passes_is_repeated_and_a_final_one_aborts(cluster: FakeCluster) -> None:
    codes = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR]

    def busy(step: str) -> None:
        if step == "init_producer" and codes:
            raise BrokerError("InitProducerId", codes.pop())

    cluster.trouble = busy
    assert commit(0)
    cluster.restart_driver()

    def refuse(step: str) -> None:
        if step == "add_offsets":
            raise BrokerError("AddOffsetsToTxn", ErrorCode.GROUP_AUTHORIZATION_FAILED)

    cluster.trouble = refuse
    with pytest.raises(SinkError, match="GROUP_AUTHORIZATION_FAILED"):
        commit(1)
    assert cluster.steps[-1] == "end"
    assert values(cluster) == wanted(0)


def test_empty_micro_batch_is_recorded_and_empty_batch_needs_no_transaction(
    cluster: FakeCluster,
) -> None:
    assert commit(0, rows=0)
    assert cluster.offsets["id"] == {(PROGRESS_TOPIC, 0): (1, QUERY)}
    cluster.restart_driver()
    assert commit(None, rows=0, query="")
    assert cluster.steps == []


def test_batch_without_number_is_written_each_time(cluster: FakeCluster) -> None:
    assert commit(None, query="", who="a")
    assert commit(None, query="", who="b")
    assert values(cluster) == sorted(wanted(0) * 2)
    assert cluster.offsets == {}


def test_lost_progress_is_refused(cluster: FakeCluster) -> None:
    """Micro-batch 7 without progress: it may have been written before the progress expired."""
    with pytest.raises(SinkError, match=r"initialBatchId=7 writes it, 8 leaves it out"):
        commit(7)
    assert not commit(7, chosen=options(initialBatchId="8"))
    assert values(cluster) == []
    assert commit(7, chosen=options(initialBatchId="7"))
    assert values(cluster) == wanted(7)
    assert commit(8, chosen=options(initialBatchId="7"))


def test_number_of_a_batch_may_begin_anywhere(cluster: FakeCluster) -> None:
    assert commit(20261122, query="")
    assert not commit(20261122, query="")
    assert commit(20261123, query="")


def test_transactional_id_of_another_query_is_refused(cluster: FakeCluster) -> None:
    """With a new checkpoint the numbers begin again: the new micro-batches would be left out."""
    commit(0)
    for query in ("another", ""):
        with pytest.raises(SinkError, match="use another transactionalId"):
            commit(0, query=query)
    assert values(cluster) == wanted(0)


def test_waves_have_one_batch_of_each_partition_in_order() -> None:
    parts = staged(0)
    for part in parts:
        seen: dict[tuple[str, int], bytes] = {}
        for wave in waves(part, memoryview(part.data)):
            assert wave
            for place, (batch, data) in wave.items():
                assert len(data) == batch.size_bytes
                seen[place] = seen.get(place, b"") + bytes(data)
        assert sum(map(len, seen.values())) == part.size_bytes
