"""Clients that run while a transcript describes them, and print a line once they are ready:

- `python -m tests.cli.recorded.clients member GROUP TOPIC`: a member that has its partitions
- `python -m tests.cli.recorded.clients transaction ID TOPIC`: a transaction with a record in
  partition 0
"""

from __future__ import annotations

import os
import signal
import sys
import time

from confluent_kafka import Consumer, Producer


def join_group(server: str, group: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": server, "group.id": group, "client.id": "me"})
    consumer.subscribe([topic], on_assign=lambda *_: print("assigned", flush=True))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        while True:
            consumer.poll(0.1)
    finally:
        consumer.close()  # leaves the group


def open_transaction(server: str, name: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": server, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush()
    print("open", flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    run = {"member": join_group, "transaction": open_transaction}[sys.argv[1]]
    run(os.environ["KAFKAWIRE_SERVER"], *sys.argv[2:])
