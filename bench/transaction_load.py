"""`python -m bench.transaction_load JSON`: producers of transactions as raw requests, one process.

Each producer has a connection and a partition of its own and one request in flight: a Produce of
one batch (version 12, which adds the partition to the transaction), then EndTxn (version 5); in the
mode `plain` only Produces, of an idempotent producer; in the mode `pairs` each of these is followed
by an EndTxn that is refused: two requests without a transaction; in the mode `fetch` the topic is
read again and again; in the mode `open` each id opens a transaction and leaves it open. Requests
are prepared once and patched, so that the broker is measured and not this client. The options are
the fields of Load; it prints the fields of Outcome as a JSON line. Called by bench.transactions.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from statistics import median
from struct import Struct, pack

from crc32c import crc32c

from kafkawire.codec.batches import CRC_FROM, HEAD_BYTES, TRANSACTIONAL, build
from kafkawire.codec.compile import decode, encode
from kafkawire.messages.end_txn import EndTxnRequest
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE, FETCH, FIND_COORDINATOR, INIT, END = 0, 1, 10, 22, 26
PRODUCE_VERSION, FETCH_VERSION, FIND_VERSION, INIT_VERSION, END_VERSION = 12, 12, 4, 4, 5
LOADING, UNAVAILABLE, NOT_COORDINATOR, CONCURRENT = 14, 15, 16, 51
WAITING = (LOADING, UNAVAILABLE, NOT_COORDINATOR, CONCURRENT, 19, 3)
SETUP_S = 20.0
MARK = b"\x7a" * 8
"""Stands for the base offset of the batch, to find it in a request."""

_FENCE = Struct(">qhi")  # producer id, epoch, first sequence of a batch
_CRC = Struct(">I")
_BATCH = Struct(">qi")  # base offset, length
_PRODUCER_AT, _CRC_AT = 43, 17

Steps = Generator[bytes, bytes, None]


class LoadFailed(Exception):
    """The broker answered with an error that the producer cannot repeat."""


@dataclass(frozen=True, slots=True)
class Load:
    """One run. `mode`: transactions, plain, pairs, fetch or open; `isolation`: of fetches, 1:
    committed; `ids`: transactional ids of each producer in the mode open."""

    port: int
    topic: str
    mode: str = "transactions"
    producers: int = 8
    records: int = 100
    record_bytes: int = 100
    seconds: float = 3.0
    warmup_s: float = 1.0
    isolation: int = 0
    ids: int = 1
    prefix: str = "bench"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`rounds`: transactions, Produces or Fetches, as the mode says; latencies of one, in ms.
    `all_rounds`: with those of the warm-up."""

    rounds: int
    all_rounds: int
    records: int
    bytes: int
    seconds: float
    repeated: int
    median_ms: float
    p99_ms: float
    client_cpu_s: float


class Producer:
    """One producer: `steps` yields requests and is sent their answers."""

    def __init__(self, load: Load, number: int) -> None:
        self.load = load
        self.number = number
        self.name = f"{load.prefix}-{number}"
        self.spent_s: list[float] = []
        self.repeated = 0
        self.all_rounds = 0
        self.read_bytes = 0
        self.producer = (-1, -1)

    def steps(self, began: float) -> Steps:
        """All requests of the run."""
        load = self.load
        if load.mode == "fetch":
            yield from self._fetch(began)
            return
        if load.mode == "open":
            yield from self._open()
            return
        transactional = load.mode == "transactions"
        yield from self._init(transactional)
        request, at, size = self._produce_request(transactional)
        sequence = 0
        measured_from = began + load.warmup_s
        end = measured_from + load.seconds
        while (started := time.monotonic()) < end:
            self._patch(request, at, size, sequence)
            yield from self._produce(request)
            sequence += load.records
            if transactional:
                yield from self._end()
                sequence = 0
            elif load.mode == "pairs":
                yield from self._refused_end()
            self.all_rounds += 1
            if started >= measured_from:
                self.spent_s.append(time.monotonic() - started)

    def _open(self) -> Steps:
        """Open a transaction of each id."""
        for number in range(self.load.ids):
            started = time.monotonic()
            self.name = f"{self.load.prefix}-{self.number}-{number}"
            yield from self._init(True)
            request, at, size = self._produce_request(True)
            self._patch(request, at, size, 0)
            yield from self._produce(request)
            self.all_rounds += 1
            self.spent_s.append(time.monotonic() - started)

    def _fetch(self, began: float) -> Steps:
        """Read the partition from its start, again at its end."""
        load = self.load
        measured_from = began + load.warmup_s
        offset, empty = 0, 0
        while (started := time.monotonic()) < measured_from + load.seconds and empty < 100:
            row = FetchPartition(self.number, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=1 << 20,
                isolation_level=load.isolation,
                topics=[FetchTopic(topic=load.topic, partitions=[row])],
            )
            answer = yield framed(FETCH, FETCH_VERSION, encode(request, FETCH_VERSION))
            found = decode(FetchResponse, FETCH_VERSION, answer[5:]).responses[0].partitions[0]
            if found.error_code:
                raise LoadFailed(f"Fetch: error {found.error_code}")
            data = found.records or b""
            assert isinstance(data, bytes | bytearray | memoryview), "decoded from one buffer"
            empty = 0 if data else empty + 1
            offset = offset_after(data)
            self.all_rounds += 1
            if started >= measured_from:
                self.read_bytes += len(data)
                self.spent_s.append(time.monotonic() - started)

    def _init(self, transactional: bool) -> Steps:
        limit = time.monotonic() + SETUP_S
        if transactional:
            find = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name])
            yield framed(FIND_COORDINATOR, FIND_VERSION, encode(find, FIND_VERSION))
        name = self.name if transactional else None
        body = encode(InitProducerIdRequest(name, 60_000), INIT_VERSION)
        while time.monotonic() < limit:
            answer = yield framed(INIT, INIT_VERSION, body)
            found = decode(InitProducerIdResponse, INIT_VERSION, answer[5:])
            if not found.error_code:
                self.producer = found.producer_id, found.producer_epoch
                return
            if found.error_code not in WAITING:
                raise LoadFailed(f"InitProducerId: error {found.error_code}")
            time.sleep(0.05)
        raise LoadFailed("InitProducerId: no coordinator")

    def _produce_request(self, transactional: bool) -> tuple[bytearray, int, int]:
        """A request frame, and where its batch is."""
        load = self.load
        value = (b"0123456789abcdef" * (load.record_bytes // 16 + 1))[: load.record_bytes]
        raw = bytearray(
            build(
                [(None, value)] * load.records,
                timestamp_ms=int(time.time() * 1000),
                producer_id=1,
                producer_epoch=0,
                base_sequence=0,
                attributes=TRANSACTIONAL if transactional else 0,
            )
        )
        raw[:8] = MARK
        rows = [PartitionProduceData(self.number, bytes(raw))]
        topic = TopicProduceData(load.topic, partition_data=rows)
        name = self.name if transactional else None
        request = ProduceRequest(name, -1, 30_000, [topic])
        frame = bytearray(framed(PRODUCE, PRODUCE_VERSION, encode(request, PRODUCE_VERSION)))
        at = frame.index(MARK)
        frame[at : at + 8] = bytes(8)
        return frame, at, len(raw)

    def _patch(self, frame: bytearray, at: int, size: int, sequence: int) -> None:
        _FENCE.pack_into(frame, at + _PRODUCER_AT, *self.producer, sequence)
        view = memoryview(frame)
        _CRC.pack_into(frame, at + _CRC_AT, crc32c(view[at + CRC_FROM : at + size]))
        view.release()

    def _produce(self, frame: bytearray) -> Steps:
        error_at = 5 + 1 + 1 + len(self.load.topic.encode()) + 1 + 4
        while True:
            answer = yield bytes(frame)
            code = int.from_bytes(answer[error_at : error_at + 2], "big", signed=True)
            if not code:
                return
            if code not in WAITING:
                raise LoadFailed(f"Produce: error {code}")
            self.repeated += 1

    def _end(self) -> Steps:
        request = EndTxnRequest(self.name, *self.producer, True)
        frame = framed(END, END_VERSION, encode(request, END_VERSION))
        while True:
            answer = yield frame
            code, producer_id, epoch = Struct(">hqh").unpack_from(answer, 9)
            if not code:
                self.producer = producer_id, epoch
                return
            if code not in WAITING:
                raise LoadFailed(f"EndTxn: error {code}")
            self.repeated += 1

    def _refused_end(self) -> Steps:
        """End a transaction of an id that has none."""
        request = EndTxnRequest(self.name, *self.producer, True)
        answer = yield framed(END, END_VERSION, encode(request, END_VERSION))
        if not int.from_bytes(answer[9:11], "big", signed=True):
            raise LoadFailed("EndTxn: an id without a transaction was not refused")


def framed(key: int, version: int, body: bytes) -> bytes:
    """A request of a flexible version with header, whose answer begins with 5 bytes of header."""
    head = pack(">hhih", key, version, 1, 5) + b"bench\0"
    return pack(">i", len(head) + len(body)) + head + body


def offset_after(data: bytes | bytearray | memoryview) -> int:
    """The offset after the last whole batch of an answer; 0 where there is none."""
    found = at = 0
    while at + HEAD_BYTES <= len(data):
        base, length = _BATCH.unpack_from(data, at)
        if at + 12 + length > len(data):
            break
        found = base + int.from_bytes(data[at + 23 : at + 27], "big") + 1
        at += 12 + length
    return found


class Line:
    """The connection of one producer."""

    def __init__(self, port: int, steps: Steps) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.steps = steps
        self.received = bytearray()
        self.socket.sendall(next(steps))

    def readable(self) -> bool:
        """Take what has arrived; False when the producer is done."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise LoadFailed("the broker closed the connection")
        self.received += data
        if len(self.received) < 4:
            return True
        size = int.from_bytes(self.received[:4], "big")
        if len(self.received) < 4 + size:
            return True
        answer = bytes(self.received[4 : 4 + size])
        self.received.clear()
        try:
            self.socket.sendall(self.steps.send(answer))
        except StopIteration:
            return False
        return True


def run(load: Load) -> Outcome:
    """Run all producers to the end."""
    producers = [Producer(load, number) for number in range(load.producers)]
    began = time.monotonic()
    cpu = time.process_time()
    poll = select.epoll()
    lines = {}
    for producer in producers:
        line = Line(load.port, producer.steps(began))
        lines[line.socket.fileno()] = line
        poll.register(line.socket, select.EPOLLIN)
    while lines:
        for number, _ in poll.poll():
            if not lines[number].readable():
                poll.unregister(number)
                lines.pop(number).socket.close()
    spent = sorted(spent for producer in producers for spent in producer.spent_s)
    if not spent:
        raise LoadFailed("no transaction ended in time")
    return Outcome(
        len(spent),
        sum(producer.all_rounds for producer in producers),
        len(spent) * load.records,
        sum(producer.read_bytes for producer in producers),
        load.seconds,
        sum(producer.repeated for producer in producers),
        median(spent) * 1000,
        spent[int(len(spent) * 0.99)] * 1000,
        time.process_time() - cpu,
    )


def main(words: list[str]) -> int:
    """Exit code 0; 1 when a producer failed."""
    try:
        outcome = run(Load(**json.loads(words[0])))
    except (LoadFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(outcome)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
