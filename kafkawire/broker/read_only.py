"""Reading only (`broker.read.only`): clients read, and change neither records nor topics.

Produce requests get NOT_ENOUGH_REPLICAS, which producers retry until their delivery times out;
changes of topics and deletions of records get POLICY_VIOLATION, which admin tools show. What was
accepted before is written and answered. docs/operate.md lists what the broker still writes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.append.commit_log import BY_CHOICE

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.append.commit_log import CommitLog

logger = logging.getLogger(__name__)

WHY = "this broker serves reads only: its setting broker.read.only is true"

COMMIT_LATER = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""The code for members of groups: they repeat the commit, and read on meanwhile. After others they
search for the coordinator, and the session of librdkafka ends without heartbeats."""


class ReadOnly:
    """Makes the commit log refuse Produce requests while the setting is true."""

    def __init__(self, config: BrokerConfig, commit_log: CommitLog) -> None:
        self._config = config
        self._commit_log = commit_log
        self._on = False
        self.apply_setting()

    def apply_setting(self) -> None:
        """Refuse or accept Produce requests, as the setting says."""
        if self._config.broker_read_only == self._on:
            return
        self._on = not self._on
        # NOT_LEADER_OR_FOLLOWER would make clients request metadata before each attempt.
        error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, WHY) if self._on else None
        self._commit_log.refuse_appends(BY_CHOICE, error)
        if self._on:
            logger.warning("broker.read.only is true: clients can only read from this broker")
        else:
            logger.warning("broker.read.only is false: clients can write to this broker again")


def check_writable(config: BrokerConfig) -> None:
    """Raise POLICY_VIOLATION if clients must not change topics, or delete records."""
    if config.broker_read_only:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, WHY)


def check_commits(config: BrokerConfig, code: ErrorCode = ErrorCode.POLICY_VIOLATION) -> None:
    """Raise an error with `code` if clients must not change committed offsets."""
    if config.broker_read_only and config.broker_read_only_commits:
        raise KafkaError(code, f"{WHY}, and broker.read.only.commits, too")
