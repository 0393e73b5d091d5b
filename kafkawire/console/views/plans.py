"""Plans of changes: what a change does, and the facts that it is based on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, check
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import uuid_text

DENIED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)

Values = Mapping[str, Any]
"""The fields of a form: texts, numbers (None: empty), and lists of (name, value)."""
Change = Mapping[str, Any]
"""Exactly what a change does, in the types of JSON."""
Seen = Mapping[str, str | int | None]
"""Facts by their names; a change is refused when one is another than it was in the plan."""


class NotAllowed(Exception):
    """The console only reads, or the broker does not allow a change; the text is one sentence."""


class ChangeRefused(Exception):
    """A change cannot be made; the text is one sentence. `status`: 400 for a wrong value."""

    def __init__(self, sentence: str, status: int = 409) -> None:
        super().__init__(sentence)
        self.status = status


class FormField(NamedTuple):
    """A field of a form. `kind`: text, area (of many lines), number, signed, time, settings (lines
    of NAME=VALUE), names (lines), or choice."""

    name: str
    label: str
    kind: str = "text"
    choices: Sequence[str] = ()
    required: bool = False


class FactTable(NamedTuple):
    """Rows under their columns."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()


class ChangePlan(NamedTuple):
    """A change, the facts it is based on, and both for people."""

    change: Change
    seen: Seen
    sentence: str
    table: FactTable = FactTable()


class Action:
    """A kind of change. `confirm`: the field whose text the user types again before it is made."""

    title: ClassVar[str]
    fields: ClassVar[Sequence[FormField]]
    confirm: ClassVar[str] = ""

    def prefill(
        self, cluster: Cluster, given: Mapping[str, str]
    ) -> tuple[Mapping[str, str], FactTable]:
        """Return the texts of the empty form, and what is now. ClientError."""
        return given, FactTable()

    def make_plan(self, cluster: Cluster, values: Values) -> ChangePlan:
        """Return the plan of a change, without changing anything. ClientError, ChangeRefused."""
        raise NotImplementedError

    def see(self, cluster: Cluster, change: Change) -> Seen:
        """Return the facts that a change is based on as they are now. ClientError."""
        raise NotImplementedError

    def apply(self, cluster: Cluster, change: Change) -> str:
        """Make a change; return a sentence. ClientError."""
        raise NotImplementedError

    def redact(self, change: Change, seen: Seen) -> Change:
        """Return a change for the log, without data of records and without secrets."""
        return change


@contextmanager
def check_rights() -> Iterator[None]:
    """Turn an answer of the broker that a right is missing into NotAllowed."""
    try:
        yield
    except BrokerError as error:
        if error.code in DENIED:
            raise NotAllowed(str(error).rstrip(".")) from None
        raise


def see_topic(cluster: Cluster, topic: str) -> dict[str, str | int | None]:
    """Return the facts of a topic: another one of the same name has another ID. BrokerError."""
    (row,) = cluster.metadata([topic]).topics
    check(f"topic {topic}", row.error_code)
    return {"topic id": uuid_text(row.topic_id), "partitions": len(row.partitions)}
