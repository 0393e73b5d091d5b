"""Requests that append, read and delete records."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from kafkawire.codec.batches import TRANSACTIONAL, build
from kafkawire.messages import delete_records, fetch, list_offsets, produce, write_txn_markers
from tests.java.calls.wire import CONCURRENT, Owner, Part, Wire
from tests.java.log_content import Batch, read_batches


class Fetched(NamedTuple):
    code: int
    high_watermark: int
    stable: int
    start: int
    aborted: list[tuple[str, int]] | None
    """(name of the producer, first offset); None as sent to read_uncommitted consumers."""
    batches: list[Batch]

    def values(self) -> list[bytes]:
        """Return the values of all records, markers left out."""
        return [value for batch in self.batches for value in batch.values]

    def visible(self) -> list[bytes]:
        """Return the values that a read_committed consumer delivers, by the rule of Java's."""
        waiting = sorted(self.aborted or [], key=lambda row: row[1])
        dropped: set[str] = set()
        found: list[bytes] = []
        for batch in self.batches:
            while waiting and waiting[0][1] <= batch.last:
                dropped.add(waiting.pop(0)[0])
            if batch.kind == "abort":
                dropped.discard(batch.producer)
            elif batch.kind != "transactional" or batch.producer not in dropped:
                found += batch.values
        return found


class RecordCalls(Wire):
    """Produce, Fetch, ListOffsets, DeleteRecords, WriteTxnMarkers."""

    def produce_once(
        self,
        part: Part,
        owner: Owner,
        sequence: int,
        *values: bytes,
        version: int = 11,
        transactional_id: str | None = "",
        attributes: int = TRANSACTIONAL,
        stamp_ms: int = 0,
    ) -> tuple[int, int]:
        """Send one batch; return (code, offset). `transactional_id` is the owner's if empty."""
        records = build(
            [(b"k", value) for value in values or (b"v",)],
            timestamp_ms=stamp_ms or int(time.time() * 1000),
            producer_id=owner.pid,
            producer_epoch=owner.epoch,
            base_sequence=sequence,
            attributes=attributes,
        )
        id = owner.id if transactional_id == "" else transactional_id
        answer = self.ask("Produce", self.produce_request(id, [(part, records)]), version)
        row = answer.responses[0].partition_responses[0]
        return row.error_code, row.base_offset

    def produce(self, part: Part, owner: Owner, *args: Any, **fields: Any) -> tuple[int, int]:
        """As `produce_once`, repeated while the answer is to retry: NOT_ENOUGH_REPLICAS (19) stands
        for CONCURRENT_TRANSACTIONS in old versions."""
        found: tuple[int, int] = self.final(
            lambda: self.produce_once(part, owner, *args, **fields),
            lambda answer: CONCURRENT if answer[0] == 19 else answer[0],
        )
        return found

    def write(self, part: Part, *values: bytes) -> int:
        """Append one batch without a producer; return its offset."""
        records = build([(b"k", v) for v in values], timestamp_ms=int(time.time() * 1000))
        answer = self.send("Produce", self.produce_request(None, [(part, records)]), 11)
        row = answer.responses[0].partition_responses[0]
        assert row.error_code == 0
        return int(row.base_offset)

    def fetch(
        self,
        part: Part,
        offset: int = 0,
        *,
        committed: bool = True,
        version: int = 12,
        wait_ms: int = 0,
    ) -> Fetched:
        """Read from `offset`, waiting for a first byte up to `wait_ms`.

        The aborted list is not compared: brokers may list transactions after the data.
        """
        row = fetch.FetchPartition(
            partition=part[1], fetch_offset=offset, partition_max_bytes=1 << 20
        )
        named = fetch.FetchTopic(part[0], self.topic_ids.get(part[0], bytes(16)), [row])
        request = fetch.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 24,
            isolation_level=int(committed),
            topics=[named],
        )
        answer = self.send("Fetch", request, version)
        got = answer.responses[0].partitions[0]
        aborted = None
        if got.aborted_transactions is not None:
            rows = got.aborted_transactions
            aborted = [(self.aliases.get(r.producer_id, "?"), r.first_offset) for r in rows]
        found = Fetched(
            got.error_code,
            got.high_watermark,
            got.last_stable_offset,
            got.log_start_offset,
            aborted,
            read_batches(got.records or b"", self.aliases),
        )
        fields = found._replace(aborted=None if aborted is None else [])._asdict()
        if found.code:  # with an error Kafka leaves out what we know of the partition
            fields = {"code": found.code}
        self.transcript.append((f"Fetch v{version} from {offset}", fields))
        return found

    def offset_of(self, part: Part, timestamp: int = -1, *, committed: bool = False) -> int:
        """ListOffsets: the end of the partition, or the offset for a timestamp."""
        row = list_offsets.ListOffsetsPartition(
            partition_index=part[1], timestamp=timestamp, current_leader_epoch=-1
        )
        named = list_offsets.ListOffsetsTopic(name=part[0], partitions=[row])
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1, isolation_level=int(committed), topics=[named]
        )
        found = self.ask("ListOffsets", request, 9).topics[0].partitions[0]
        assert found.error_code == 0
        return int(found.offset)

    def markers(
        self,
        part: Part,
        pid: int,
        epoch: int,
        *,
        commit: bool = False,
        coordinator_epoch: int = 0,
        version: int = 1,
        transaction_version: int = 0,
    ) -> int:
        """WriteTxnMarkers with one marker for one partition; return its code."""
        named = write_txn_markers.WritableTxnMarkerTopic(name=part[0], partition_indexes=[part[1]])
        marker = write_txn_markers.WritableTxnMarker(
            producer_id=pid,
            producer_epoch=epoch,
            transaction_result=commit,
            topics=[named],
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )
        request = write_txn_markers.WriteTxnMarkersRequest(markers=[marker])
        answer = self.ask("WriteTxnMarkers", request, version)
        return int(answer.markers[0].topics[0].partitions[0].error_code)

    def produce_request(self, id: str | None, rows: list[tuple[Part, Any]]) -> Any:
        """Return the request for these (partition, batch)."""
        topics: dict[str, list[produce.PartitionProduceData]] = {}
        for (topic, index), records in rows:
            data = produce.PartitionProduceData(index=index, records=records)
            topics.setdefault(topic, []).append(data)
        return produce.ProduceRequest(
            transactional_id=id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                produce.TopicProduceData(topic, self.topic_ids.get(topic, bytes(16)), data)
                for topic, data in topics.items()
            ],
        )

    def produce_mixed(self, id: str | None, *rows: tuple[Part, Owner], version: int) -> list[int]:
        """Send one batch per (partition, producer) in one request; return the codes."""
        batches = [
            (
                part,
                build(
                    [(b"k", b"v")],
                    timestamp_ms=int(time.time() * 1000),
                    producer_id=owner.pid,
                    producer_epoch=owner.epoch,
                    base_sequence=0,
                    attributes=TRANSACTIONAL,
                ),
            )
            for part, owner in rows
        ]
        answer = self.send("Produce", self.produce_request(id, batches), version)
        for topic in answer.responses:  # in Kafka in the order of a hash table
            topic.partition_responses.sort(key=lambda row: row.index)
        answer.responses.sort(key=lambda topic: topic.name)
        self.note(f"Produce v{version}", answer)
        found = {
            (topic.name, row.index): row.error_code
            for topic in answer.responses
            for row in topic.partition_responses
        }
        return [found[part] for part, _ in rows]

    def delete_records(self, part: Part, offset: int) -> int:
        """DeleteRecords before `offset`; return the code."""
        row = delete_records.DeleteRecordsPartition(partition_index=part[1], offset=offset)
        named = delete_records.DeleteRecordsTopic(name=part[0], partitions=[row])
        request = delete_records.DeleteRecordsRequest(topics=[named], timeout_ms=10_000)
        return int(self.ask("DeleteRecords", request, 2).topics[0].partitions[0].error_code)
