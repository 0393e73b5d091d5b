"""The tools of `kafkawire mcp`. All only read, with the rights of the user of --command-config.

A tool's name, its docstring and the names of its arguments are what a model sees. Each returns JSON
(kafkawire.cli.mcp.answers).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

from kafkawire.cli.acls import decide_access
from kafkawire.cli.mcp.answers import MAX_ANSWER_BYTES, show_bytes, to_json
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.group_causes import causes, observe_group
from kafkawire.client.quotas import find_quotas
from kafkawire.client.security import ClientSecurity
from kafkawire.codec.errors import ErrorCode
from kafkawire.console.views.findings import (
    explain_causes,
    explain_locks,
    explain_quotas,
    explain_tier,
    explain_topic,
    explain_transactional_id,
    explain_transactions,
    find_problems,
    near_names,
)
from kafkawire.console.views.groups import describe_group_lag, list_groups_page
from kafkawire.console.views.health import judge
from kafkawire.console.views.locks import describe_locks
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.parts import ClusterFinding
from kafkawire.console.views.pool import ClusterPool
from kafkawire.console.views.records import FoundRecord, RecordOrder, RecordQuery, read_records
from kafkawire.console.views.snapshot import (
    ClusterSnapshot,
    Known,
    SnapshotCache,
    take_snapshot,
)
from kafkawire.console.views.topics import describe_topic, list_topics
from kafkawire.extras import MissingExtra
from kafkawire.security.acls.model import OPERATIONS_OF, Operation, ResourceKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kafkawire.sql.engine import SqlEngine

MAX_RECORDS = 50
"""Records of an answer."""
MAX_OBSERVE_S = 10.0
SQL_S = 30.0
"""Time of a statement."""
MAX_ROWS = 200
KINDS = {
    "topic": ResourceKind.TOPIC,
    "group": ResourceKind.GROUP,
    "transactional-id": ResourceKind.TRANSACTIONAL_ID,
    "cluster": ResourceKind.CLUSTER,
}

Tool = Callable[..., str]


class WrongArgument(ValueError):
    """An argument that a tool refuses; one sentence."""


class ToolSet:
    """The tools on one cluster."""

    def __init__(
        self, server: str, security: ClientSecurity, security_file: str, error: type[Exception]
    ) -> None:
        """`security_file`: that of `security`, for SQL; `error`: raised by tools, with one
        sentence."""
        self._server = server
        self._security_file = security_file
        self._error = error
        self._pool = ClusterPool(server, security)
        self._own = OwnBroker()
        self._snapshots = SnapshotCache(self._pool, self._own)

    def list_tools(self) -> list[Tool]:
        """Return the functions that are tools."""
        return [
            self._answer(each)
            for each in (
                self.why_cluster, self.why_topic, self.why_group, self.why_tier,
                self.why_transaction, self.why_client, self.list_topics, self.describe_topic,
                self.list_groups, self.describe_group, self.read_records, self.find_records,
                self.sql,
            )
        ]  # fmt: skip

    def _answer(self, tool: Callable[..., Mapping[str, Any]]) -> Tool:
        """Return a tool that answers with JSON, and fails with one sentence."""

        @wraps(tool)
        def call(*args: Any, **kwargs: Any) -> str:
            try:
                answer = tool(*args, **kwargs)
                found = {"findings": [_explain(each) for each in answer.get("findings", ())]}
                return to_json({**answer, **found} if found["findings"] else answer)
            except (ClientError, WrongArgument, MissingExtra) as failure:
                raise self._error(f"{str(failure).rstrip('.')}.") from None

        call.__annotations__["return"] = str
        return call

    def _read_known(self) -> Known:
        """Return the facts of the pages' snapshot, which may be some seconds old, with rates."""
        known = self._snapshots.read()
        known.require(newest=True)
        return known

    def _take_snapshot(self) -> ClusterSnapshot:
        """Return the topics and groups of now: a fault may be of this second."""
        with self._pool.lend() as cluster:
            return take_snapshot(cluster, self._own)

    # Why something does not work.

    def why_cluster(self) -> dict[str, Any]:
        """Say what is wrong with the cluster: call this first. Covers brokers, topics without a
        leader, groups with lag and no members, open transactions, the remote tier, disks,
        read-only brokers and schedules. Each finding has the cause, the remedy, and the next
        call."""
        snapshot = self._take_snapshot()
        with self._pool.lend() as cluster:
            refused: list[str] = []
            problems = find_problems(cluster, self._own, snapshot, refused)
        health = judge(Known(snapshot, found=tuple(problems)))
        found = [*health.findings, *(ClusterFinding(False, each) for each in refused)]
        facts = {
            "topics": len(snapshot.topics),
            "groups": len(snapshot.groups),
            "lag": snapshot.lag,
            "brokers": [f"{each.node} at {each.host}:{each.port}" for each in snapshot.nodes],
        }
        return {"well": not found, "findings": found, **facts}

    def why_topic(
        self,
        topic: str,
        partition: int | None = None,
        offset: int | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Say why records of a topic are missing or cannot be read: misspelled name, no leader,
        retention, DeleteRecords, compaction, open transactions, delayed delivery. With an offset
        (needs a partition) or a key: why that record is not there."""
        if offset is not None and partition is None:
            raise WrongArgument("offset: it is given together with a partition")
        snapshot = self._take_snapshot()
        with self._pool.lend() as cluster:
            found = explain_topic(cluster, self._own, snapshot, topic, partition, offset, key)
        return {"topic": topic, "findings": found}

    def why_group(self, group: str, observe_s: float = 3.0) -> dict[str, Any]:
        """Say why a group of any type (classic, consumer, share, streams) makes no progress. It is
        observed twice, with observe_s seconds between (0 to 10)."""
        if not 0 <= observe_s <= MAX_OBSERVE_S:
            raise WrongArgument(f"observe_s={observe_s:g}: it must be 0 to {MAX_OBSERVE_S:g}")
        try:
            with self._pool.lend() as cluster:
                seen = observe_group(cluster, group, observe_s)
                locks, _ = describe_locks(cluster, self._own, seen.group.description)
        except BrokerError as error:
            raise self._explain_unknown(group, error) from None
        description = seen.group.description
        return {
            "group": group,
            "type": description.kind,
            "state": description.state,
            "members": len(description.members),
            "lag": seen.totals.lag,
            "findings": [
                *explain_causes(causes(seen)),
                *explain_locks(locks),
            ],
        }

    def _explain_unknown(self, group: str, error: BrokerError) -> ClientError:
        if error.code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID):
            return error
        names = self._take_snapshot().groups
        return ClientError(f"there is no group {group!r}. {near_names(group, names)}")

    def why_tier(self, topic: str = "") -> dict[str, Any]:
        """Say why records are not in the remote tier (S3): paused, no tier, failures of the bucket,
        too new, open transactions. Without a topic: one row for each topic and reason."""
        with self._pool.lend() as cluster:
            if topic:
                describe_topic(cluster, self._own, topic)  # an unknown one is refused
            return {"findings": explain_tier(cluster, self._own, topic)}

    def why_transaction(self, transactional_id: str = "") -> dict[str, Any]:
        """Say which open or hanging transactions hold back readers; with a transactional id also
        its state, and whether producers of it are fenced."""
        snapshot = self._take_snapshot()
        with self._pool.lend() as cluster:
            found: list[ClusterFinding] = []
            if transactional_id:
                found += explain_transactional_id(cluster, transactional_id)
            found += explain_transactions(cluster, snapshot)
        return {"findings": found or [ClusterFinding(False, "No transaction holds back readers.")]}

    def why_client(
        self,
        user: str = "ANONYMOUS",
        client_id: str = "",
        operation: str = "",
        resource: Literal["topic", "group", "transactional-id", "cluster"] = "topic",
        name: str = "",
        host: str = "127.0.0.1",
    ) -> dict[str, Any]:
        """Say why a client is refused or slow: the access rule that decides whether a user may do
        an operation (read, write, describe, ...) with a topic, group or transactional id, and the
        quotas that throttle the user or client id."""
        kind = KINDS[resource]
        found: list[ClusterFinding] = []
        with self._pool.lend() as cluster:
            if operation:
                wanted = _operation(operation, kind)
                principal = user if ":" in user else f"User:{user}"
                name = "kafka-cluster" if resource == "cluster" else name
                allowed, rule = True, "the broker checks no access rules"
                try:
                    decided = decide_access(cluster, principal, host, wanted, (kind, name))
                    allowed, rule = decided.allowed, str(decided.rule)
                except BrokerError as error:
                    if error.code != ErrorCode.SECURITY_DISABLED:
                        raise
                may = "may" if allowed else "may not"
                option = "--cluster" if resource == "cluster" else f"--{resource} {name}"
                sentence = f"{principal} {may} {operation} {resource} {name}: {rule}."
                remedy = "" if allowed else f"kafkawire acls add {user} {operation} {option}"
                found.append(ClusterFinding(not allowed, sentence, remedy))
            found += explain_quotas(find_quotas(cluster, {}), user, client_id)
        return {"findings": found or [ClusterFinding(False, "No quota applies to this client.")]}

    # What there is.

    def list_topics(
        self,
        contains: str = "",
        sort: Literal["name", "partitions", "records", "rate", "tier", "lag"] = "name",
        page: int = 1,
        internal: bool = False,
    ) -> dict[str, Any]:
        """List topics by a part of their names, 100 a page, with records, rate per second, share in
        the remote tier, and the group with the largest lag."""
        known = self._read_known()
        return list_topics(known, contains, sort, page, internal)._asdict()

    def describe_topic(self, topic: str, first_partition: int = 0) -> dict[str, Any]:
        """Describe a topic: settings, and for each partition leader, replicas, log start and end,
        and the offset map: which offsets are in the journal, on disk, in S3, or gone."""
        with self._pool.lend() as cluster:
            found = describe_topic(cluster, self._own, topic, first_partition)
        return {"topic": found}

    def list_groups(
        self, contains: str = "", sort: Literal["lag", "name"] = "lag", page: int = 1
    ) -> dict[str, Any]:
        """List groups by a part of their names, 100 a page, with type, state, members and lag."""
        known = self._read_known()
        found = list_groups_page(known, contains, sort, page)
        rows = [{name: value for name, value in each._asdict().items() if name != "committed"}
                for each in found.rows]  # fmt: skip
        return {**found._asdict(), "rows": rows}

    def describe_group(self, group: str) -> dict[str, Any]:
        """Describe a group: members, and for each partition committed offset, log end and lag."""
        try:
            with self._pool.lend() as cluster:
                found = describe_group_lag(cluster, group).lag
        except BrokerError as error:
            raise self._explain_unknown(group, error) from None
        rows = [
            {"partition": "-".join(map(str, each.partition)), "committed": each.committed,
             "log_start": each.log_start, "log_end": each.log_end, "lag": each.lag,
             "member": each.owner}
            for each in found.partitions
        ]  # fmt: skip
        return {"group": found.description, "lag": found.totals().lag, "partitions": rows}

    # Records.

    def read_records(
        self,
        topic: str,
        partition: int | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        newest_first: bool = True,
        limit: int = 10,
    ) -> dict[str, Any]:
        """Read records, at most 50: the newest, or with newest_first=false from a time (ms since
        1970), from an offset of a partition, or from the log start. Values are json, text or
        base64; long ones are cut."""
        if offset is not None and partition is None:
            raise WrongArgument("offset: it is given together with a partition")
        if newest_first and (offset is not None or time_ms is not None):
            newest_first = False
        at = {} if partition is None or offset is None else {partition: offset}
        return self._read(
            RecordQuery(topic, _order(newest_first), partition, at, time_ms, limit=_limit(limit))
        )

    def find_records(
        self,
        topic: str,
        key: str | None = None,
        text: str = "",
        partition: int | None = None,
        newest_first: bool = True,
        limit: int = 10,
    ) -> dict[str, Any]:
        """Find records with this key, or with this text in key, value or headers. `searched`
        says which offsets were searched, and `stopped` why the search ended: without a match, the
        offsets in `more` were not searched."""
        if key is None and not text:
            raise WrongArgument("key and text: one of them is needed")
        return self._read(
            RecordQuery(
                topic, _order(newest_first), partition, text=text, key=key, limit=_limit(limit)
            )
        )

    def _read(self, query: RecordQuery) -> dict[str, Any]:
        with self._pool.lend() as cluster:
            found = read_records(cluster, query)
        return {**found._asdict(), "records": [_record(each) for each in found.records]}

    def sql(self, statement: str) -> dict[str, Any]:
        """Run one SELECT on DuckDB, at most 200 rows and 30 seconds. Each topic is a table with the
        columns topic, partition, "offset", timestamp, key, value, headers, key_text, value_text."""
        from kafkawire.reading.model.source import Source, SourceError
        from kafkawire.sql.engine import SqlEngine

        source = Source(bootstrap=self._server, security_file=self._security_file)
        try:
            with SqlEngine(source, confined=True) as engine, _interrupt_late(engine):
                schema, batches = engine.run(statement)
                rows, cut = _rows(batches)
        except SourceError as error:
            raise ClientError(str(error)) from None
        return {"columns": schema.names, "rows": rows, "more": cut}


def _explain(found: ClusterFinding) -> dict[str, Any]:
    """Return a finding with the call that explains more, empty if none."""
    call = {"transactions": "why_transaction()", "tier": "why_tier()"}.get(found.page, "")
    if found.group:
        call = f"why_group(group={found.group!r})"
    elif found.topic and not call:
        call = f"why_topic(topic={found.topic!r})"
    return {**found._asdict(), "next": call}


def _operation(text: str, kind: ResourceKind) -> Operation:
    allowed = {each.name.lower().replace("_", "-"): each for each in OPERATIONS_OF[kind]}
    found = allowed.get(text.lower().replace("_", "-"))
    if found is None:
        raise WrongArgument(f"operation={text}: it must be one of {', '.join(allowed)}")
    return found


def _order(newest_first: bool) -> RecordOrder:
    return RecordOrder.BACKWARD if newest_first else RecordOrder.FORWARD


def _limit(limit: int) -> int:
    if not 1 <= limit <= MAX_RECORDS:
        raise WrongArgument(f"limit={limit}: it must be 1 to {MAX_RECORDS}")
    return limit


def _record(found: FoundRecord) -> dict[str, Any]:
    return {
        "partition": found.partition,
        "offset": found.offset,
        "time_ms": found.timestamp,
        "key": show_bytes(found.key),
        "value": show_bytes(found.value),
        "headers": [[name, value] for name, value in found.headers],
    }


@contextmanager
def _interrupt_late(engine: SqlEngine) -> Iterator[None]:
    """Interrupt a statement after SQL_S."""
    timer = threading.Timer(SQL_S, engine.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _rows(batches: Iterator[pa.RecordBatch]) -> tuple[list[dict[str, Any]], bool]:
    """Return the first rows within the bounds, and whether there are more."""
    rows: list[dict[str, Any]] = []
    size, until_s = 0, time.monotonic() + SQL_S
    for batch in batches:
        for at in range(batch.num_rows):
            if len(rows) == MAX_ROWS or size > MAX_ANSWER_BYTES or time.monotonic() > until_s:
                return rows, True
            (row,) = batch.slice(at, 1).to_pylist()
            rows.append(row)
            size += len(str(row))
    return rows, False
