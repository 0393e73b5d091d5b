"""Changes of groups and transactions: offsets reset, groups deleted, transactions aborted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkawire.client.admin import delete_group
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError
from kafkawire.client.groups import SHARE, GroupDescription, describe_group
from kafkawire.client.offsets import Partition, commit, leaders, partition_text
from kafkawire.client.resets import OffsetTarget, active_sentence, current_offsets, make_plan
from kafkawire.client.share_groups import alter_share_offsets
from kafkawire.client.transaction_admin import (
    Producing,
    abort_transaction,
    find_hanging,
    producers,
)
from kafkawire.console.views.plans import (
    Action,
    Change,
    ChangePlan,
    ChangeRefused,
    FactTable,
    FormField,
    Seen,
    Values,
)
from kafkawire.plural import count

MAX_PARTITIONS = 5000
"""Partitions of one plan: it is sent back whole, within the size of a form."""
GROUP_FIELD = FormField("group", "Group", required=True)
TARGETS = ("earliest", "latest", "offset", "time", "shift")


def see_group(cluster: Cluster, group: str) -> tuple[GroupDescription, dict[Partition, int], Seen]:
    """Return a group with its committed offsets, and the facts of both. BrokerError for an unknown
    group."""
    found = describe_group(cluster, group)
    current = current_offsets(cluster, group, found.kind == SHARE)
    facts: dict[str, str | int | None] = {
        "state": found.state,
        "epoch": found.epoch,
        "members": len(found.members),
    }
    facts |= {partition_text(place): at for place, at in sorted(current.items())}
    return found, current, facts


class ResetOffsets(Action):
    """New committed offsets of a group without members."""

    title = "Reset the offsets of a group"
    fields = (
        GROUP_FIELD,
        FormField("topic", "Topic (empty: all with committed offsets)"),
        FormField("partition", "Partition (empty: all)", "number"),
        FormField("target", "Reset to", "choice", TARGETS),
        FormField("offset", "Offset", "number"),
        FormField("time", "Time (UTC): the first record from then on", "time"),
        FormField("shift", "Shift by, may be negative", "signed"),
    )
    confirm = "group"

    def make_plan(self, cluster: Cluster, values: Values) -> ChangePlan:
        group, target = values["group"], values["target"]
        if target in values and values[target] is None:
            raise ChangeRefused(f"Reset to {target}: the field {target} is empty", 400)
        found, current, seen = see_group(cluster, group)
        if active := active_sentence(found, "stop them before its offsets are reset"):
            raise ChangeRefused(active)
        partitions = self._partitions(cluster, values, current)
        new = make_plan(
            cluster, partitions, current,
            OffsetTarget(
                to_earliest=target == "earliest",
                to_latest=target == "latest",
                to_offset=values["offset"] if target == "offset" else None,
                shift_by=values["shift"] if target == "shift" else None,
                time_ms=values["time"] if target == "time" else None,
            ),
        )  # fmt: skip
        rows = [
            (*place, current.get(place), at, difference(current.get(place), at))
            for place, at in sorted(new.items())
        ]
        change = {
            "group": group,
            "shared": found.kind == SHARE,
            "offsets": [[topic, index, at] for (topic, index), at in sorted(new.items())],
        }
        table = FactTable(("Topic", "Partition", "Now", "After", "Records"), rows)
        sentence = f"Reset {count(len(rows), 'committed offset')} of group {group}."
        return ChangePlan(change, seen, sentence, table)

    def _partitions(
        self, cluster: Cluster, values: Values, current: Mapping[Partition, int]
    ) -> list[Partition]:
        topic, index = values["topic"], values["partition"]
        chosen = list(leaders(cluster, [topic])) if topic else list(current)
        found = [place for place in chosen if index is None or place[1] == index]
        if not found:
            raise ChangeRefused("There is no such partition", 400)
        if len(found) > MAX_PARTITIONS:
            raise ChangeRefused(
                f"A plan has at most {MAX_PARTITIONS:,} partitions: choose a topic", 400
            )
        return found

    def see(self, cluster: Cluster, change: Change) -> Seen:
        return see_group(cluster, change["group"])[2]

    def apply(self, cluster: Cluster, change: Change) -> str:
        group = change["group"]
        offsets = {(topic, index): at for topic, index, at in change["offsets"]}
        reset = alter_share_offsets if change["shared"] else commit
        for place, code in reset(cluster, group, offsets).items():
            if code:
                raise BrokerError(f"group {group}, {partition_text(place)}", code)
        return f"Offsets of group {group} were reset: {count(len(offsets), 'partition')}."


def difference(now: int | None, after: int) -> str:
    """Return what a reset does, in words: offsets are counted, as of records."""
    if now is None:
        return "nothing was committed"
    if now == after:
        return "unchanged"
    return f"{abs(after - now):,} {'skipped' if after > now else 'read again'}"


class DeleteGroup(Action):
    """The end of a group without members, and of its committed offsets."""

    title = "Delete a group"
    fields = (GROUP_FIELD,)
    confirm = "group"

    def make_plan(self, cluster: Cluster, values: Values) -> ChangePlan:
        group = values["group"]
        found, current, seen = see_group(cluster, group)
        if active := active_sentence(found, "stop them before it is deleted"):
            raise ChangeRefused(active)
        rows = [(*place, at) for place, at in sorted(current.items())]
        sentence = f"Delete group {group} and {count(len(rows), 'committed offset')}."
        table = FactTable(("Topic", "Partition", "Committed"), rows)
        return ChangePlan({"group": group}, seen, sentence, table)

    def see(self, cluster: Cluster, change: Change) -> Seen:
        return see_group(cluster, change["group"])[2]

    def apply(self, cluster: Cluster, change: Change) -> str:
        delete_group(cluster, change["group"])
        return f"Group {change['group']} was deleted."


class AbortTransaction(Action):
    """The end of a transaction that no coordinator will end."""

    title = "Abort a hanging transaction"
    fields = (
        FormField("topic", "Topic", required=True),
        FormField("partition", "Partition", "number", required=True),
        FormField("start", "First offset of the transaction (empty: the oldest)", "number"),
    )
    confirm = "topic"

    def make_plan(self, cluster: Cluster, values: Values) -> ChangePlan:
        place = values["topic"], values["partition"]
        open_ones = [
            each for each in _open(cluster, place)
            if values["start"] in (None, each.start_offset)
        ]  # fmt: skip
        if not open_ones:
            raise ChangeRefused(f"{partition_text(place)} has no such open transaction")
        opened = min(open_ones, key=lambda each: each.start_offset)
        if not find_hanging(cluster, [opened]):
            raise ChangeRefused("The coordinator has this transaction and will end it")
        change = {
            "topic": place[0],
            "partition": place[1],
            "start": opened.start_offset,
            "producer": opened.producer_id,
            "epoch": opened.producer_epoch,
            "coordinator_epoch": opened.coordinator_epoch,
        }
        sentence = (
            f"Abort the transaction in {partition_text(place)} from offset {opened.start_offset} "
            "on. No coordinator that you may see has it. Readers of committed records then "
            "continue, without its records."
        )
        table = FactTable(("Fact", "Value"), list(change.items()))
        return ChangePlan(change, self.see(cluster, change), sentence, table)

    def see(self, cluster: Cluster, change: Change) -> Seen:
        opened = self._find(cluster, change)
        return {
            "open": int(opened is not None),
            "last write": None if opened is None else opened.last_timestamp_ms,
        }

    def _find(self, cluster: Cluster, change: Change) -> Producing | None:
        place = change["topic"], change["partition"]
        wanted: tuple[Any, ...] = change["start"], change["producer"], change["epoch"]
        for each in _open(cluster, place):
            if (each.start_offset, each.producer_id, each.producer_epoch) == wanted:
                return each
        return None

    def apply(self, cluster: Cluster, change: Change) -> str:
        place = change["topic"], change["partition"]
        opened = Producing(
            place, change["producer"], change["epoch"], change["coordinator_epoch"], -1,
            change["start"],
        )  # fmt: skip
        abort_transaction(cluster, opened, leaders(cluster, [place[0]])[place])
        return f"The transaction in {partition_text(place)} was aborted."


def _open(cluster: Cluster, place: Partition) -> list[Producing]:
    """Return the producers with an open transaction in a partition. ChangeRefused."""
    node = leaders(cluster, [place[0]]).get(place)
    if node is None:
        raise ChangeRefused(f"Topic {place[0]} has no partition {place[1]}", 400)
    return [each for each in producers(cluster, {place: node}) if each.start_offset >= 0]
