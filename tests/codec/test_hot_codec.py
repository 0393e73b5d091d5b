"""The flat Produce and Fetch codecs, compared byte for byte with the declarations."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec import fetch as flat_fetch
from kafkawire.codec.compile import DecodeError, decode, encode
from kafkawire.codec.compile_decode import MAX_ELEMENTS
from kafkawire.codec.flat import Tags, Topic
from kafkawire.codec.schema import info_of
from kafkawire.codec.types import Part
from kafkawire.handlers.leader_hints import encoded_endpoints, encoded_leader
from kafkawire.messages import flat_produce
from kafkawire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from kafkawire.messages.leaders import LeaderIdAndEpoch, NodeEndpoint
from kafkawire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

names = st.text(min_size=1, max_size=20)
ids = st.binary(min_size=16, max_size=16)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
counts = st.lists(st.integers(0, 3), max_size=3)
tags = st.none() | st.just({7: b"kept", 300: b""})


def versions(message: type) -> range:
    """All versions that a message has, so that a new one fails until the flat codec has it."""
    info = info_of(message)
    return range(info.min_version, info.max_version + 1)


def joined(parts: list[Part]) -> bytes:
    """The bytes of parts that are all in memory."""
    return b"".join(cast("list[bytes]", parts))


def topics(version: int) -> st.SearchStrategy[list[Topic]]:
    """Some topics, identified as in this version."""
    if version >= 13:
        return st.lists(ids.map(_topic), max_size=3, unique=True)
    return st.lists(names.map(_topic), max_size=3, unique=True)


def _topic(value: Topic) -> Topic:
    return value


def produce_request(draw: st.DrawFn, version: int) -> ProduceRequest:
    flexible = version >= 9
    unknown = draw(tags) if flexible else None
    topics = []
    for count in draw(counts):
        rows = [
            PartitionProduceData(draw(int32), draw(st.none() | st.binary(max_size=200)), unknown)
            for _ in range(count)
        ]
        topic = TopicProduceData(partition_data=rows, unknown_tags=unknown)
        if version >= 13:
            topic.topic_id = draw(ids)
        else:
            topic.name = draw(names)
        topics.append(topic)
    return ProduceRequest(
        draw(st.none() | names), draw(st.integers(-1, 1)), draw(int32), topics, unknown
    )


def read_produce(buf: memoryview, pos: int, end: int, version: int) -> flat_produce.ProduceAsk:
    """Decode a request in all its steps."""
    ask = flat_produce.ProduceAsk()
    for _ in flat_produce.read_request(ask, buf, pos, end, version):
        pass
    return ask


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize("tagged", [False, True])
def test_long_produce_request_is_decoded_in_steps(version: int, tagged: bool) -> None:
    unknown = {7: b"kept"} if tagged and version >= 9 else None
    count = flat_produce.MAX_TAGGED if unknown else flat_produce.MAX_ITEMS
    request = ProduceRequest("id", -1)
    for number in range(3):
        rows = [PartitionProduceData(n, b"batch", unknown) for n in range(count)]
        topic = TopicProduceData(partition_data=rows)
        topic.name, topic.topic_id = f"t{number}", bytes([number] * 16)
        request.topic_data.append(topic)
    body = memoryview(encode(request, version))
    ask = flat_produce.ProduceAsk()
    sizes = []
    for _ in flat_produce.read_request(ask, body, 0, len(body), version):
        assert (ask.transactional_id, ask.acks) == ("id", -1)
        sizes.append(len(ask.items))
    assert sizes == [count, 2 * count]
    assert [item[1] for item in ask.items] == [*range(count)] * 3
    assert all(bytes(body[start:stop]) == b"batch" for _, _, start, stop in ask.items)


@pytest.mark.parametrize("version", [3, 13])
def test_produce_request_has_a_maximum_number_of_elements(version: int) -> None:
    topics = [TopicProduceData(name="t") for _ in range(MAX_ELEMENTS + 1)]
    body = memoryview(encode(ProduceRequest(topic_data=topics), version))
    with pytest.raises(DecodeError, match="too many elements"):
        read_produce(body, 0, len(body), version)


@pytest.mark.parametrize("version", versions(ProduceRequest))
@given(data=st.data())
def test_produce_requests_are_decoded_the_same(version: int, data: st.DataObject) -> None:
    request = data.draw(st.composite(produce_request)(version))
    raw = memoryview(b"head" + encode(request, version) + b"next")
    ask = read_produce(raw, 4, len(raw) - 4, version)
    assert (ask.transactional_id, ask.acks) == (request.transactional_id, request.acks)
    expected = [
        (topic.topic_id if version >= 13 else topic.name, row.index, row.records)
        for topic in request.topic_data
        for row in topic.partition_data
    ]
    found = [
        (topic, index, None if start < 0 else bytes(raw[start:stop]))
        for topic, index, start, stop in ask.items
    ]
    assert found == expected


@dataclass
class Hints:
    """Tagged fields of a response: its leaders and their addresses."""

    leaders: dict[tuple[Topic, int], LeaderIdAndEpoch]
    nodes: list[NodeEndpoint]

    def encoded(self, tag: int) -> Tags | None:
        if not self.nodes:
            return None
        leaders = {
            key: encoded_leader(one.leader_id, one.leader_epoch, tag)
            for key, one in self.leaders.items()
        }
        return leaders, encoded_endpoints(self.nodes)


NO_HINTS = Hints({}, [])


@st.composite
def hints(draw: st.DrawFn, keys: Iterable[tuple[Topic, int]]) -> Hints:
    """Hints for some of the partitions."""
    chosen = [key for key in keys if draw(st.booleans())]
    racks = st.none() | st.text(max_size=99)
    node = st.builds(NodeEndpoint, int32, st.text(max_size=99), int32, racks)
    if not chosen:
        return NO_HINTS
    leaders = {key: LeaderIdAndEpoch(draw(int32), draw(int32)) for key in chosen}
    return Hints(leaders, draw(st.lists(node, min_size=1, max_size=3)))


def produce_results(draw: st.DrawFn, version: int) -> list[flat_produce.ProduceResult]:
    results: list[flat_produce.ProduceResult] = []
    for topic in draw(topics(version)):
        for index in range(draw(st.integers(1, 3))):
            message = draw(st.none() | names) if version >= 8 else None
            errors: tuple[tuple[int, str], ...] = ()
            if draw(st.booleans()):
                errors = ((draw(st.integers(0, 9)), draw(names)),)
            results.append(
                (
                    topic,
                    index,
                    draw(st.integers(-1, 130)),
                    draw(int64),
                    draw(int64),
                    draw(int64) if version >= 5 else -1,
                    message,
                    errors if version >= 8 else (),
                )
            )
    return results


@pytest.mark.parametrize("version", versions(ProduceRequest))
@given(data=st.data())
def test_produce_responses_are_encoded_the_same(version: int, data: st.DataObject) -> None:
    results = data.draw(st.composite(produce_results)(version))
    response = ProduceResponse()
    response.responses = []
    tags = data.draw(hints((row[0], row[1]) for row in results)) if version >= 10 else NO_HINTS
    response.node_endpoints = tags.nodes
    for topic, index, code, base, time_ms, start, message, errors in results:
        row = PartitionProduceResponse(
            index,
            code,
            base,
            time_ms,
            start,
            [BatchIndexAndErrorMessage(number, text) for number, text in errors],
            message,
            tags.leaders.get((topic, index)) if code else None,
        )
        last = response.responses[-1] if response.responses else None
        if last is None or topic not in (last.name, last.topic_id):
            last = TopicProduceResponse(partition_responses=[])
            if isinstance(topic, bytes):
                last.topic_id = topic
            else:
                last.name = topic
            response.responses.append(last)
        last.partition_responses.append(row)
    body = flat_produce.write_response(results, version, 0, tags.encoded(0))
    assert body == encode(response, version)


def fetch_request(draw: st.DrawFn, version: int) -> FetchRequest:
    unknown = draw(tags) if version >= 12 else None
    topics, forgotten = [], []
    for count in draw(counts):
        rows = []
        for _ in range(count):
            row = FetchPartition(draw(int32), fetch_offset=draw(int64), unknown_tags=unknown)
            row.partition_max_bytes = draw(int32)
            if version >= 9:
                row.current_leader_epoch = draw(int32)
            if version >= 12:
                row.last_fetched_epoch = draw(int32)
            if version >= 17:
                row.replica_directory_id = draw(ids)
            if version >= 18:
                row.high_watermark = draw(int64)
            rows.append(row)
        topic = FetchTopic(partitions=rows, unknown_tags=unknown)
        gone = ForgottenTopic(partitions=draw(st.lists(int32, max_size=3)), unknown_tags=unknown)
        for named in (topic, gone):
            if version >= 13:
                named.topic_id = draw(ids)
            else:
                named.topic = draw(names)
        topics.append(topic)
        if version >= 7:
            forgotten.append(gone)
    request = FetchRequest(topics=topics, forgotten_topics_data=forgotten, unknown_tags=unknown)
    request.max_wait_ms, request.min_bytes = draw(int32), draw(int32)
    request.max_bytes, request.isolation_level = draw(int32), draw(st.integers(0, 1))
    if version >= 7:
        request.session_id, request.session_epoch = draw(int32), draw(int32)
    if version >= 11:
        request.rack_id = draw(st.text(max_size=5))
    return request


def read_fetch(buf: memoryview, pos: int, end: int, version: int) -> flat_fetch.FetchAsk:
    """Decode a request in all its steps."""
    ask = flat_fetch.FetchAsk()
    for _ in flat_fetch.read_request(ask, buf, pos, end, version):
        pass
    return ask


@pytest.mark.parametrize("version", versions(FetchRequest))
@given(data=st.data())
def test_fetch_requests_are_decoded_the_same(version: int, data: st.DataObject) -> None:
    request = data.draw(st.composite(fetch_request)(version))
    raw = memoryview(b"head" + encode(request, version) + b"next")
    ask = read_fetch(raw, 4, len(raw) - 4, version)
    assert (ask.max_wait_ms, ask.min_bytes, ask.max_bytes, ask.isolation) == (
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
    )
    assert (ask.session_id, ask.session_epoch) == (request.session_id, request.session_epoch)
    assert ask.rack == request.rack_id
    assert ask.items == asked_items(request, version)


def asked_items(request: FetchRequest, version: int) -> list[flat_fetch.FetchItem]:
    return [
        (
            topic.topic_id if version >= 13 else topic.topic,
            row.partition,
            row.current_leader_epoch,
            row.fetch_offset,
            row.last_fetched_epoch,
            row.partition_max_bytes,
        )
        for topic in request.topics
        for row in topic.partitions
    ]


@pytest.mark.parametrize("version", [4, 11, 12, 18])
@pytest.mark.parametrize("tagged", [False, True])
def test_long_fetch_request_is_decoded_in_steps(version: int, tagged: bool) -> None:
    unknown = {7: b"kept"} if tagged and version >= 12 else None
    count = flat_fetch.MAX_TAGGED if unknown else flat_fetch.MAX_ITEMS
    request = FetchRequest(rack_id="r" if version >= 11 else "")
    for number in range(3):
        rows = [FetchPartition(n, fetch_offset=n, unknown_tags=unknown) for n in range(count)]
        name = {"topic_id": bytes([number] * 16)} if version >= 13 else {"topic": f"t{number}"}
        request.topics.append(FetchTopic(partitions=rows, **name))
    body = memoryview(encode(request, version))
    ask = flat_fetch.FetchAsk()
    sizes = []
    for _ in flat_fetch.read_request(ask, body, 0, len(body), version):
        sizes.append(len(ask.items))
    assert sizes == [count, 2 * count]
    assert ask.items == asked_items(request, version)
    assert ask.rack == request.rack_id


@pytest.mark.parametrize("version", [11, 12])
def test_fetch_request_has_a_maximum_number_of_elements(version: int) -> None:
    for count, allowed in ((1_000, True), (MAX_ELEMENTS + 1, False)):
        topics = [FetchTopic(topic="t") for _ in range(count)]
        body = memoryview(encode(FetchRequest(topics=topics), version))
        if allowed:
            assert not read_fetch(body, 0, len(body), version).items
        else:
            with pytest.raises(DecodeError, match="too many elements"):
                read_fetch(body, 0, len(body), version)


@pytest.mark.parametrize("version", [4, 12, 13])
def test_long_fetch_response_is_encoded_in_steps(version: int) -> None:
    results = []
    response = FetchResponse()
    for number in range(3):
        topic = bytes([number] * 16) if version >= 13 else f"t{number}"
        rows = []
        for n in range(flat_fetch.MAX_ITEMS):
            result = flat_fetch.FetchResult(topic, n, records=[b"ab"] * (n % 3))
            result.size_bytes = 2 * (n % 3)
            results.append(result)
            rows.append(PartitionData(n, 0, -1, aborted_transactions=None, records=b"ab" * (n % 3)))
        name = {"topic_id": topic} if version >= 13 else {"topic": topic}
        response.responses.append(FetchableTopicResponse(partitions=rows, **name))  # type: ignore[arg-type]
    parts: list[Part] = []
    steps = 0
    for _ in flat_fetch.write_response(parts, results, version, read_committed=False):
        steps += 1
    assert steps == 3 + 3  # topics are counted before
    assert joined(parts) == encode(response, version)


def fetch_results(draw: st.DrawFn, version: int) -> list[flat_fetch.FetchResult]:
    results = []
    for topic in draw(topics(version)):
        for index in range(draw(st.integers(1, 3))):
            result = flat_fetch.FetchResult(topic, index, draw(st.integers(-1, 130)))
            result.high_watermark, result.last_stable_offset = draw(int64), draw(int64)
            result.log_start_offset = draw(int64) if version >= 5 else -1
            result.preferred = draw(int32) if version >= 11 else -1
            result.records = list(draw(st.lists(st.binary(min_size=1, max_size=99), max_size=3)))
            result.size_bytes = sum(map(len, result.records))
            result.aborted = draw(st.lists(st.tuples(int64, int64), max_size=3))
            if version >= 12 and draw(st.booleans()):
                result.diverging = (draw(st.integers(0, 99)), draw(st.integers(0, 2**40)))
            results.append(result)
    return results


@pytest.mark.parametrize("version", versions(FetchRequest))
@given(data=st.data(), committed=st.booleans())
def test_fetch_responses_are_encoded_the_same(
    version: int, data: st.DataObject, committed: bool
) -> None:
    results = data.draw(st.composite(fetch_results)(version))
    response = FetchResponse()
    response.responses = []
    tags = NO_HINTS
    if version >= 16:
        tags = data.draw(hints((row.topic, row.index) for row in results if not row.diverging))
    response.node_endpoints = tags.nodes
    for result in results:
        last = response.responses[-1] if response.responses else None
        if last is None or result.topic not in (last.topic, last.topic_id):
            last = FetchableTopicResponse(partitions=[])
            if isinstance(result.topic, bytes):
                last.topic_id = result.topic
            else:
                last.topic = result.topic
            response.responses.append(last)
        row = PartitionData(result.index, result.error_code, result.high_watermark)
        row.last_stable_offset = result.last_stable_offset
        row.log_start_offset = result.log_start_offset
        row.preferred_read_replica = result.preferred
        aborted = [AbortedTransaction(*each) for each in result.aborted]
        row.aborted_transactions = aborted if committed else None
        row.records = joined(result.records)
        if result.diverging is not None:
            row.diverging_epoch = EpochEndOffset(*result.diverging)
        if result.error_code:
            row.current_leader = tags.leaders.get((result.topic, result.index))
        last.partitions.append(row)
    parts: list[Part] = []
    for _ in flat_fetch.write_response(
        parts, results, version, read_committed=committed, tags=tags.encoded(1)
    ):
        pass
    assert joined(parts) == encode(response, version)
    assert decode(FetchResponse, version, joined(parts)) is not None


@pytest.mark.parametrize("seed", range(300))
def test_garbage_raises_decode_error_or_is_a_request(seed: int) -> None:
    rng = random.Random(seed)
    version = rng.randrange(4, 14)
    rows = [PartitionProduceData(n, rng.randbytes(50)) for n in range(3)]
    topic = TopicProduceData(partition_data=rows)
    asked = FetchTopic(partitions=[FetchPartition(n) for n in range(3)])
    for message, read in (
        (ProduceRequest(topic_data=[topic]), read_produce),
        (FetchRequest(topics=[asked]), read_fetch),
    ):
        raw = bytearray(encode(message, version))
        for _ in range(rng.randrange(1, 8)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        end = rng.randrange(len(raw) + 1)
        with suppress(DecodeError):
            read(memoryview(raw)[:end], 0, end, version)
