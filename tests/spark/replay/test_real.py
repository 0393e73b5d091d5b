"""Replays to a real broker, read back by librdkafka: equal rows, also after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError
from kafkawire.client.offsets import LATEST, leaders, list_offsets
from kafkawire.progress import silent
from kafkawire.reading.model.source import PartitionRange
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.pipeline.jobs.state import FileFacts, RunRecord, Share
from kafkawire_spark.replay.job import ReplayRequest, Summary, open_table, replay
from kafkawire_spark.replay.lane import ComparedRow
from kafkawire_spark.replay.record import Bound, ReplayError
from tests.kit.json_schema import check_document
from tests.kit.spark.pipeline_tables import ROW, MadeTable
from tests.spark.replay.test_replay import expected

pytestmark = pytest.mark.real


def read_back(bootstrap: str, topic: str, partition: int, count: int) -> list[ComparedRow]:
    """The first records of a partition, after which there must be no more."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False}
    )
    place = TopicPartition(topic, partition, 0)
    try:
        assert consumer.get_watermark_offsets(place, timeout=60)[1] == count
        consumer.assign([place])
        found: list[ComparedRow] = []
        end = time.monotonic() + 60
        while len(found) < count and time.monotonic() < end:
            for message in consumer.consume(1000, 1.0):
                assert message.error() is None
                assert message.offset() == len(found)
                headers = tuple(message.headers() or ())
                stamp = message.timestamp()[1]
                found.append(ComparedRow(stamp, message.key(), message.value(), headers))
        return found
    finally:
        consumer.close()


def replayed(wish: ReplayRequest) -> Summary:
    return replay(wish, open_table(wish), silent)


@pytest.fixture
def table(tmp_path: Path) -> MadeTable:
    made = MadeTable(tmp_path / "table")
    made.run({0: [ROW] * 40 + ["compacted"] * 20 + [ROW] * 90, 1: [ROW] * 30, 2: []}, files=2)
    made.run({0: [ROW] * 60})
    made.describe({"_value": "binary"})
    return made


def test_replayed_rows_equal_original(
    table: MadeTable, kafkawire_session_broker: BrokerProcess
) -> None:
    bootstrap = kafkawire_session_broker.bootstrap
    wish = ReplayRequest(str(table.folder), "again", bootstrap)
    with pytest.raises(ReplayError, match="--create"):
        replayed(wish)
    wish = ReplayRequest(str(table.folder), "again", bootstrap, create=True)
    assert [lane.written for lane in replayed(wish).lanes] == [190, 30]
    assert [lane.written for lane in replayed(wish).lanes] == [0, 0]
    offsets = [*range(40), *range(60, 210)]
    assert read_back(bootstrap, "again", 0, 190) == expected(offsets)
    assert read_back(bootstrap, "again", 1, 30) == expected(range(30), 1)
    with pytest.raises(ReplayError, match="another --name"):
        replayed(ReplayRequest(str(table.folder), "again", bootstrap, since=Bound(offset=3)))
    part = ReplayRequest(
        str(table.folder), "again", bootstrap, "part", since=Bound(offset=3),
        until=Bound(time_ms=1_700_000_000_010), partitions={0: 1},
    )  # fmt: skip
    (lane,) = replayed(part).lanes
    assert (lane.written, lane.begin, lane.end) == (7, 30, 37)
    rows = read_back(bootstrap, "again", 1, 37)
    assert rows[30:] == expected(range(3, 10))


def test_records_of_other_producers_end_replay(
    table: MadeTable, kafkawire_session_broker: BrokerProcess
) -> None:
    bootstrap = kafkawire_session_broker.bootstrap
    wish = ReplayRequest(str(table.folder), "shared", bootstrap, create=True, partitions={0: 0})
    replayed(wish)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("shared", b"x", partition=0)
    producer.flush(60)
    with pytest.raises(ReplayError, match="another producer wrote"):
        replayed(wish)
    with pytest.raises(ReplayError, match="no partition 7"):
        replayed(ReplayRequest(str(table.folder), "shared", bootstrap, "b", partitions={0: 7}))


def big_table(folder: Path, partitions: int, rows: int, size: int) -> MadeTable:
    """Rows of `size` random bytes, which begin with their offset."""
    made = MadeTable(folder)
    made.describe({"_value": "binary"})
    random = np.random.default_rng(1)
    files, shares = [], []
    for partition in range(partitions):
        values = random.bytes(rows * size)
        table = pa.table(
            {
                "_partition": pa.array([partition] * rows, pa.int32()),
                "_offset": pa.array(range(rows), pa.int64()),
                "_timestamp": pa.array(range(rows), pa.timestamp("us", tz="UTC")),
                "_key": pa.array([None] * rows, pa.binary()),
                "_value": pa.array(
                    [b"%d:" % at + values[at * size : (at + 1) * size] for at in range(rows)]
                ),
            }
        )
        part = PartitionRange("t", partition, 0, rows)
        name = f"t-p{partition:05}-o{0:020}-{rows:020}-r1.parquet"
        pq.write_table(table, folder / name, compression="none", row_group_size=1000)
        files.append(FileFacts(name, rows, (folder / name).stat().st_size, *part, run=1))
        shares.append(Share(part, rows))
    ends = {"t": dict.fromkeys(range(partitions), rows)}
    made.state.put_record(RunRecord("job", 1, tuple(files), (), tuple(shares), ends))
    return made


def test_killed_replay_continues(tmp_path: Path, kafkawire_session_broker: BrokerProcess) -> None:
    rows, size = 12_000, 4000
    made = big_table(tmp_path / "table", 2, rows, size)
    bootstrap = kafkawire_session_broker.bootstrap
    command = [
        sys.executable, "-P", "-m", "kafkawire", "pipeline", "replay", str(made.folder),
        "--to", "killed", "--bootstrap", bootstrap, "--create",
    ]  # fmt: skip
    interrupted = 0
    for least, sent in ((1, signal.SIGKILL), (2000, signal.SIGINT), (5000, signal.SIGKILL)):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            while process.poll() is None and end_of(bootstrap, "killed") <= least:
                time.sleep(0.002)
            process.send_signal(sent)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate(timeout=60)
        if 0 < end_of(bootstrap, "killed") < rows:
            interrupted += 1
            assert process.returncode == (130 if sent == signal.SIGINT else -sent), said
            assert (b"run the same command again" in said) == (sent == signal.SIGINT)
            assert b"rows of t counted: " in said
    assert interrupted
    again = [*command, "--json"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [lane["rows"] for lane in check_document(done.stdout)] == [rows, rows]
    for partition in range(2):
        stored = pq.read_table(made.folder / f"t-p{partition:05}-o{0:020}-{rows:020}-r1.parquet")
        values = [row.value for row in read_back(bootstrap, "killed", partition, rows)]
        assert values == stored["_value"].to_pylist()


def end_of(bootstrap: str, topic: str) -> int:
    """The end of its first partition, 0 if it does not exist."""
    with Cluster(bootstrap) as cluster:
        try:
            led_by = leaders(cluster, [topic])
        except BrokerError:
            return 0
        return list_offsets(cluster, {(topic, 0): LATEST}, led_by)[topic, 0]
