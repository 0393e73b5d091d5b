"""Changes of topics: created, deleted, their settings, partitions and oldest records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkawire.client.admin import (
    create_partitions,
    create_topic,
    delete_records,
    delete_topics,
    plan_deletion,
    topic_settings,
)
from kafkawire.client.cluster import Cluster
from kafkawire.client.configs import DELETE, SET, TOPIC, alter, settings
from kafkawire.client.configs import Change as ConfigChange
from kafkawire.client.errors import BrokerError, check
from kafkawire.client.offsets import Partition, leaders
from kafkawire.codec.errors import ErrorCode
from kafkawire.console.views.plans import (
    Action,
    Change,
    ChangePlan,
    ChangeRefused,
    FactTable,
    FormField,
    Seen,
    Values,
    check_rights,
    see_topic,
)
from kafkawire.plural import count

HIDDEN = "(hidden)"
TOPIC_FIELD = FormField("topic", "Topic", required=True)


class CreateTopic(Action):
    """A new topic."""

    title = "Create a topic"
    fields = (
        TOPIC_FIELD,
        FormField("partitions", "Partitions (empty: the broker's default)", "number"),
        FormField("replicas", "Replicas (empty: the broker's default)", "number"),
        FormField("settings", "Settings, a line each, such as retention.ms=7d", "settings"),
    )

    def make_plan(self, cluster: Cluster, values: Values) -> ChangePlan:
        change = {
            "topic": values["topic"],
            "partitions": _or_default(values["partitions"]),
            "replicas": _or_default(values["replicas"]),
            "settings": dict(values["settings"]),
        }
        seen = self.see(cluster, change)
        if seen["exists"]:
            raise ChangeRefused(f"There is a topic {values['topic']} already")
        with check_rights():
            self._create(cluster, change, validate_only=True)
        number = values["partitions"]
        size = "the broker's default number of partitions" if number is None else (
            count(number, "partition")
        )  # fmt: skip
        table = FactTable(("Setting", "Value"), list(change["settings"].items()))
        return ChangePlan(change, seen, f"Create topic {values['topic']} with {size}.", table)

    def see(self, cluster: Cluster, change: Change) -> Seen:
        (row,) = cluster.metadata([change["topic"]]).topics
        return {"exists": int(not row.error_code)}

    def apply(self, cluster: Cluster, change: Change) -> str:
        self._create(cluster, change)
        return f"Topic {change['topic']} was created."

    def _create(self, cluster: Cluster, change: Change, validate_only: bool = False) -> None:
        create_topic(
            cluster, change["topic"], change["partitions"], change["settings"],
            replicas=change["replicas"], validate_only=validate_only,
        )  # fmt: skip


class DeleteTopic(Action):
    """The end of a topic and its records."""

    title = "Delete a topic"
    fields = (TOPIC_FIELD,)
    confirm = "topic"

    def make_plan(self, cluster: Cluster, values: Values) -> ChangePlan:
        change = {"topic": values["topic"]}
        seen = self.see(cluster, change)
        led_by = {place: node for place, node in _leaders(cluster, values).items() if node >= 0}
        ends = plan_deletion(cluster, led_by, None, None)
        records = count(sum(end - start for start, end in ends.values()), "record")
        sentence = (
            f"Delete topic {values['topic']} with {records} in "
            f"{count(int(seen['partitions'] or 0), 'partition')}. They cannot be restored."
        )
        return ChangePlan(change, seen, sentence)

    def see(self, cluster: Cluster, change: Change) -> Seen:
        return see_topic(cluster, change["topic"])

    def apply(self, cluster: Cluster, change: Change) -> str:
        topic = change["topic"]
        check(f"topic {topic}", *delete_topics(cluster, [topic])[topic])
        return f"Topic {topic} was deleted."


class ChangeConfigs(Action):
    """Settings of a topic, set and removed."""

    title = "Change settings of a topic"
    fields = (
        TOPIC_FIELD,
        FormField("set", "Set, a line each, such as segment.bytes=1GiB", "settings"),
        FormField("unset", "Remove, a name on each line: the default applies again", "names"),
    )

    def prefill(
        self, cluster: Cluster, given: Mapping[str, str]
    ) -> tuple[Mapping[str, str], FactTable]:
        if not given.get("topic"):
            return given, FactTable()
        known = topic_settings(cluster, given["topic"])
        rows = [(name, HIDDEN if value is None else value) for name, value in known.items()]
        return given, FactTable(("Set on the topic", "Value"), rows)

    def make_plan(self, cluster: Cluster, values: Values) -> ChangePlan:
        wanted: dict[str, str | None] = dict.fromkeys(values["unset"]) | dict(values["set"])
        if not wanted or len(wanted) != len(values["unset"]) + len(values["set"]):
            raise ChangeRefused("Give at least one setting, and each one once", 400)
        change = {"topic": values["topic"], "settings": wanted}
        see_topic(cluster, values["topic"])  # one that may not be seen does not exist
        with check_rights():
            seen = self.see(cluster, change)
            self._alter(cluster, change, validate_only=True)
        shown = self.redact(change, seen)["settings"]
        rows = [
            (name, seen.get(name), "(the default)" if value is None else value)
            for name, value in shown.items()
        ]
        sentence = f"Change {count(len(rows), 'setting')} of topic {values['topic']}."
        return ChangePlan(change, seen, sentence, FactTable(("Setting", "Now", "After"), rows))

    def see(self, cluster: Cluster, change: Change) -> Seen:
        rows = settings(cluster, (TOPIC, change["topic"]), list(change["settings"]))
        return {
            row["name"]: HIDDEN if row["sensitive"] else f"{row['value']} (from {row['source']})"
            for row in rows
        }

    def apply(self, cluster: Cluster, change: Change) -> str:
        self._alter(cluster, change)
        return f"Settings of topic {change['topic']} were changed."

    def _alter(self, cluster: Cluster, change: Change, validate_only: bool = False) -> None:
        rows: list[ConfigChange] = [
            (name, value, DELETE if value is None else SET)
            for name, value in change["settings"].items()
        ]
        alter(cluster, (TOPIC, change["topic"]), rows, validate_only=validate_only)

    def redact(self, change: Change, seen: Seen) -> Change:
        return {
            "topic": change["topic"],
            "settings": {
                name: HIDDEN if value is not None and seen.get(name) == HIDDEN else value
                for name, value in change["settings"].items()
            },
        }


class AddTopicPartitions(Action):
    """More partitions of a topic."""

    title = "Add partitions to a topic"
    fields = (TOPIC_FIELD, FormField("total", "Partitions to have", "number", required=True))

    def make_plan(self, cluster: Cluster, values: Values) -> ChangePlan:
        change = {"topic": values["topic"], "total": values["total"]}
        seen = self.see(cluster, change)
        with check_rights():
            self._create(cluster, change, validate_only=True)
        sentence = (
            f"Raise the partitions of topic {values['topic']} from {seen['partitions']} to "
            f"{values['total']}. They cannot be removed again, and records of one key may go to "
            "another partition than before."
        )
        return ChangePlan(change, seen, sentence)

    def see(self, cluster: Cluster, change: Change) -> Seen:
        return see_topic(cluster, change["topic"])

    def apply(self, cluster: Cluster, change: Change) -> str:
        self._create(cluster, change)
        return f"Topic {change['topic']} has {change['total']} partitions."

    def _create(self, cluster: Cluster, change: Change, validate_only: bool = False) -> None:
        topic, wanted = change["topic"], {change["topic"]: change["total"]}
        result = create_partitions(cluster, wanted, validate_only=validate_only)[topic]
        check(f"topic {topic}", *result)


class DeleteRecords(Action):
    """The oldest records of a topic, deleted."""

    title = "Delete the oldest records of a topic"
    fields = (
        TOPIC_FIELD,
        FormField("partition", "Partition (empty: all)", "number"),
        FormField("what", "Delete", "choice", ("before an offset", "all records")),
        FormField("offset", "First offset that is kept", "number"),
    )
    confirm = "topic"

    def make_plan(self, cluster: Cluster, values: Values) -> ChangePlan:
        topic, everything = values["topic"], values["what"] == "all records"
        if (values["offset"] is None) != everything:
            raise ChangeRefused("Give an offset, or choose all records", 400)
        led_by = _leaders(cluster, values)
        plan = plan_deletion(cluster, led_by, None, values["offset"])
        rows = [(at, start, new, new - start) for (_, at), (start, new) in plan.items()
                if new > start]  # fmt: skip
        if not rows:
            raise ChangeRefused("There are no records to delete")
        change = {"topic": topic, "before": {str(index): new for index, _, new, _ in rows}}
        records = count(sum(row[-1] for row in rows), "offset")
        sentence = f"Delete {records} of topic {topic}. The records cannot be restored."
        table = FactTable(("Partition", "Log start", "New log start", "Offsets"), rows)
        return ChangePlan(change, self.see(cluster, change), sentence, table)

    def see(self, cluster: Cluster, change: Change) -> Seen:
        places = {(change["topic"], int(index)) for index in change["before"]}
        known = leaders(cluster, [change["topic"]])
        led_by = {place: node for place, node in known.items() if place in places}
        starts = plan_deletion(cluster, led_by, None, 0)
        found = {f"log start of partition {at}": start for (_, at), (start, _) in starts.items()}
        return {"topic id": see_topic(cluster, change["topic"])["topic id"], **found}

    def apply(self, cluster: Cluster, change: Change) -> str:
        topic = change["topic"]
        wanted: dict[Partition, int] = {
            (topic, int(index)): offset for index, offset in change["before"].items()
        }
        found = delete_records(cluster, wanted, leaders(cluster, [topic]))
        for place in wanted:
            code, _ = found.get(place, (int(ErrorCode.LEADER_NOT_AVAILABLE), 0))
            if code:
                raise BrokerError(f"partition {place[1]} of topic {topic}", code)
        return f"The oldest records were deleted: {count(len(wanted), 'partition')}."


def _or_default(number: int | None) -> int:
    return -1 if number is None else number


def _leaders(cluster: Cluster, values: Values) -> dict[Partition, int]:
    """Return the leaders of a topic's partitions, or of the one that is given. ChangeRefused."""
    found = leaders(cluster, [values["topic"]])
    index: Any = values.get("partition")
    if index is None:
        return found
    place = values["topic"], index
    if place not in found:
        raise ChangeRefused(f"Topic {place[0]} has no partition {index}", 400)
    return {place: found[place]}
