"""The service and a broker in one event loop: `pip install pytest httpx` and kafkawire."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from aiokafka import AIOKafkaConsumer
from service import app, connected

from kafkawire.testing import async_broker


async def order_and_read() -> bytes:
    async with async_broker() as broker:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BOOTSTRAP", broker.bootstrap)
            transport = httpx.ASGITransport(app)
            async with connected(app), httpx.AsyncClient(transport=transport) as client:
                answer = await client.post("http://shop/orders/anna", content=b"two coffees")
        assert answer.status_code == 201
        assert answer.json()["offset"] == 0
        reader = AIOKafkaConsumer(
            "orders", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
        )
        async with reader:
            record = await reader.getone()
            return bytes(record.value)


def test_order_is_in_the_topic() -> None:
    assert asyncio.run(order_and_read()) == b"two coffees"
