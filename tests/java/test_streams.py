"""Kafka Streams with exactly_once_v2, killed and restarted, its broker too."""

from __future__ import annotations

import collections
import signal
import struct
import threading
import time
from pathlib import Path

from confluent_kafka import Message, Producer

from tests.java.brokers import OwnBroker, create_topics
from tests.java.committed import CommittedReader, read_all
from tests.java.conftest import Program

WORDS = [f"word{i}" for i in range(20)]
WORDS_PER_LINE = 4
INTERNAL = ("words-repartition", "counts-changelog")
TOO_LATE = "Caused by: org.apache.kafka.common.errors.InvalidTxnStateException"
"""Fatal to Kafka Streams, and what Kafka's broker also answers to a commit that was delayed until
its transaction had timed out: only of an instance that was paused just before it (KAFKA-19367)."""


class Writer(threading.Thread):
    """Writes lines of words, a few hundred a second and each exactly once, until it is stopped:
    so a transaction is open whenever something is killed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.words: collections.Counter[str] = collections.Counter()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._topic = topic
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stop_asked.is_set():
            words = [
                WORDS[(self.words.total() // WORDS_PER_LINE * 7 + j * j) % len(WORDS)]
                for j in range(WORDS_PER_LINE)
            ]
            self._producer.produce(self._topic, " ".join(words).encode())
            self.words.update(words)
            self._producer.poll(0)
            time.sleep(0.003)

    def finish(self) -> collections.Counter[str]:
        """Stop, and return how often each word was written."""
        self._stop_asked.set()
        self.join(30)
        assert self._producer.flush(60) == 0
        return self.words


def test_word_count_is_exact(
    own_broker: OwnBroker, program: Program, tmp_path: Path, name: str
) -> None:
    """Streams and its broker are killed, one after the other and together. Then a second instance
    takes over from the first, which is paused and wakes up as a zombie. In the end every word was
    counted once: in the output, in the changelog and in the repartition topic."""
    bootstrap = own_broker.bootstrap
    lines, output = f"{name}-lines", f"{name}-counts"
    create_topics(bootstrap, {lines: 3, output: 2})
    first, second = (
        program("WordCount", bootstrap, name, lines, output, str(tmp_path / f"state-{i}"))
        for i in (1, 2)
    )
    first.start()
    writer = Writer(bootstrap, lines)
    counts = CommittedReader(bootstrap, output)
    for crash in ("streams", "broker", "both", "streams"):
        counts.more(300)
        if crash != "broker":
            first.kill()
        if crash != "streams":
            own_broker.crash()
        if crash != "broker":
            first.start()
    counts.more(300)
    first.signal(signal.SIGSTOP)
    second.start()
    counts.more(300)
    first.signal(signal.SIGCONT)
    counts.more(300)
    expected = writer.finish()
    counts.count(expected.total())
    for instance in (first, second):
        instance.stop()
    assert "fatal" not in second.output
    assert "fatal" not in first.output or TOO_LATE in first.output
    assert by_word(counts.to_end()) == sequences(expected)
    internal = {topic: read_all(bootstrap, f"{name}-{topic}") for topic in INTERNAL}
    assert by_word(internal["counts-changelog"]) == sequences(expected)
    repartitioned = collections.Counter(word(m) for m in internal["words-repartition"])
    assert repartitioned == expected


def word(record: Message) -> str:
    return (record.key() or b"").decode()


def by_word(records: list[Message]) -> dict[str, list[int]]:
    """The counts of each word, in their order."""
    found: dict[str, list[int]] = collections.defaultdict(list)
    for record in records:
        found[word(record)] += struct.unpack(">q", record.value() or b"")
    return found


def sequences(words: collections.Counter[str]) -> dict[str, list[int]]:
    """1, 2, 3 and so on for each word."""
    return {name: list(range(1, count + 1)) for name, count in words.items()}
