"""Reasons why a consumer group makes no progress, as sentences.

`causes` judges one or two observations of a group and is pure; `observe_group` makes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.groups import NOT_READY, SHARE
from kafkawire.client.lag import GroupLag, LagTotals, PartitionLag, lag_of
from kafkawire.client.offsets import Partition, partition_text, partitions_text
from kafkawire.client.transaction_admin import find_holders, list_transactions
from kafkawire.plural import count
from kafkawire.units import ago, duration_ms

IDLE_MS = 60_000
"""Commits this much older than the observation, with records left to read, are reported: consumers
commit every 5 s by default."""


STABLE = "Stable"
MAX_NAMED = 5
"""Names in one sentence; the others are counted."""


class OpenTransaction(NamedTuple):
    """The transaction at the last stable offset of a partition; None: not known."""

    producer_id: int
    transactional_id: str | None
    last_timestamp_ms: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Observation:
    """A group at `now_ms`. `before`: the same group `seconds` earlier, None if it was observed
    once. `transactions`: the open transaction of each partition that readers of committed records
    cannot read to the end."""

    group: GroupLag
    now_ms: int
    before: GroupLag | None = None
    seconds: float = 0.0
    transactions: Mapping[Partition, OpenTransaction | None] = field(default_factory=dict)
    transactional_ids: Mapping[int, str] = field(default_factory=dict)

    @property
    def shared(self) -> bool:
        """Return whether it is a share group."""
        return self.group.description.kind == SHARE

    @property
    def totals(self) -> LagTotals:
        return self.group.totals()


REMEDIES = {
    "no-members": "Start a consumer with this group.id.",
    "rebalancing": "Let the members that it waits for poll, restart them, or lower their "
    "max.poll.interval.ms.",
    "not-ready": "Create the missing topics, or repair the partition counts of internal topics.",
    "reconciling": "Let the member poll, or restart it.",
    "no-owner": "Restart a member, which starts a rebalance.",
    "not-subscribed": "Subscribe to the topic, or delete these offsets: kafkawire offsets delete.",
    "not-assigned": "Subscribe to the topic.",
    "below-log-start": "Set auto.offset.reset of the consumer, or run kafkawire groups "
    "reset-offsets; raise retention.ms if records were needed.",
    "above-log-end": "Run kafkawire groups reset-offsets.",
    "unknown-partition": "Start the broker that leads it, or delete these offsets: kafkawire "
    "offsets delete.",
    "open-transaction": "End the transaction in its producer; if that is gone, wait for "
    "transaction.timeout.ms.",
    "pending-offsets": "End the transaction in its producer.",
    "no-commits": "Read the log of the owner: it is blocked, fails, or does not commit.",
    "lag-grows": "Add members up to the number of partitions, or make each record cheaper.",
    "no-progress": "Read the logs of the members.",
    "locked": "Let the members acknowledge, or stop them: their records are released.",
    "idle-members": "Add partitions if these members are needed.",
}
"""Remedies by the kind of a Cause."""


class Cause(NamedTuple):
    """One finding. `stuck`: it stops the group, or a partition of it."""

    kind: str
    stuck: bool
    sentence: str
    partitions: list[Partition]

    @property
    def remedy(self) -> str:
        """Return what to do, empty if nothing."""
        return REMEDIES.get(self.kind, "")


def causes(seen: Observation) -> list[Cause]:
    """Return the findings, those that stop the group first."""
    rules = SHARE_RULES if seen.shared else RULES
    found = [cause for rule in rules for cause in rule(seen)]
    found.sort(key=lambda cause: not cause.stuck)
    if not any(cause.stuck for cause in found):
        found.insert(0, Cause("healthy", False, _nothing_stops(seen), []))
    return found


def _nothing_stops(seen: Observation) -> str:
    totals = seen.totals
    members = count(len(seen.group.description.members), "member")
    return (
        f"Nothing stops the group: {seen.group.description.state}, {members}, "
        f"lag {totals.lag:,} over {count(totals.partitions, 'partition')}."
    )


def _empty(seen: Observation) -> Iterator[Cause]:
    group = seen.group
    if group.description.members or group.description.state not in ("Empty", ""):
        return
    since = ""
    if group.active is not None and group.active.since_timestamp > 0:
        since = f" for {duration_ms(seen.now_ms - group.active.since_timestamp)}"
    yield Cause(
        "no-members",
        True,
        f"The group has had no members{since}: no consumer with this group.id is running. "
        f"Records left to read: {seen.totals.lag:,}.",
        [],
    )


def _rebalancing(seen: Observation) -> Iterator[Cause]:
    group, active = seen.group, seen.group.active
    state = group.description.state
    if state not in ("PreparingRebalance", "CompletingRebalance"):
        return
    since = ""
    if active is not None and active.since_timestamp > 0:
        since = f" for {duration_ms(seen.now_ms - active.since_timestamp)}"
    text = f"The group has been rebalancing{since}, so no member gets records."
    if active is None:
        text += " Which member it waits for is known to kafkawire brokers only."
    elif state == "PreparingRebalance":
        text += _waits_for([row for row in active.members if not row.rejoined], active)
    else:
        text += _waits_for_leader(active)
    yield Cause("rebalancing", True, text, [])


def _not_ready(seen: Observation) -> Iterator[Cause]:
    """A streams group without tasks."""
    description = seen.group.description
    if description.state != NOT_READY:
        return
    what = "its internal topics have other numbers of partitions than its source topics need"
    if description.missing:
        what = f"these topics of its topology do not exist: {join_names(description.missing)}"
    yield Cause(
        "not-ready",
        True,
        f"The group assigns no tasks, because {what}. Internal topics are created with the next "
        "heartbeat, if the application may create topics; the status in its log says why not.",
        [],
    )


def _moving(seen: Observation) -> Iterator[Cause]:
    """A consumer or streams group whose members do not have the newest assignment yet: they keep
    reading."""
    description = seen.group.description
    if description.state == "Assigning":
        yield Cause(
            "assigning",
            False,
            "A new assignment is due: a heartbeat of any member computes it, at most once per "
            f"{description.kind}.assignment.interval.ms of the group.",
            [],
        )
    elif description.state == "Reconciling":
        owing = {
            f"{member.client} at {member.host} ({member.instance or member.member})": sorted(
                {*member.assigned} - {*(member.target or ())}
            )
            for member in description.members
        }
        late = [
            f"{name}: {join_names(partitions_text(places))}"
            for name, places in owing.items()
            if places
        ]
        text = f"Members move to the assignment of epoch {description.assignment_epoch}."
        if late:
            text += (
                f" It waits for {count(len(late), 'member')} to release partitions, for at most "
                f"max.poll.interval.ms of the member: {join_names(late)}. A consumer releases "
                "them when it polls."
            )
        places = [place for of_member in owing.values() for place in of_member]
        yield Cause("reconciling", bool(late), text, places)


def _waits_for(missing: Sequence[Any], active: Any) -> str:
    if not missing:
        if active.joining_members:
            return f" It waits for {count(active.joining_members, 'new member')} to join."
        return " All members have joined; it waits for more (group.initial.rebalance.delay.ms)."
    limit = max(row.rebalance_timeout_ms for row in active.members)
    names = join_names([memberpartition_text(row) for row in missing])
    return (
        f" It waits for {len(missing)} of {count(len(active.members), 'member')} to join again, "
        f"for at most {duration_ms(limit)} (max.poll.interval.ms): {names}. "
        "A consumer joins again when it polls."
    )


def _waits_for_leader(active: Any) -> str:
    leaders = [row for row in active.members if row.member_id == active.leader]
    who = memberpartition_text(leaders[0]) if leaders else "its leader"
    return f" It waits for the assignment by {who}, the leader."


def memberpartition_text(row: Any) -> str:
    """Return client id, host and member id of a member."""
    instance = row.group_instance_id
    return f"{row.client_id} at {row.client_host} ({instance or row.member_id})"


def _find_unowned_partitions(seen: Observation) -> Iterator[Cause]:
    description = seen.group.description
    if not description.members or description.state != STABLE:
        return
    known = [member.topics for member in description.members]
    subscribed = {topic for topics in known for topic in topics or ()}
    unowned = [row for row in seen.group.partitions if row.owner is None]
    missing = [row for row in unowned if row.partition[0] in subscribed]
    if missing:
        yield Cause(
            "no-owner",
            True,
            f"{_partitions(missing)} of a subscribed topic {_has(missing)} no owner: no member "
            "reads there until the next rebalance.",
            [row.partition for row in missing],
        )
    others = [row for row in unowned if row.partition[0] not in subscribed]
    if others and None not in known:
        yield Cause(
            "not-subscribed",
            False,
            f"No member subscribes to {join_names(sorted({row.partition[0] for row in others}))}, "
            "of which the group has committed offsets: its lag only grows.",
            [row.partition for row in others],
        )


def _find_unread_shares(seen: Observation) -> Iterator[Cause]:
    """Partitions of a share group with members that no member has, or none has read yet."""
    if not seen.group.description.members:
        return
    unowned = [row for row in seen.group.partitions if row.owner is None]
    if unowned:
        yield Cause(
            "not-assigned",
            False,
            f"{_partitions(unowned)} {_has(unowned)} no member: no member subscribes to the topic, "
            "or its state is not initialized yet, which is requested again every 30 s.",
            [row.partition for row in unowned],
        )
    unread = [row for row in seen.group.partitions if row.owner and row.committed is None]
    if unread:
        yield Cause(
            "never-read",
            False,
            f"{_partitions(unread)} {_has(unread)} not been read yet: the group begins where its "
            "share.auto.offset.reset says.",
            [row.partition for row in unread],
        )


def _idle_members(seen: Observation) -> Iterator[Cause]:
    members = seen.group.description.members
    if seen.group.description.state != STABLE:
        return
    idle = [member for member in members if not member.assigned]
    if idle and len(idle) < len(members):
        yield Cause(
            "idle-members",
            False,
            f"{len(idle)} of {count(len(members), 'member')} have no partition: there are more "
            "members than partitions.",
            [],
        )


def _outside_log(seen: Observation) -> Iterator[Cause]:
    for row in seen.group.partitions:
        if row.committed is None or row.log_start is None or row.log_end is None:
            continue
        name = partition_text(row.partition)
        if row.committed < row.log_start:
            lost = count(row.log_start - row.committed, "record")
            yield Cause(
                "below-log-start",
                True,
                f"The committed offset {row.committed} of {name} is below the log start offset "
                f"{row.log_start}: {lost} were deleted unread. The consumer goes where its "
                "auto.offset.reset says, or fails with 'none'.",
                [row.partition],
            )
        elif row.committed > row.log_end:
            yield Cause(
                "above-log-end",
                True,
                f"The committed offset {row.committed} of {name} is above the log end offset "
                f"{row.log_end}: the topic was created again, or lost records. Reset the offset.",
                [row.partition],
            )


def _unreadable(seen: Observation) -> Iterator[Cause]:
    unknown = [row for row in seen.group.partitions if row.log_end is None]
    if unknown:
        yield Cause(
            "unknown-partition",
            True,
            f"{_partitions(unknown)} {_has(unknown)} no log: the topic was deleted, or no broker "
            "leads it.",
            [row.partition for row in unknown],
        )


def _open_transactions(seen: Observation) -> Iterator[Cause]:
    for row in seen.group.partitions:
        if row.partition not in seen.transactions:
            continue
        opened = seen.transactions[row.partition]
        by = "an open transaction"
        if opened is not None:
            by = f"the open transaction of producer {opened.producer_id}"
            if opened.transactional_id is not None:
                by += f" (transactional id {opened.transactional_id})"
            by += f", last active {ago(opened.last_timestamp_ms, seen.now_ms)}"
        waiting = (row.log_end or 0) - (row.stable or 0)
        at = row.committed if row.committed is not None else row.log_start
        level = "share.isolation.level" if seen.shared else "isolation.level"
        yield Cause(
            "open-transaction",
            not seen.shared and at is not None and row.stable is not None and at >= row.stable,
            f"Readers of committed records ({level}=read_committed) stop at offset "
            f"{row.stable} of {partition_text(row.partition)}, {count(waiting, 'offset')} before "
            f"the end, because of {by}. See: kafkawire transactions hanging.",
            [row.partition],
        )


def _pending_offsets(seen: Observation) -> Iterator[Cause]:
    pending = [] if seen.group.active is None else seen.group.active.pending_producers
    if pending:
        names = [
            f"{row.producer_id} ({seen.transactional_ids[row.producer_id]})"
            if row.producer_id in seen.transactional_ids
            else str(row.producer_id)
            for row in pending
        ]
        yield Cause(
            "pending-offsets",
            False,
            f"{count(sum(row.partitions for row in pending), 'offset')} of the group belong to "
            f"open transactions, of producer {join_names(names)}: a consumer that starts waits for "
            "their end.",
            [],
        )


def _no_commits(seen: Observation) -> Iterator[Cause]:
    if not seen.group.description.members:
        return
    late = [
        row
        for row in seen.group.partitions
        if row.lag
        and row.owner is not None
        and row.committed_ms is not None
        and seen.now_ms - row.committed_ms > IDLE_MS
    ]
    if late:
        last = max(row.committed_ms or 0 for row in late)
        yield Cause(
            "no-commits",
            True,
            f"{_partitions(late)} {_has(late)} a lag of {sum(row.lag or 0 for row in late):,}, and "
            f"the last commit was {ago(last, seen.now_ms)}: the owner is blocked, fails, or does "
            "not commit.",
            [row.partition for row in late],
        )
    never = [
        row for row in seen.group.partitions if row.lag and row.owner and row.committed is None
    ]
    if never:
        yield Cause(
            "never-committed",
            False,
            f"{_partitions(never)} {_has(never)} no committed offset: a restart begins where "
            "auto.offset.reset says.",
            [row.partition for row in never],
        )


def _progress(seen: Observation) -> Iterator[Cause]:
    if seen.before is None or not seen.seconds or seen.group.description.state != STABLE:
        return
    old = {row.partition: row for row in seen.before.partitions}
    rows = [row for row in seen.group.partitions if row.partition in old]
    read = sum(_subtract(_read_up_to(row), _read_up_to(old[row.partition])) for row in rows)
    arrived = sum(_subtract(row.log_end, old[row.partition].log_end) for row in rows)
    lag, before = seen.totals.lag, seen.before.totals().lag
    over = duration_ms(1000 * seen.seconds)
    what, done = ("record", "acknowledged") if seen.shared else ("offset", "committed")
    if lag > before:
        yield Cause(
            "lag-grows",
            False,
            f"The lag grew from {before:,} to {lag:,} in {over}: {arrived / seen.seconds:,.0f} "
            f"records/s arrived, {read / seen.seconds:,.0f} records/s were {done}.",
            [],
        )
    elif lag and not read:
        yield Cause(
            "no-progress", False, f"No {what} was {done} in {over}, with a lag of {lag:,}.", []
        )


def _find_locked_shares(seen: Observation) -> Iterator[Cause]:
    """A share group whose members have acknowledged nothing between two observations."""
    if seen.before is None or not seen.group.description.members or not seen.totals.lag:
        return
    old = {row.partition: _read_up_to(row) for row in seen.before.partitions}
    late = [
        row
        for row in seen.group.partitions
        if row.lag and row.owner and _read_up_to(row) == old.get(row.partition)
    ]
    if late:
        yield Cause(
            "locked",
            True,
            f"No member has acknowledged a record of {_partitions(late)} in "
            f"{duration_ms(1000 * seen.seconds)}: records that a member has acquired are locked "
            "for it until it acknowledges them, or for share.record.lock.duration.ms.",
            [row.partition for row in late],
        )


def _read_up_to(row: PartitionLag) -> int | None:
    """Return the committed offset; of a share group, one that counts finished records after it."""
    if row.left is not None and row.log_end is not None:
        return row.log_end - row.left
    return row.committed


def _subtract(now: int | None, before: int | None) -> int:
    return 0 if now is None or before is None else now - before


def _partitions(rows: Sequence[PartitionLag]) -> str:
    names = partitions_text(row.partition for row in rows)
    return f"{count(len(rows), 'partition')} ({join_names(names)})"


def _has(rows: Sequence[object]) -> str:
    return "has" if len(rows) == 1 else "have"


def join_names(names: Sequence[str]) -> str:
    """Return the names, at most MAX_NAMED of them, and how many more there are."""
    more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return ", ".join([*names[:MAX_NAMED], *more])


RULES: tuple[Callable[[Observation], Iterator[Cause]], ...] = (
    _empty,
    _rebalancing,
    _not_ready,
    _moving,
    _unreadable,
    _find_unowned_partitions,
    _outside_log,
    _open_transactions,
    _pending_offsets,
    _no_commits,
    _progress,
    _idle_members,
)
SHARE_RULES = (
    _empty,
    _unreadable,
    _find_unread_shares,
    _find_locked_shares,
    _open_transactions,
    _progress,
    _idle_members,
)


MAX_DESCRIBED = 100
"""Partitions with an open transaction whose producers are requested."""


def observe_group(cluster: Cluster, group: str, seconds: float) -> Observation:
    """Observe a group once, or twice with `seconds` between."""
    (found,) = lag_of(cluster, [(group, None)], stable=True)
    before = None
    if seconds:
        time.sleep(seconds)
        before = found
        (found,) = lag_of(cluster, [(group, None)], stable=True)
    names = _transactional_ids(cluster, found)
    return Observation(
        found,
        time.time_ns() // 1_000_000,
        before,
        seconds,
        _transactions(cluster, found, names),
        names,
    )


def _find_held_partitions(group: GroupLag) -> dict[Partition, int]:
    """Return the partitions that readers of committed records cannot read to the end, with their
    leaders."""
    return {
        row.partition: row.leader
        for row in group.partitions
        if row.stable is not None and row.log_end is not None and row.stable < row.log_end
    }


def _transactional_ids(cluster: Cluster, group: GroupLag) -> dict[int, str]:
    """Return the transactional ids of producers by producer id, if they matter for the group."""
    pending = () if group.active is None else group.active.pending_producers
    if not pending and not _find_held_partitions(group):
        return {}
    try:
        return {row.producer_id: row.transactional_id for row in list_transactions(cluster)}
    except ClientError:
        return {}  # a broker without this API: producers are named by id


def _transactions(
    cluster: Cluster, group: GroupLag, names: dict[int, str]
) -> dict[Partition, OpenTransaction | None]:
    held = _find_held_partitions(group)
    found: dict[Partition, OpenTransaction | None] = dict.fromkeys(held)
    described = dict(list(held.items())[:MAX_DESCRIBED])
    try:
        holders, _ = find_holders(cluster, described)
    except ClientError:
        return found  # the broker lacks this API
    for place, row in holders.items():
        found[place] = OpenTransaction(
            row.producer_id, names.get(row.producer_id), row.last_timestamp_ms, row.start_offset
        )
    return found
