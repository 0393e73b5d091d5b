"""Transactions of each client, committed and aborted, read by each client: with codecs, open
transactions of others in between, and the program of tests/real/test_kcat.py."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaProducer

from tests.real.conftest import MakeTopic
from tests.real.librdkafka import read
from tests.real.test_aiokafka_transactions import committed_values
from tests.real.test_kafka_python_transactions import read_committed

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
LIMIT_S = 60


@pytest.mark.parametrize("codec", CODECS)
async def test_committed_records_of_each_client_are_read_by_each(
    bootstrap: str, make_topic: MakeTopic, name: str, codec: str | None
) -> None:
    topic = make_topic()
    one = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name + "-1",
            "compression.type": codec or "none",
        }
    )
    two = KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=name + "-2", compression_type=codec
    )
    three = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=name + "-3", compression_type=codec
    )
    one.init_transactions(LIMIT_S)
    two.init_transactions()
    await three.start()
    committed: list[int] = []
    for number in range(6):
        base = number * 100
        one.begin_transaction()
        two.begin_transaction()
        await three.begin_transaction()
        for value in range(base, base + 5):
            one.produce(topic, b"%d" % value)
            two.send(topic, b"%d" % (value + 10))
            await three.send(topic, b"%d" % (value + 20))
        assert one.flush(LIMIT_S) == 0
        two.flush()
        await three.flush()
        if number % 2:
            one.commit_transaction(LIMIT_S)
            two.abort_transaction()
            await three.commit_transaction()
        else:
            one.abort_transaction(LIMIT_S)
            two.commit_transaction()
            await three.abort_transaction()
        kept = (0, 20) if number % 2 else (10,)
        committed += [base + group + at for group in kept for at in range(5)]
    two.close()
    await three.stop()
    expected = sorted(committed)
    assert sorted(read_by_librdkafka(bootstrap, topic, name, len(expected))) == expected
    assert sorted(read_committed(bootstrap, topic)) == expected
    assert sorted(await committed_values(bootstrap, topic, len(expected))) == expected
    kcat = shutil.which("kcat") or shutil.which("kafkacat")
    if kcat is not None:
        assert sorted(read_by_kcat(kcat, bootstrap, topic)) == expected


def read_by_librdkafka(bootstrap: str, topic: str, group: str, count: int) -> list[int]:
    settings = {"group.id": group, "auto.offset.reset": "earliest"}
    settings |= {"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found = read(consumer, count)
    assert consumer.consume(1, 0.3) == []
    consumer.close()
    return [int(message.value() or b"") for message in found]


def read_by_kcat(kcat: str, bootstrap: str, topic: str) -> list[int]:
    command = [kcat, "-b", bootstrap, "-C", "-t", topic, "-e", "-q"]
    command += ["-X", "isolation.level=read_committed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [int(line) for line in done.stdout.split()]
