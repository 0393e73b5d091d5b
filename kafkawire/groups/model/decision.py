"""Decisions of the group state machines: steps to apply and effects to perform, as plain data.

A decision changes nothing. Its `steps` are records (state that Kafka keeps in `__consumer_offsets`)
and changes (state that Kafka keeps only in memory: a joining member, a parked request, a rebalance
in progress; see kafkawire.groups.model.changes). The machine's `apply` applies both, in this
order, after the records have been appended. Its `effects` are then performed.

Created by the state machines, executed by kafkawire.groups.coordinator, compared in tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from kafkawire.groups.model.changes import Change
from kafkawire.groups.model.events import Event
from kafkawire.groups.model.records import Record
from kafkawire.groups.model.request import Response
from kafkawire.groups.model.transactional import TransactionStep
from kafkawire.share.state.machine import DeleteState, InitializeState, ReadSummary

Step = Record | TransactionStep | Change

# State machines know a parked request only by a number.
Token = int

# Timer keys. A group has one timer for the join phase, one for the sync phase, and one for the
# session of each member; setting a key again moves the timer.
JOIN = "join"
SYNC = "sync"
# The first assignment of a streams group.
INITIAL = "initial"
_SESSION = "session:"
_REBALANCE = "rebalance:"
# Of members of consumer groups with the classic protocol: to join again, and to request the
# assignment after that.
_JOIN = "join:"
_SYNC = "sync:"


def session(member_id: str) -> str:
    return _SESSION + member_id


def session_member(key: str) -> str | None:
    """Return the member whose session timer `key` is; None for the timers of the group."""
    return key[len(_SESSION) :] if key.startswith(_SESSION) else None


def rebalance(member_id: str) -> str:
    """Return the key of the timer of a member that is to release partitions (KIP-848)."""
    return _REBALANCE + member_id


def rebalance_member(key: str) -> str | None:
    return key[len(_REBALANCE) :] if key.startswith(_REBALANCE) else None


def join_again(member_id: str) -> str:
    return _JOIN + member_id


def sync_after(member_id: str) -> str:
    return _SYNC + member_id


def joining_member(key: str) -> str | None:
    return key[len(_JOIN) :] if key.startswith(_JOIN) else None


def syncing_member(key: str) -> str | None:
    return key[len(_SYNC) :] if key.startswith(_SYNC) else None


@dataclass(slots=True)
class Reply:
    """Answer the request `token` with `body`, a response message."""

    token: Token
    body: Response


@dataclass(slots=True)
class SetTimer:
    """Call `decide_timer(key)` at `at_ms`, on the clock of `now_ms`."""

    key: str
    at_ms: int


@dataclass(slots=True)
class CancelTimer:
    """Cancel the timer `key`; no effect if it is not set."""

    key: str


@dataclass(slots=True)
class MatchPatterns:
    """Match these patterns with all topics that `may_describe` allows (None: all), then call
    `decide_matched` with the result. `version`: a number of the topics as they are."""

    patterns: tuple[str, ...]
    version: int
    may_describe: Callable[[str], bool] | None


@dataclass(slots=True)
class ComputeTarget:
    """Compute the target assignment of the group in slices, then call `decide_targets` with parts
    of the result, and `decide_computed` in the end (kafkawire.groups.consumer.target)."""


class StatesPurpose(Enum):
    """Why a share group changes states of share partitions; the value is a word for the log."""

    HEARTBEAT = "initialize"
    """Members subscribe to partitions without a state."""
    ALTER = "alter"
    """AlterShareGroupOffsets."""
    VERIFY = "look up"
    """The group was loaded, and its states may have been lost."""
    DELETE_OFFSETS = "delete"
    """DeleteShareGroupOffsets."""
    DELETE_GROUP = "delete all"
    """DeleteGroups."""


@dataclass(slots=True)
class ChangeStates:
    """Have share coordinators do this after the commit, then call `decide_changed` with their
    answers, which answers the request `token` with what `body` has become. Without a request it
    is for the heartbeats of members."""

    purpose: StatesPurpose
    requests: tuple[InitializeState | DeleteState | ReadSummary, ...]
    token: Token | None = None
    body: Response | None = None


Effect = Reply | SetTimer | CancelTimer | MatchPatterns | ComputeTarget | ChangeStates


@dataclass(slots=True)
class Decision:
    """Steps and effects of one request, timer or task, and the events to log once it was carried
    out.

    `group_id` is the group of the changes and timers. Records contain their group, so a decision
    about many groups (expiry, deletion) has only records.
    """

    group_id: str = ""
    steps: list[Step] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
