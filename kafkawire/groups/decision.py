"""Decisions of the group state machines: steps to apply and effects to perform, as plain data.

A decision changes nothing. Its `steps` are what will be true: records (facts Kafka keeps in
`__consumer_offsets`) and changes (facts Kafka keeps only in memory: a joining member, a parked
request, the running rebalance; see kafkawire.groups.classic.changes). Both are applied by the one
mutator of the machine, in this order, and only after the records have been appended. Its `effects`
are what the world then has to do. Timers are set at once, for they are part of the volatile state;
replies leave after the commit that covers everything applied so far.

Made by the machines, carried out by kafkawire.groups.coordinator, compared in tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kafkawire.groups.classic.changes import Change
from kafkawire.groups.records import GroupRecord, OffsetRecord, Record
from kafkawire.groups.request import Response

Step = Record | Change

# A request that waits for its answer is known to a machine by a number only.
Token = int

# Timer keys. A group has one timer for the join phase, one for the sync phase, and one for the
# session of each member; setting a key again moves the timer.
JOIN = "join"
SYNC = "sync"
_SESSION = "session:"


def session(member_id: str) -> str:
    """The key of a member's session timer."""
    return _SESSION + member_id


def session_member(key: str) -> str | None:
    """The member whose session timer `key` is; None for the timers of the group."""
    return key[len(_SESSION) :] if key.startswith(_SESSION) else None


@dataclass(slots=True)
class Reply:
    """Answer the request `token` with `body`, a response message."""

    token: Token
    body: Response


@dataclass(slots=True)
class SetTimer:
    """Ask `decide_timer(key)` at `at_ms`, on the clock that `now_ms` was taken from."""

    key: str
    at_ms: int


@dataclass(slots=True)
class CancelTimer:
    """Forget the timer `key`; forgetting one that is not set is fine."""

    key: str


Effect = Reply | SetTimer | CancelTimer


@dataclass(slots=True)
class Decision:
    """Steps and effects of one request, timer or task.

    `group_id` names the group whose changes and timers these are; records name theirs
    themselves, so a decision about many groups (expiry, deletion) has records only.
    """

    group_id: str = ""
    steps: list[Step] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """The steps that have to be in the log, in the order to append them."""
        return [step for step in self.steps if isinstance(step, GroupRecord | OffsetRecord)]

    @property
    def replies(self) -> list[Reply]:
        """The effects that leave after the commit."""
        return [effect for effect in self.effects if isinstance(effect, Reply)]
