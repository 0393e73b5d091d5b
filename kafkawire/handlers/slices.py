"""Responses that grow with the catalog, encoded in slices of a few milliseconds.

A Metadata response for ten thousand partitions takes tens of milliseconds to build, during which
every other connection would wait. So the message is encoded with an empty list and split there, and
the items are encoded in slices between which the event loop runs. The bytes equal those of encoding
it whole (tests/handlers/test_metadata.py compares).

Called by the admin handlers; independent of the type of items.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from sys import getrefcount
from typing import TYPE_CHECKING, Any, TypeVar

from kafkawire.codec.compile import (
    DecodeError,
    encode,
    part_encoder,
    sliced_decoder,
    sliced_encoder,
)
from kafkawire.codec.emit import STEP, uvarint
from kafkawire.codec.schema import fields_of, info_of
from kafkawire.codec.types import Buffer

if TYPE_CHECKING:
    from kafkawire.log.io.ports import Env
    from kafkawire.log.io.slices import Slices

T = TypeVar("T")

MAX_ANSWER_BYTES = 100_000_000
"""Maximum size of a response (librdkafka's receive.message.max.bytes). Only a request with many
repetitions has a larger one: its connection is closed."""


class AnswerTooLarge(Exception):
    """The response exceeds MAX_ANSWER_BYTES."""


PARTS_JOINED = 2000
"""Number of small buffers that are joined: some ten KB."""

MAX_JOINED_BYTES = 256 << 10
"""Bytes copied at once when buffers are joined: some 50 microseconds. Larger buffers are not
copied."""


def split(whole: bytes, flexible: bool, tail_bytes: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the only, empty list of an encoded message. `tail_bytes`:
    the fixed fields after the list; a flexible version ends with one more byte, its empty tag
    section."""
    tail = tail_bytes + 1 if flexible else tail_bytes
    count = 1 if flexible else 4
    end = len(whole) - tail
    return whole[: end - count], whole[end:]


def array_count(count: int, flexible: bool) -> bytes:
    """Return the length prefix of a list: int32, or unsigned varint of length + 1 (KIP-482)."""
    return uvarint(count + 1) if flexible else count.to_bytes(4, "big")


def append_encoded(
    items: Iterable[T], encode_item: Callable[[T, list[Buffer]], None], parts: list[Buffer]
) -> Generator[None, None, None]:
    """Encode the items and append them to `parts`, stopping after each, so that the event loop can
    run."""
    for item in items:
        encode_item(item, parts)
        yield None


def joining(
    steps: Iterable[None],
    parts: list[Buffer],
    joined: list[Buffer],
    max_bytes: float = MAX_ANSWER_BYTES,
) -> Generator[None, None, None]:
    """Run steps that add to `parts`, and move these to `joined` in groups: a million small buffers
    would take ten times the memory of their bytes, and sending and freeing them would block the
    event loop for milliseconds. Large buffers are moved unchanged. Raises AnswerTooLarge beyond
    `max_bytes`."""
    total = 0
    for _ in steps:
        if len(parts) >= PARTS_JOINED:
            size = sum(map(len, parts))
            if size <= MAX_JOINED_BYTES:
                joined.append(b"".join(parts))
            else:
                joined += parts
            parts.clear()
            total += size
            if total > max_bytes:
                raise AnswerTooLarge
        yield None


async def encode_in_slices(
    slices: Slices, answer: list[Any], version: int, max_bytes: float = MAX_ANSWER_BYTES
) -> list[Buffer]:
    """Return the only response in `answer` as buffers: encode it and free it, both in slices. A
    handler may have encoded it already. Raises AnswerTooLarge beyond `max_bytes`."""
    response = answer[0]
    if isinstance(response, list):
        return response
    if isinstance(response, bytes):
        return [response]
    parts: list[Buffer] = []
    joined: list[Buffer] = []
    steps = sliced_encoder(type(response), version)(response, parts)
    del response
    await slices.run(joining(steps, parts, joined, max_bytes))
    del steps
    await slices.run(free_in_steps(answer))
    joined += parts
    if sum(map(len, joined)) > max_bytes:
        raise AnswerTooLarge
    return joined


async def encode_list_in_slices(
    env: Env, message: object, version: int, kind: type[T], items: Iterable[T], count: int
) -> list[Buffer]:
    """Encode `message` with `items` (`count` of them, created on demand) in its only list, which is
    empty and its last field."""
    flexible = info_of(type(message)).flexible(version)
    head, tail = split(encode(message, version), flexible, tail_bytes=0)
    parts: list[Buffer] = [head, array_count(count, flexible)]
    joined: list[Buffer] = []
    encode_item = part_encoder(type(message), kind, version)
    await env.slices.run(joining(append_encoded(items, encode_item, parts), parts, joined))
    parts.append(tail)
    return joined + parts


async def decode_in_slices(slices: Slices, cls: type[T], version: int, body: Buffer) -> list[T]:
    """Decode a request in slices, as the only element of a list, for `free_in_steps`. Raises
    DecodeError after freeing the decoded part."""
    made: list[T] = []
    fault = ""
    try:
        await slices.run(sliced_decoder(cls, version)(body, 0, len(body), made))
    except DecodeError as wrong:
        fault = str(wrong)
    if fault:
        await slices.run(free_in_steps(made))
        raise DecodeError(fault)
    return made


ITEM_REFERENCES = 2
"""The value of sys.getrefcount in `free_in_steps` for an item without other references: its
variable and the argument."""

INNER_REFERENCES = ITEM_REFERENCES + 1
"""The same for a list, which its message references too."""


def free_in_steps(messages: list[Any]) -> Generator[None, None, None]:
    """Free messages with long lists a few elements at a time: freeing 100,000 objects at once would
    block the event loop for 10 ms. `messages` must have the only references to them. Messages and
    lists that are also referenced elsewhere are not changed: they are not freed here.
    """
    lists: list[list[Any]] = [messages]
    taken = 0
    while lists:
        items = lists[-1]
        if not items:
            lists.pop()
            continue
        item = items.pop()
        if getrefcount(item) <= ITEM_REFERENCES:
            for name in _list_fields(type(item)):
                inner = getattr(item, name, None)  # absent in partly decoded messages
                if (
                    inner  # one element may have a long list
                    and (len(inner) > STEP or _list_fields(type(inner[0])))
                    and getrefcount(inner) <= INNER_REFERENCES
                ):
                    lists.append(inner)
        item = inner = None
        taken += 1
        if taken % STEP == 0:  # a message with few elements is freed without a stop
            yield


_arrays: dict[type, tuple[str, ...]] = {}


def _list_fields(cls: type) -> tuple[str, ...]:
    """The arrays of a declared message or struct."""
    names = _arrays.get(cls)
    if names is None:
        fields = fields_of(cls) if hasattr(cls, "__wire_defaults__") else ()
        names = _arrays[cls] = tuple(field.name for field in fields if field.is_array)
    return names
