"""Conversations of a transactional client with a broker, in raw requests.

A conversation is a function of a `Side`, which sends its requests to one broker and returns short
answers for its assertions. `on_both` turns it into a test: the same conversation runs against
Apache Kafka and against ours, concurrently, and all fields of all responses must be equal. With
KAFKAWIRE_TEST_BOOTSTRAP it runs against that broker alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.java.calls.admin import AdminCalls
from tests.java.calls.coordinator import CoordinatorCalls
from tests.java.calls.groups import GroupCalls
from tests.java.calls.records import RecordCalls


class Side(CoordinatorCalls, RecordCalls, GroupCalls, AdminCalls):
    """One side of a conversation: all requests to one broker."""


Conversation = Callable[[Side], None]


def on_both(conversation: Conversation) -> Callable[..., None]:
    """Return the test that runs a conversation with each broker and compares the responses."""

    def test(sides: list[tuple[str, str]]) -> None:
        run = uuid.uuid4().hex[:8]
        with ThreadPoolExecutor(len(sides)) as pool:
            both = list(pool.map(lambda side: converse(conversation, side[0], side[1], run), sides))
        for other in both[1:]:
            compare(both[0], other)

    test.__name__ = test.__qualname__ = conversation.__name__
    test.__module__, test.__doc__ = conversation.__module__, conversation.__doc__
    return test


def converse(conversation: Conversation, name: str, address: str, run: str) -> Side:
    """Return the side after the conversation."""
    side = Side(name, address, run)
    try:
        conversation(side)
    except AssertionError as error:
        label, fields = side.transcript[-1] if side.transcript else ("nothing", {})
        codes = {path: value for path, value in fields.items() if "code" in path or "state" in path}
        raise AssertionError(f"with {name}, after {label} {codes}: {error}") from error
    finally:
        side.connection.close()
    return side


def compare(kafka: Side, ours: Side) -> None:
    labels = [[label for label, _ in side.transcript] for side in (kafka, ours)]
    assert labels[0] == labels[1], f"{kafka.name}: {labels[0]}, {ours.name}: {labels[1]}"
    different = {
        f"{step} {label}{path}": (expected.get(path, "nothing"), got.get(path, "nothing"))
        for step, ((label, expected), (_, got)) in enumerate(
            zip(kafka.transcript, ours.transcript, strict=True)
        )
        for path in expected.keys() | got.keys()
        if expected.get(path, "nothing") != got.get(path, "nothing")
    }
    assert not different, f"({kafka.name}, {ours.name}) differ in {different}"
