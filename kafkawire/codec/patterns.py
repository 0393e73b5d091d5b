"""Patterns of clients, matched with RE2 in linear time, as Kafka's RE2J does.

`re` could be given a pattern that holds the event loop for hours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import re2  # takes 20 ms: this module is imported when the first pattern arrives

from kafkawire.codec.errors import ErrorCode, KafkaError

PATTERN_BYTES = 1 << 20
"""Memory of a compiled pattern: at most 5 ms to compile."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a test of whether a whole text matches. Raises INVALID_REGULAR_EXPRESSION for what is
    not of RE2's syntax, or too large."""
    # The time is linear in the length of the text, 15 ms for one of 32 KB and the worst pattern.
    fullmatch = _compile(pattern).fullmatch
    return lambda text: fullmatch(text) is not None


def compile_search(pattern: str) -> Callable[[bytes], bool]:
    """Return a test of whether a part of some bytes, read as UTF-8, matches; raises as
    compile_pattern."""
    search = _compile(pattern).search
    return lambda data: search(data) is not None


def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        text = f"The pattern {pattern[:100]!r} is not valid: {reason[:200]}."
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, text) from None
