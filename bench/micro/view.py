"""`python -m bench.micro.view [--records N] [--bytes B] [--rounds R]`: views that keep 1 % of a
topic, against reading all of it.

A broker with a remote tier in a folder is filled with a topic that has an index of keys.
confluent-kafka reads it whole, and views of it: by a header, by a field of JSON, by a key that a
hundredth of the records has, by one that only a hundredth in a row has, and by the time of the last
hundredth. First just written, from the journals, then from the tier (`tieredStorageLevel=force`).
For each: records, bytes on the wire (of librdkafka's statistics), GET requests and bytes of the
tier, seconds; of the fastest round. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.admin import Admin
from bench.micro.cold import offset_of
from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_port

SOURCE = "all"
START_MS = int(time.time() * 1000) - 3_600_000
EOF_CODE = -191
LATEST_TIERED = -5
SETTINGS = {"journal.bytes": str(64 << 20), "cut.interval.ms": "200", "hot.bytes": str(256 << 20)}
TOPIC = {
    "tiering.max.lag.ms": "600000",
    "segment.bytes": str(32 << 20),
    "index.keys.enable": "true",
}


class Read(NamedTuple):
    records: int
    wire_bytes: int
    requests: int
    tier_bytes: int
    seconds: float


def views(records: int) -> dict[str, str]:
    return {
        "header": "header('share') == '7'",
        "json": "value.share == 7",
        "key": "key == 'share-7'",
        "one-key": "key == 'rare'",
        "time": f"timestamp >= {START_MS + records - records // 100}",
    }


def fill(bootstrap: str, records: int, size: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1 << 18})
    pad = "x" * max(0, size - 40)
    for number in range(records):
        share = number * 7919 % 100
        rare = records // 2 <= number < records // 2 + records // 100
        value = json.dumps({"share": share, "number": number, "pad": pad}).encode()
        key = b"rare" if rare else b"share-%d" % share
        while True:
            try:
                producer.produce(
                    SOURCE, value, key, 0,
                    timestamp=START_MS + number, headers=[("share", b"%d" % share)],
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("not all records were written")


def counters(metrics: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        name: int(float(value))
        for name, value in re.findall(r"^kafkawire_(tier_read_\w+?)(?:_total)? (\S+)$", text, re.M)
    }


def read(bootstrap: str, metrics: int, topic: str) -> Read:
    wire: list[int] = [0]

    def note(text: str) -> None:
        wire[0] = json.loads(text)["rx_bytes"]

    settings = {
        "bootstrap.servers": bootstrap, "group.id": "bench", "enable.partition.eof": True,
        "enable.auto.commit": False, "statistics.interval.ms": 50, "stats_cb": note,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    before, began, found, ended = counters(metrics), time.perf_counter(), 0, False
    while not ended:
        for message in consumer.consume(10_000, 0.05):
            error = message.error()
            if error is None:
                found += 1
            elif error.code() == EOF_CODE:
                ended = True
            else:
                raise RuntimeError(str(error))
    seconds = time.perf_counter() - began
    until = time.perf_counter() + 0.2  # for the last statistics
    while time.perf_counter() < until:
        consumer.consume(1, 0.05)
    consumer.close()
    after = counters(metrics)
    requests, tier_bytes = (
        after.get(name, 0) - before.get(name, 0)
        for name in ("tier_read_requests", "tier_read_bytes")
    )
    return Read(found, wire[0], requests, tier_bytes, seconds)


def upload(admin: AdminClient, port: int, records: int) -> None:
    """Have the records cut and uploaded, and from then on read from the tier."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in {
            "tiering.max.lag.ms": "5000", "tiering.min.object.bytes": str(1 << 20),
            "tieredStorageLevel": "force",
        }.items()
    ]  # fmt: skip
    resource = ConfigResource(ResourceType.TOPIC, SOURCE, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
    until = time.monotonic() + 240
    with Admin(port) as asking:
        while (last := offset_of(asking, SOURCE, LATEST_TIERED)) < records - 1:
            if time.monotonic() > until:
                raise RuntimeError(f"the tier has {last + 1} of {records} records")
            time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--bytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    metrics = free_port()
    with tempfile.TemporaryDirectory() as bucket:
        settings = {**SETTINGS, "metrics.listener": f"127.0.0.1:{metrics}"}
        arguments = ["--tier", Path(bucket).as_uri()]
        with BrokerProcess(settings=settings, arguments=arguments) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
            topics = [NewTopic(SOURCE, 1, 1, config=TOPIC)]
            named = views(options.records)
            admin.create_topics(topics)[SOURCE].result(60)
            for name, text in named.items():
                config = {"view.source.topic": SOURCE, "view.filter": text}
                admin.create_topics([NewTopic(name, -1, -1, config=config)])[name].result(60)
            fill(broker.bootstrap, options.records, options.bytes)
            print("| data | topic | records | wire KB | GETs | tier KB | seconds |")
            print("|---|---|---|---|---|---|---|")
            for data in ("just written", "tiered"):
                if data == "tiered":
                    upload(admin, broker.port, options.records)
                for topic in (SOURCE, *named):
                    rounds = []
                    for _ in range(options.rounds):
                        if data == "tiered":  # without what an earlier one has cached
                            broker.restart()
                        rounds.append(read(broker.bootstrap, metrics, topic))
                    least = min(rounds, key=lambda each: each.seconds)
                    print(
                        f"| {data} | {topic} | {least.records} | {least.wire_bytes / 1e3:.0f} | "
                        f"{least.requests} | {least.tier_bytes / 1e3:.0f} | {least.seconds:.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
