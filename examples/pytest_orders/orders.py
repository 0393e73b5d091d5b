"""Reads orders and writes an invoice for each of them."""

from __future__ import annotations

import json
import os

from kafka import KafkaConsumer, KafkaProducer


def invoice(order: dict[str, int]) -> dict[str, int]:
    """Return the invoice of an order."""
    return {"id": order["id"], "total": order["price"] * order["pieces"]}


def run(bootstrap: str, count: int) -> None:
    """Write the invoices of `count` orders, and commit each offset after its invoice."""
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=bootstrap,
        group_id="invoices",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for _, record in zip(range(count), consumer, strict=False):
        value = json.dumps(invoice(json.loads(record.value))).encode()
        producer.send("invoices", key=record.key, value=value).get(timeout=30)
        consumer.commit()
    consumer.close()
    producer.close()


if __name__ == "__main__":
    run(os.environ.get("BOOTSTRAP", "127.0.0.1:9092"), 1_000_000)
