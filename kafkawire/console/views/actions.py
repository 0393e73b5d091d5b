"""Changes of a cluster: planned, and applied if nothing that the plan is based on has changed.

A cluster has no way to change something only if it is as it was seen. The facts are read right
before a change, so that what another person did since the plan is shown instead of overwritten.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.console.views.group_actions import AbortTransaction, DeleteGroup, ResetOffsets
from kafkawire.console.views.plans import (
    Action,
    Change,
    ChangePlan,
    NotAllowed,
    Seen,
    Values,
    check_rights,
)
from kafkawire.console.views.record_actions import ProduceRecord
from kafkawire.console.views.topic_actions import (
    AddTopicPartitions,
    ChangeConfigs,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
)

ACTIONS: Mapping[str, Action] = {
    "create-topic": CreateTopic(),
    "delete-topic": DeleteTopic(),
    "topic-settings": ChangeConfigs(),
    "add-partitions": AddTopicPartitions(),
    "delete-records": DeleteRecords(),
    "produce": ProduceRecord(),
    "reset-offsets": ResetOffsets(),
    "delete-group": DeleteGroup(),
    "abort-transaction": AbortTransaction(),
}
READ_ONLY = "The console only reads: it was started without --allow-changes"
logger = logging.getLogger(__name__)


class Actor(NamedTuple):
    """The user who changes something. `user`: "" without a log-in; `address`: of the browser."""

    user: str
    address: str
    may_change: bool


class Outdated(Exception):
    """A fact that a plan is based on has changed. `differences`: the fact, in the plan, now."""

    def __init__(self, differences: Sequence[tuple[str, object, object]]) -> None:
        super().__init__("What the plan is based on has changed since")
        self.differences = differences


def plan_change(cluster: Cluster, actor: Actor, name: str, values: Values) -> ChangePlan:
    """Return the plan of a change. ClientError, NotAllowed, ChangeRefused."""
    if not actor.may_change:
        raise NotAllowed(READ_ONLY)
    return ACTIONS[name].make_plan(cluster, values)


def apply_change(cluster: Cluster, actor: Actor, name: str, change: Change, seen: Seen) -> str:
    """Make a change as it was planned, and log it; return a sentence. NotAllowed without the right,
    Outdated if something has changed since, ClientError if the broker refuses it."""
    if not actor.may_change:
        raise NotAllowed(READ_ONLY)
    action, outcome = ACTIONS[name], "not made"
    try:
        now = action.see(cluster, change)
        if now != seen:
            raise Outdated(
                [
                    (fact, seen.get(fact), now.get(fact))
                    for fact in sorted(now.keys() | seen.keys())
                    if now.get(fact) != seen.get(fact)
                ]
            )
        with check_rights():
            done = action.apply(cluster, change)
        outcome = "made"
        return done
    except Exception as failure:
        outcome = f"not made: {failure}"
        raise
    finally:
        line: dict[str, Any] = {
            "user": actor.user or "(no log-in)",
            "address": actor.address,
            "action": name,
            "before": seen,
            "after": action.redact(change, seen),
            "outcome": outcome,
        }
        # As JSON in ASCII: no name of a topic or group can end the line or forge another.
        logger.info("change %s", json.dumps(line))
