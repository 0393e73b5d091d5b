"""Protocol between the broker and its storage process: calls, responses, errors as values. Pure.

Messages are frames of kafkawire.childprocess.frames; the bytes of cold reads are passed in shared
memory instead.

Broker to child: a `Hello`, then (number, operation, arguments); operation "cancel" has the number
of the call to cancel, "ping" is a heartbeat. Child to broker: (number, kind, *rest), one "done" or
error for each call. A cancelled call may be preceded by one "safe": its memory will not be written
any more.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafkawire.objectstore.errors import (
    ConditionFailed,
    NoSuchObject,
    Refused,
    SlowDown,
    StoreError,
)
from kafkawire.objectstore.url import TierUrl

LANES = {
    "read": "read",
    "upload": "upload",
    "download": "upload",
    "copy_from": "upload",
    "put_ranges": "log",
    "put": "rest",
    "get": "rest",
    "head": "rest",
    "delete": "rest",
    "list": "rest",
}
"""The operations of each lane of threads: long operations never delay a read, a log object or a
manifest."""
LOG_THREADS = 4
"""Threads for log objects, which producers wait for: the PUTs that a log has in progress."""
REST_THREADS = 4
"""Threads for small requests: a manifest's PUT, a scrub's listing and a batch of deletions run
concurrently."""
CALLS_PER_THREAD = 2
"""Calls of a lane in the child per thread, so that a thread finds the next call at once. All others
wait in the broker, where they can be cancelled at no cost."""

_KINDS: dict[str, type[StoreError]] = {
    kind.__name__: kind for kind in (StoreError, SlowDown, NoSuchObject, ConditionFailed, Refused)
}

Request = tuple[int, str, tuple[Any, ...]]
Answer = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message to a child. `threads`: of each lane; `seen`: see StoreProcess; `left`:
    keys that the previous child was storing when it died; `storage_class`: of segments in S3."""

    tier: TierUrl
    seen: bool
    memory_fd: int
    memory_bytes: int
    part_bytes: int
    threads: Mapping[str, int]
    left: tuple[str, ...] = ()
    storage_class: str = ""


def unpack_answer(body: bytes) -> Answer:
    """Parse a message. Raises ValueError if it is malformed."""
    answer: Answer
    try:
        answer = pickle.loads(body)
    except Exception as failure:
        raise ValueError(f"{len(body)} bytes that are no answer") from failure
    match answer:
        case (int(), "done", _) | (int(), "safe" | "pong") | (int(), "store" | "os", _, _, _):
            return answer
    raise ValueError("an answer of another shape")


def answer_of(number: int, failure: BaseException) -> Answer:
    if isinstance(failure, StoreError):
        kind = type(failure).__name__
        kind = kind if kind in _KINDS else StoreError.__name__
        return number, "store", kind, failure.code, failure.text
    if isinstance(failure, OSError):
        text = failure.strerror or str(failure)
        return number, "os", failure.errno, text, failure.filename
    return number, "store", StoreError.__name__, type(failure).__name__, str(failure)


def failure_of(answer: Answer) -> Exception:
    match answer:
        case (_, "store", str(kind), str(code), str(text)) if kind in _KINDS:
            return _KINDS[kind](code, text)
        case (_, "os", code, text, filename):
            return OSError(code, text, filename)
    raise ValueError(f"an answer of an unknown kind: {answer[1]!r}")
