"""Calling callbacks that wait for a write or a commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)

Callback = Callable[[BaseException | None], None]
"""Called with None, or with the reason of a failure."""


def call(fn: Callback, failure: BaseException | None) -> None:
    """Call a callback; an exception in it must not keep the others from being called."""
    try:
        fn(failure)
    except Exception:
        logger.exception("a callback of the commit log failed")


def call_all(callbacks: Iterable[Callback], failure: BaseException | None) -> None:
    """Call callbacks in order."""
    for fn in callbacks:
        call(fn, failure)
