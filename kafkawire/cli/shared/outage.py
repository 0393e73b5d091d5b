"""Outages of a broker while a command runs until Ctrl-C: wait, connect again, continue."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError, Closed, NoAnswer, UnknownBroker
from kafkawire.codec.errors import ErrorCode
from kafkawire.objectstore.backoff import wait_s

MAX_WAIT_S = 5.0
"""Longest delay between two attempts, so that a command continues soon after the broker."""


class Outage:
    """Decides whether an error may pass, reports the first one of an outage on standard error, and
    connects again after a delay that grows from half a second to MAX_WAIT_S."""

    def __init__(self, cluster: Cluster, sleep: Callable[[float], None] = time.sleep) -> None:
        self._cluster = cluster
        self._sleep = sleep
        self._failures = 0

    def handle_failure(self, error: ClientError) -> None:
        """Wait and connect again. Raises the error if another attempt would fail with it, too."""
        if not may_pass(error):
            raise error
        self._failures += 1
        if self._failures == 1:
            print(f"kafkawire: {error}; trying again until the broker answers", file=sys.stderr)
            sys.stderr.flush()
        self._sleep(wait_s(self._failures, MAX_WAIT_S, random.random()))
        self._cluster.reset()

    def note_success(self) -> None:
        """End the outage: the next failure is reported again."""
        self._failures = 0


def may_pass(error: ClientError) -> bool:
    """Return whether a restart of the broker, or another leader, ends this error."""
    if isinstance(error, BrokerError):
        unknown = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # the topic was deleted
        known = error.code in set(ErrorCode)
        return known and ErrorCode(error.code).retriable and not unknown
    return isinstance(error, Closed | NoAnswer | UnknownBroker)
