"""Records and offsets in Apache Kafka and in ours: each response compared, field by field.

Fields that are not compared are given with the request as `but`: the list of differences in
responses.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.messages import delete_records, fetch, init_producer_id, offset_for_leader_epoch
from tests.java.twins import Twins, list_offsets_request, send
from tests.real.conftest import START_MS


@pytest.mark.parametrize("after_start_ms", [1, 1000, 2001, 9999])
def test_list_offsets_by_timestamp_matches(twins: Twins, topic: str, after_start_ms: int) -> None:
    for version in (1, 4, 11):
        request = list_offsets_request(topic, START_MS + after_start_ms, 0, 1, 7)
        twins.ask("ListOffsets", request, version)


@pytest.mark.parametrize("stamp", [-1, -2, -3, -4, -5, -6, -7, 0])
def test_list_offsets_matches(twins: Twins, topic: str, stamp: int) -> None:
    for version in (1, 4, 11):
        twins.ask("ListOffsets", list_offsets_request(topic, stamp, 0, 1, 7), version)


@pytest.mark.parametrize("epoch", [-1, 0, 5])
def test_leader_epoch_requests_match(twins: Twins, topic: str, epoch: int) -> None:
    twins.ask("ListOffsets", list_offsets_request(topic, -1, epoch=epoch), 6)
    for asked in (-1, 0, 5):
        rows = [
            offset_for_leader_epoch.OffsetForLeaderPartition(
                partition=p, current_leader_epoch=epoch, leader_epoch=asked
            )
            for p in (0, 9)
        ]
        named = offset_for_leader_epoch.OffsetForLeaderTopic(topic=topic, partitions=rows)
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(replica_id=-1, topics=[named])
        twins.ask("OffsetForLeaderEpoch", request, 4)


def fetch_request(topic: str, offset: int, index: int = 0, **partition: int) -> Any:
    fields: dict[str, Any] = {
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
        **partition,
    }
    row = fetch.FetchPartition(partition=index, fetch_offset=offset, log_start_offset=-1, **fields)
    named = fetch.FetchTopic(topic=topic, partitions=[row])
    return fetch.FetchRequest(replica_id=-1, max_bytes=1 << 20, session_epoch=-1, topics=[named])


# With an error Kafka leaves out what we know of the partition.
STATE = ("high_watermark", "last_stable_offset", "log_start_offset")


ABORTED = ("aborted_transactions",)  # null or empty where there can be none


@pytest.mark.parametrize("version", [4, 5, 7, 11, 12])
def test_fetch_matches(twins: Twins, topic: str, version: int) -> None:
    """The batches themselves are compared, too: stored, they are the same bytes."""
    for offset in (0, 4, 8, 9):
        twins.ask("Fetch", fetch_request(topic, offset), version)
    for offset in (10, -1):
        twins.ask("Fetch", fetch_request(topic, offset), version, but=STATE + ABORTED)
    twins.ask("Fetch", fetch_request(topic, 3, partition_max_bytes=10), version)
    twins.ask("Fetch", fetch_request(topic, 0, 9), version, but=ABORTED)
    twins.ask("Fetch", fetch_request("none", 0), version, but=ABORTED)
    if version >= 9:
        twins.ask("Fetch", fetch_request(topic, 0, current_leader_epoch=7), version, but=ABORTED)


def test_delete_records_matches(twins: Twins, topic: str) -> None:
    for offset in (2, 1, 99, -5, -1):
        rows = [
            delete_records.DeleteRecordsPartition(partition_index=p, offset=offset) for p in (0, 9)
        ]
        named = delete_records.DeleteRecordsTopic(name=topic, partitions=rows)
        request = delete_records.DeleteRecordsRequest(topics=[named], timeout_ms=10_000)
        twins.ask("DeleteRecords", request, 2)
        twins.ask("ListOffsets", list_offsets_request(topic, -2), 9)


def test_idempotent_produce_matches(twins: Twins, topic: str) -> None:
    """Sequences in order, again, with gaps, too old, of another epoch, of an unknown producer."""
    ask = init_producer_id.InitProducerIdRequest(transactional_id=None)
    ids = [answer.producer_id for answer in twins.ask("InitProducerId", ask, 4)]
    pairs = [(b"k", b"v")] * 2
    for sequence, epoch in (
        *((0, 0), (2, 0), (0, 0), (9, 0), (1, 0), (4, 0), (6, 0), (8, 0), (10, 0)),
        *((0, 0), (2, 0), (4, 0), (5, 1), (0, 1), (12, 0)),
    ):
        # Kafka returns the original's timestamp for a duplicate even under CreateTime, and the log
        # start with some errors.
        twins.ask(
            "Produce",
            lambda index, sequence=sequence, epoch=epoch: send(  # type: ignore[misc]
                topic,
                pairs,
                START_MS,
                producer_id=ids[index],
                producer_epoch=epoch,
                base_sequence=sequence,
            ),
            9,
            but=("log_append_time_ms", "log_start_offset"),
        )
    for sequence, count in (((1 << 31) - 1, 3), (2, 1), ((1 << 31) - 1, 3)):
        request = send(
            topic,
            [(b"k", b"v")] * count,
            START_MS,
            producer_id=987_654,
            producer_epoch=0,
            base_sequence=sequence,
        )
        twins.ask("Produce", request, 9, but=("log_append_time_ms", "log_start_offset"))
