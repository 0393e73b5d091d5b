"""A fake Kafka broker, without a log, whose responses a test controls: for testing clients.

It holds partitions as bytes of batches. `trouble(key, request)` may replace the response by another
one: a response, an error code for the partition that is asked for, or CLOSE.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.batches import iter_batches
from kafkawire.codec.compile import decoder, encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages import api_versions, describe_configs, fetch, list_offsets, metadata
from kafkawire.messages.headers import RequestHeader, ResponseHeader
from kafkawire.messages.registry import request_class, spec_of

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, DESCRIBE_CONFIGS = 1, 2, 3, 18, 32
CLOSE = object()
NODE = 1


@dataclass
class Log:
    """A partition. `aborted`: (producer id, first offset, last offset)."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0
    stable: int | None = None
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    def from_offset(self, offset: int, most: int) -> bytes:
        """Whole batches that end after `offset`, and the beginning of the next one."""
        data = b"".join(b for b in self.batches if next(iter_batches(b))[1].last_offset >= offset)
        first = struct.unpack_from(">i", data, 8)[0] + 12 if data else 0
        return data[: max(most, first)]


@dataclass
class FakeKafka:
    """The broker of this module. `asked`: keys of requests, in order."""

    port: int
    logs: dict[tuple[str, int], Log] = field(default_factory=dict)
    ids: Mapping[str, bytes] = field(default_factory=dict)
    cluster_id: str = "abcdefghijklmnopqrstuv"
    trouble: Callable[[int, Any], Any] = lambda key, request: None
    asked: list[int] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, key: int, request: Any) -> Any:
        """A response, or CLOSE."""
        self.asked.append(key)
        other = self.trouble(key, request)
        if other is not None and not isinstance(other, ErrorCode):
            return other
        return {
            API_VERSIONS: self._api_versions, METADATA: self._metadata,
            LIST_OFFSETS: self._list_offsets, FETCH: self._fetch,
            DESCRIBE_CONFIGS: self._describe_configs,
        }[key](request, int(other or 0))  # fmt: skip

    def _api_versions(self, request: Any, code: int) -> Any:
        keys = (FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, DESCRIBE_CONFIGS)
        rows = [api_versions.ApiVersion(key, 0, 12) for key in keys]
        return api_versions.ApiVersionsResponse(error_code=code, api_keys=rows)

    def _metadata(self, request: Any, code: int) -> Any:
        names = {name for name, _ in self.logs}
        wanted = names if request.topics is None else [row.name for row in request.topics]
        topics = []
        for name in sorted(wanted):
            indexes = sorted(index for topic, index in self.logs if topic == name)
            rows = [
                metadata.MetadataResponsePartition(partition_index=index, leader_id=NODE)
                for index in indexes
            ]
            unknown = 0 if name in names else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topics.append(
                metadata.MetadataResponseTopic(
                    error_code=code or unknown, name=name, partitions=rows,
                    topic_id=self.ids.get(name, bytes(16)), is_internal=name.startswith("__"),
                )
            )  # fmt: skip
        brokers = [metadata.MetadataResponseBroker(node_id=NODE, host="127.0.0.1", port=self.port)]
        return metadata.MetadataResponse(
            brokers=brokers, cluster_id=self.cluster_id, controller_id=NODE, topics=topics
        )

    def _describe_configs(self, request: Any, code: int) -> Any:
        results = [
            describe_configs.DescribeConfigsResult(code, None, row.resource_type, row.resource_name)
            for row in request.resources
        ]
        return describe_configs.DescribeConfigsResponse(results=results)

    def _list_offsets(self, request: Any, code: int) -> Any:
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                log = self.logs.get((topic.name, row.partition_index))
                offset, error = -1, code
                if log is None:
                    error = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                elif not code:
                    offset = _listed(log, row.timestamp, request.isolation_level)
                rows.append(
                    list_offsets.ListOffsetsPartitionResponse(
                        row.partition_index, error, -1, offset
                    )
                )
            topics.append(list_offsets.ListOffsetsTopicResponse(topic.name, rows))
        return list_offsets.ListOffsetsResponse(topics=topics)

    def _fetch(self, request: Any, code: int) -> Any:
        [topic] = request.topics
        [row] = topic.partitions
        log = self.logs.get((topic.topic, row.partition))
        data = fetch.PartitionData(partition_index=row.partition, error_code=code)
        if log is None:
            data.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif not code and not log.start <= row.fetch_offset <= log.end:
            data.error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif not code:
            stable = log.end if log.stable is None else log.stable
            data.high_watermark, data.last_stable_offset = log.end, stable
            data.log_start_offset = log.start
            data.records = log.from_offset(row.fetch_offset, row.partition_max_bytes)
            data.aborted_transactions = [
                fetch.AbortedTransaction(producer, first)
                for producer, first, last in log.aborted
                if request.isolation_level and last >= row.fetch_offset
            ]
        answer = fetch.FetchableTopicResponse(topic=topic.topic, partitions=[data])
        return fetch.FetchResponse(responses=[answer])


def _listed(log: Log, timestamp: int, isolation: int) -> int:
    if timestamp == -2:
        return log.start
    if timestamp == -1:
        return log.end if log.stable is None or not isolation else log.stable
    for data in log.batches:
        _, head = next(iter_batches(data))
        if head.max_timestamp >= timestamp:
            return max(head.base_offset, log.start)
    return -1


@contextmanager
def serving(logs: dict[tuple[str, int], Log]) -> Iterator[FakeKafka]:
    """Run a broker on a free port until the context ends."""
    kafka = FakeKafka(0, logs)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                while head := self._take(4):
                    frame = self._take(struct.unpack(">i", head)[0])
                    key, version = struct.unpack_from(">hh", frame)
                    spec = spec_of(key)
                    header, at = decoder(RequestHeader, spec.request_header_version(version))(
                        frame, 0, len(frame)
                    )
                    request, _ = decoder(request_class(key), version)(frame, at, len(frame))
                    response = kafka.answer(key, request)
                    if response is CLOSE:
                        return
                    body = encode(
                        ResponseHeader(header.correlation_id), spec.response_header_version(version)
                    ) + encode(response, version)
                    self.request.sendall(struct.pack(">i", len(body)) + body)
            except ConnectionError:
                return

        def _take(self, size: int) -> bytes:
            data = b""
            while len(data) < size and (more := self.request.recv(size - len(data))):
                data += more
            return data

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        kafka.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield kafka
        finally:
            server.shutdown()
            thread.join()
