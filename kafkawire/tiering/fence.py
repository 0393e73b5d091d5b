"""Refuses Produce requests while another broker owns the remote tier.

Records that this broker accepted then could never be uploaded, and the owner, usually a copy of
this broker that was restored elsewhere, assigns the same offsets to other records.

Fetches, groups and committed offsets are served as before, so that consumers can read to the end;
offsets committed here are not known to the owner. `tier.fenced.action=serve` accepts Produces, for
those who keep the data folder and give up the bucket.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.objectstore.errors import StoreError

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.append.commit_log import CommitLog

logger = logging.getLogger(__name__)

SOURCE = "tier"


class Fence:
    """Whether another broker owns the tier; `why`: the reason, empty if not."""

    __slots__ = ("_commit_log", "_config", "_refusing", "why")

    def __init__(self, commit_log: CommitLog, config: BrokerConfig) -> None:
        self._commit_log = commit_log
        self._config = config
        self._refusing = False
        self.why = ""

    def put(self, failure: Exception | None) -> None:
        """Another broker owns the tier, as `failure` says."""
        text = failure.text if isinstance(failure, StoreError) else str(failure)
        self.why = f"this broker must not write to the remote tier: {text}"
        self.apply_setting()

    def lower(self) -> None:
        """This broker owns the tier."""
        self.why = ""
        self.apply_setting()

    def apply_setting(self) -> None:
        """Refuse or accept Produce requests, depending on `why` and tier.fenced.action."""
        refuse = bool(self.why) and self._config.tier_fenced_action == "refuse"
        if refuse == self._refusing:
            return
        self._refusing = refuse
        if refuse:
            # Clients request metadata again, from any of their bootstrap servers, and retry until
            # they find the owner; idempotent producers keep their sequence. They would take
            # KAFKA_STORAGE_ERROR for a failed disk of the right broker.
            error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, self.why)
            self._commit_log.refuse_appends(SOURCE, error)
            logger.warning(
                "Produce requests are refused (NOT_LEADER_OR_FOLLOWER), reads are served: %s. To "
                "accept records that are never uploaded, set tier.fenced.action=serve",
                self.why,
            )
        else:
            self._commit_log.refuse_appends(SOURCE, None)
            logger.warning("Produce requests are no longer refused because of the remote tier")
