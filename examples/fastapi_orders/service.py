"""A web service that accepts orders and answers when they are durable.

pip install fastapi uvicorn aiokafka && uvicorn service:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer
from fastapi import FastAPI, Request


@asynccontextmanager
async def connected(app: FastAPI) -> AsyncIterator[None]:
    """Connect the producer for the lifetime of the service."""
    bootstrap = os.environ.get("BOOTSTRAP", "127.0.0.1:9092")
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=connected)


@app.post("/orders/{customer}", status_code=201)
async def order(customer: str, request: Request) -> dict[str, int]:
    """Store the body as an order of a customer; return its place in the topic."""
    stored = await request.app.state.producer.send_and_wait(
        "orders", await request.body(), key=customer.encode()
    )
    return {"partition": stored.partition, "offset": stored.offset}
