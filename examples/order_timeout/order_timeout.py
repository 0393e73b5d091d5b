"""Orders that are not paid in time are reported, without a timer and without polling a database.

    pip install confluent-kafka && python order_timeout.py [HOST:PORT]

The topic `open-orders` delivers each record to `order-timeouts` when it is due. The newest record
of a key counts, so a payment cancels the timeout of its order.
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_MS = 2_000


def create_topics(bootstrap: str) -> None:
    """Create the topic of timeouts, and the schedule topic that delivers to it."""
    settings = {"schedule.target.topic": "order-timeouts", "cleanup.policy": "compact"}
    topics = [NewTopic("order-timeouts", 1, 1), NewTopic("open-orders", 1, 1, config=settings)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(topics).values():
        created.result(30)


def place_order(producer: Producer, order: str) -> None:
    """Schedule the timeout of an order."""
    after = [("kafkawire-deliver-after", str(TIMEOUT_MS).encode())]
    producer.produce("open-orders", key=order, value=b"not paid in time", headers=after)


def pay(producer: Producer, order: str) -> None:
    """Cancel the timeout of an order."""
    producer.produce("open-orders", key=order, value=None)


def main(bootstrap: str) -> None:
    """Place three orders, pay one, and print the two that time out."""
    create_topics(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for order in ("order-1", "order-2", "order-3"):
        place_order(producer, order)
    pay(producer, "order-2")
    producer.flush(30)

    settings = {"bootstrap.servers": bootstrap, "group.id": "shop", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["order-timeouts"])
    for _ in range(2):
        while (record := consumer.poll(1.0)) is None or record.error():
            pass
        print(record.key().decode(), record.value().decode())
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "127.0.0.1:9092")
