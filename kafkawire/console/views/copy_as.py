"""Commands and programs that read one record, to copy. Pure."""

from __future__ import annotations

from shlex import quote
from typing import NamedTuple


class CopyText(NamedTuple):
    """A text to copy, and the tool that runs it."""

    tool: str
    text: str


def copy_as(url: str, server: str, topic: str, partition: int, offset: int) -> list[CopyText]:
    """Return what reads one record. `url`: of a file with it; `server`: HOST:PORT[,...]."""
    python = (
        "from confluent_kafka import Consumer, TopicPartition\n"
        f'settings = {{"bootstrap.servers": {server!r}, "group.id": "console"}}\n'
        'consumer = Consumer({**settings, "enable.auto.commit": False})\n'
        f"consumer.assign([TopicPartition({topic!r}, {partition}, {offset})])\n"
        "print(consumer.poll(10).value())"
    )
    kcat = f"kcat -b {quote(server)} -C -t {quote(topic)} -p {partition} -o {offset} -c 1"
    return [
        CopyText("curl", f"curl {quote(url)}"),
        CopyText("kcat", kcat),
        CopyText("Python", python),
    ]
