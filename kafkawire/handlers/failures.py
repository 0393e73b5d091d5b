"""The error response of a whole request, for any API.

In Kafka each request class has its own method (AbstractRequest.getErrorResponse). Here it is
derived from the declarations of the messages: if a response has no top-level error, its lists
repeat those of the request, item by item, with an error in each. Called by the server when a
handler fails.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any, get_args, get_origin, get_type_hints

from kafkawire.codec.schema import fields_in
from kafkawire.handlers.slices import free_in_steps

MAX_ITEMS = 100_000
"""Maximum number of repeated items: some 30 MB of memory, and half a second of CPU time in slices.
Beyond that the connection is closed."""
MAX_TEXT = 1 << 20
"""Characters of error messages, which are repeated in each item; items after that have the code
alone. So a response is not much larger than its request."""

_ASKED = {
    "responses": ("topics", "topic_names", "resources", "topic_data"),
    "partition_responses": ("partition_data",),
    "results": ("resources", "topics", "groups_names", "creations"),
    "transaction_states": ("transactional_ids",),
    "filter_results": ("filters",),
    "groups": ("group_ids",),
    "coordinators": ("coordinator_keys",),
    "partitions": ("partition_indexes",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
}
"""Lists of responses whose requests use another name."""

_NAMES = {"topic_name": ("name",), "partition_index": ("partition",)}
"""Fields of items in responses whose requests use another name."""

_OTHERS = ("high_watermark",)
"""Fields of items in requests that mean something else than in responses: of Fetch, the end that
the client knows."""

CODES = ("error_code", "partition_error_code")
"""Fields for an error."""


def failed_response(
    request: object,
    response_type: type,
    version: int,
    code: int,
    message: str | None,
    *,
    in_items: bool = False,
) -> Generator[None, None, Any]:
    """Return a response with `code` if this version has a field for it; None otherwise, or with too
    many items, because a response without it would mean success. `in_items`: not at the top level
    if it can be in the items of a list. A generator for Slices.run."""
    made = [response_type()]
    if (yield from _Failed(version, code, message, in_items).fill(made[0], request)):
        return made[0]
    yield from free_in_steps(made)
    return None


class _Failed:
    """One failure, and the remaining number of items and characters of messages."""

    def __init__(self, version: int, code: int, message: str | None, in_items: bool) -> None:
        self._version = version
        self._in_items = in_items
        self._code = code
        self._message = message
        self._left = MAX_ITEMS
        self._text_left = MAX_TEXT

    def fill(self, answer: Any, asked: object) -> Generator[None, None, bool]:
        """Set the error in `answer`, or in each item of one of its lists; return whether there was
        a field for it."""
        yield None
        known = _fields_of(answer.__class__, self._version)
        field = next((name for name in CODES if name in known), None)
        if field is not None and not (self._in_items and self._has_items(answer, asked)):
            setattr(answer, field, self._code)
            if "records" in known:
                answer.records = b""  # librdkafka takes null for a damaged response
            if self._message is not None and "error_message" in known:
                self._text_left -= len(self._message)
                answer.error_message = self._message if self._text_left >= 0 else None
            return True
        for name, item_type in _lists_of(answer.__class__):
            count, items = _items_of(asked, name) if name in known else (0, ())
            if not count:
                continue
            self._left -= count
            if self._left < 0:
                return False
            made: list[Any] = []
            setattr(answer, name, made)
            for item in items:
                made.append(_repeat(item_type, item))
                if not (yield from self.fill(made[-1], item)):
                    return False
            return True
        return False

    def _has_items(self, answer: Any, asked: object) -> bool:
        """Return whether a list of `answer` repeats items of the request that can have the
        error."""
        known = _fields_of(answer.__class__, self._version)
        return any(
            name in known and has_code(item_type) and _items_of(asked, name)[0]
            for name, item_type in _lists_of(answer.__class__)
        )


def _items_of(asked: object, name: str) -> tuple[int, Iterable[object]]:
    """Return the number of items, and the items."""
    if hasattr(asked, "upsertions"):  # AlterUserScramCredentials has two lists
        deletions, upsertions = getattr(asked, "deletions", ()), asked.upsertions
        names = (each.name for each in chain(deletions, upsertions))
        return len(deletions) + len(upsertions), names
    if hasattr(asked, "dirs"):  # AlterReplicaLogDirs has topics in directories
        topics = [each.topics for each in asked.dirs]
        return sum(map(len, topics)), chain.from_iterable(topics)
    for wanted in (name, *_ASKED.get(name, ())):
        items: Sequence[object] | None = getattr(asked, wanted, None)
        if items:
            return len(items), items
    return 0, ()


def _repeat(item_type: type, item: object) -> Any:
    """Return an item of a response for an item of the request."""
    made = item_type()
    names = _names_of(item_type)
    if isinstance(item, str | int):
        setattr(made, next(n for n in names if isinstance(getattr(made, n), type(item))), item)
        return made
    for name in names:
        for wanted in (name, *_NAMES.get(name, ())):
            value = getattr(item, wanted, None)
            if isinstance(value, str | bytes | int):
                setattr(made, name, value)
                break
    return made


@cache
def has_code(answer_type: type) -> bool:
    """Return whether a structure, or one in its lists, has a field for an error."""
    return any(name in CODES for name in get_type_hints(answer_type)) or any(
        has_code(item_type) for _, item_type in _lists_of(answer_type)
    )


@cache
def _fields_of(answer_type: type, version: int) -> frozenset[str]:
    return frozenset(field.name for field in fields_in(answer_type, version))


@cache
def _names_of(item_type: type) -> tuple[str, ...]:
    return tuple(
        name
        for name in get_type_hints(item_type)
        if not name.startswith("error_") and name not in _OTHERS
    )


@cache
def _lists_of(answer_type: type) -> tuple[tuple[str, type], ...]:
    """Return the lists of structures of a message, and their types."""
    found: list[tuple[str, type]] = []
    for name, hint in get_type_hints(answer_type).items():
        for one in (hint, *get_args(hint)):
            item = get_args(one)[0] if get_origin(one) is list else None
            if isinstance(item, type) and get_type_hints(item):
                found.append((name, item))
    return tuple(found)
