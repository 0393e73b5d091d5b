"""`pip install pytest kafka-python` and kafkawire; then `pytest`."""

from __future__ import annotations

import json
from typing import Any

from kafka import KafkaProducer
from orders import run


def test_each_order_has_an_invoice(kafkawire_broker: Any, kafkawire_consumer: Any) -> None:
    bootstrap = kafkawire_broker.bootstrap
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in range(3):
        order = {"id": number, "price": 5, "pieces": number}
        producer.send("orders", key=b"customer", value=json.dumps(order).encode())
    producer.flush()

    run(bootstrap, count=3)

    invoices = [json.loads(each.value) for each in kafkawire_consumer.read("invoices", 3)]
    assert [each["total"] for each in invoices] == [0, 5, 10]


def test_nothing_is_lost_in_a_crash(kafkawire_broker: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=kafkawire_broker.bootstrap, acks="all")
    acknowledged = producer.send("orders", b"{}").get(timeout=30)
    kafkawire_broker.kill()
    kafkawire_broker.restart()
    after = producer.send("orders", b"{}", partition=acknowledged.partition).get(timeout=30)
    assert after.offset == acknowledged.offset + 1
