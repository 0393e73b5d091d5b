"""Faults of a cluster, a topic, a group or a transaction, explained with remedies."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kafkawire.client.cluster import Cluster
from kafkawire.client.cluster_causes import causes, observe_cluster
from kafkawire.client.configs import TOPIC, broker_settings, settings
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.group_causes import Cause
from kafkawire.client.notation import time_text
from kafkawire.client.offsets import partition_text
from kafkawire.client.transaction_admin import describe_transactions, find_hanging
from kafkawire.codec.errors import ErrorCode
from kafkawire.console.views.cluster import read_log_dirs
from kafkawire.console.views.locks import ShareLocks
from kafkawire.console.views.offset_map import PartitionMap, RecordPlace
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.parts import ClusterFinding, attempt
from kafkawire.console.views.records import RecordOrder, RecordQuery, read_records
from kafkawire.console.views.schedules import read_schedules
from kafkawire.console.views.snapshot import ClusterSnapshot
from kafkawire.console.views.tier import TierState, describe_tier
from kafkawire.console.views.topics import describe_topic
from kafkawire.console.views.transactions import describe_open
from kafkawire.plural import count
from kafkawire.units import ago, duration_ms, size

MAX_EXPLAINED = 20
"""Findings of one kind in an answer."""
POLICY = "cleanup.policy"
RETENTION = (POLICY, "retention.ms", "retention.bytes")
FENCED = (
    "Each earlier producer with this transactional.id is fenced (ProducerFencedException, "
    "INVALID_PRODUCER_EPOCH): close it, and give each running instance an id of its own."
)


def explain_causes(causes: Iterable[Cause]) -> list[ClusterFinding]:
    """Return the causes of a group with remedies. Pure."""
    return [ClusterFinding(each.stuck, each.sentence, each.remedy) for each in causes]


def explain_locks(locks: Iterable[ShareLocks]) -> list[ClusterFinding]:
    """Return the records of share partitions that members have acquired. Pure."""
    return [
        ClusterFinding(
            False,
            f"Offsets {run.first} to {run.last} of {each.topic}:{each.partition} are locked for "
            f"member {run.member} for {duration_ms(run.left_ms)} more (delivery {run.deliveries}).",
        )
        for each in locks
        for run in each.runs
        if run.member
    ][:MAX_EXPLAINED]


def near_names(name: str, names: Iterable[str]) -> str:
    """Return a sentence on names like this one, which does not exist. Pure."""
    near = difflib.get_close_matches(name, list(names), 3)
    return f"Similar names: {', '.join(near)}." if near else "No name is similar."


def find_problems(
    cluster: Cluster, own: OwnBroker, snapshot: ClusterSnapshot, refused: list[str]
) -> list[ClusterFinding]:
    """Return what is wrong with a cluster that a snapshot does not have: brokers, disks, open
    transactions, the remote tier, schedules. What the user may not read, or the broker does not
    have, is added to `refused`. ClientError."""
    found: list[ClusterFinding] = []
    for rule in (_brokers, _limits, _disks):
        found += attempt(refused, lambda rule=rule: list(rule(cluster))) or []  # type: ignore[misc]
    held = attempt(refused, lambda: explain_transactions(cluster, snapshot)) or []
    found += [each for each in held if each.stuck]
    found += [each for each in _tier(describe_tier(cluster, own)) if each.stuck]
    for each in read_schedules(cluster, own, []):
        if each.held or each.undeliverable:
            text = f"{each.topic}:{each.partition} holds {count(each.held, 'record')} that are due"
            sentence = f"{text}, and could not deliver {each.undeliverable:,}."
            found.append(ClusterFinding(True, sentence, "", "schedules", each.topic))
    return found


def _brokers(cluster: Cluster) -> Iterator[ClusterFinding]:
    for cause in causes(observe_cluster(cluster)):
        remedy = ""
        if cause.kind in ("not-alive", "not-listed"):
            remedy = f"Start broker {cause.broker}."
        elif cause.kind in ("replicas-out-of-sync", "replicas-refused"):
            remedy = "Start the follower of that machine, or wait until it has copied the log."
        if cause.stuck or cause.kind != "serves":
            sentence = f"Broker {cause.broker}: {cause.sentence}"
            yield ClusterFinding(cause.stuck, sentence, remedy, "cluster")


def _limits(cluster: Cluster) -> Iterator[ClusterFinding]:
    if broker_settings(cluster, ("broker.read.only",)).get("broker.read.only") == "true":
        yield ClusterFinding(
            True,
            "The broker is read-only (broker.read.only=true): Produce and changes are refused.",
            "Run kafkawire cluster read-only off.",
            "cluster",
        )


def _disks(cluster: Cluster) -> Iterator[ClusterFinding]:
    names = ("disk.warn.percent", "disk.refuse.percent")
    percents = broker_settings(cluster, names)
    warn, refuse = (int(percents.get(name) or 100) for name in names)
    for node in cluster.nodes():
        for each in read_log_dirs(cluster.node(node)):
            if not each.total_bytes or each.free_bytes is None:
                continue
            used = 100 * (each.total_bytes - each.free_bytes) // each.total_bytes
            if used >= warn:
                yield ClusterFinding(
                    False,
                    f"The disk of broker {node} is {used} % full, {size(each.free_bytes)} are "
                    f"free; from disk.refuse.percent={refuse} on it refuses records.",
                    "Lower retention, tier topics (remote.storage.enable), or add space.",
                    "cluster",
                )


def explain_transactions(cluster: Cluster, snapshot: ClusterSnapshot) -> list[ClusterFinding]:
    """Return the partitions that open transactions hold back, and which transactions these are.
    ClientError."""
    state = describe_open(cluster, snapshot)
    now_ms = time.time_ns() // 1_000_000
    found: list[ClusterFinding] = []
    candidates = [each.opened for each in state.held[:MAX_EXPLAINED] if each.opened is not None]
    hanging = {each.partition for each, _ in find_hanging(cluster, candidates)}
    for held in state.held[:MAX_EXPLAINED]:
        place, opened = partition_text(held.partition), held.opened
        text = (
            f"Readers of committed records stop at offset {held.stable} of {place}, "
            f"{count(held.log_end - held.stable, 'offset')} before its end"
        )
        if held.groups:
            text += f"; waiting groups: {', '.join(held.groups)}"
        if opened is None:
            sentence = f"{text}. {held.error}".strip()
            found.append(ClusterFinding(True, sentence, "", "transactions", held.partition[0]))
            continue
        producer = f"producer {opened.producer_id}"
        last = ago(opened.last_timestamp_ms, now_ms)
        if held.partition in hanging:
            found.append(
                ClusterFinding(
                    True,
                    f"{text}, because of a hanging transaction of {producer}, last active {last}: "
                    "no coordinator knows it, so none ends it.",
                    f"Run kafkawire transactions abort {held.partition[0]}:{held.partition[1]} "
                    f"--start-offset {opened.start_offset}.",
                    "transactions",
                    held.partition[0],
                )
            )
        else:
            found.append(
                ClusterFinding(
                    True,
                    f"{text}, because of the open transaction of {producer} (transactional id "
                    f"{held.transactional_id}), last active {last}.",
                    "End it in its producer; if that is gone, it is aborted after its timeout.",
                    "transactions",
                    held.partition[0],
                )
            )
    return [*found, *(ClusterFinding(False, each) for each in state.refused)]


def explain_transactional_id(cluster: Cluster, name: str) -> list[ClusterFinding]:
    """Return the state of a transactional id, and whether producers are fenced. ClientError."""
    ((_, node, state),) = describe_transactions(cluster, [name])
    if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return [ClusterFinding(False, f"No coordinator knows the transactional id {name}.")]
    if state.error_code:
        raise BrokerError(f"transactional id {name}", state.error_code)
    epoch, started = state.producer_epoch, state.transaction_start_time_ms
    since = f", begun at {time_text(started)}" if started >= 0 else ""
    text = (
        f"{name} is {state.transaction_state}{since}; broker {node} coordinates it; its producer "
        f"{state.producer_id} has epoch {epoch}."
    )
    found = [ClusterFinding(False, text)]
    if epoch > 0:
        found.append(
            ClusterFinding(False, f"A producer with an epoch below {epoch} was fenced.", FENCED)
        )
    return found


def _tier(state: TierState) -> Iterator[ClusterFinding]:
    for broker in state.brokers:
        facts = broker.facts
        if facts is None:
            continue
        if facts["paused"]:
            sentence = f"Uploads of broker {broker.node} are paused (tier.paused)."
            yield ClusterFinding(True, sentence, "Run kafkawire tier resume.", "tier")
        elif facts["error"] or facts["last_error"]:
            yield ClusterFinding(
                bool(facts["error"]),
                f"The tier {facts['url']} of broker {broker.node} refuses or fails: "
                f"{facts['error'] or facts['last_error']}.",
                "Repair the bucket, its address or its rights; uploads are repeated.",
                "tier",
            )
    for row in state.waiting.rows[:MAX_EXPLAINED]:
        if row.start < 0:
            what = f"{count(row.partitions, 'partition')} of {row.topic}"
        else:
            what = f"{row.topic}:{row.partition}, offsets {row.start} to {row.end}"
        text = f"Not in the tier: {what}, {size(row.size_bytes)}: {row.reason}"
        late = ", longer than tiering.max.lag.ms" if row.late else ""
        sentence = f"{text} {row.detail}".rstrip() + late + "."
        yield ClusterFinding(row.late, sentence, row.advice, "tier", row.topic)


def explain_tier(cluster: Cluster, own: OwnBroker, topic: str) -> list[ClusterFinding]:
    """Return why records are not in the remote tier. ClientError."""
    state = describe_tier(cluster, own, topic, every=bool(topic))
    if state.refused:
        remedy = "Start the broker with --tier URL, if topics are to be in S3."
        return [ClusterFinding(False, state.refused, remedy if own.known else "")]
    return list(_tier(state)) or [ClusterFinding(False, "All records are in the remote tier.")]


def explain_topic(
    cluster: Cluster,
    own: OwnBroker,
    snapshot: ClusterSnapshot,
    topic: str,
    partition: int | None = None,
    offset: int | None = None,
    key: str | None = None,
) -> list[ClusterFinding]:
    """Return why records of a topic are not there or cannot be read; with `offset` or `key`, one
    record of it. ClientError."""
    try:
        detail = describe_topic(cluster, own, topic, partition or 0)
    except BrokerError as error:
        return [_unreadable(error, topic, snapshot.topics)]
    wanted = [each for each in detail.maps if partition in (None, each.partition)]
    if not wanted:
        raise ClientError(f"topic {topic} has no partition {partition}")
    rows = attempt([], lambda: settings(cluster, (TOPIC, topic), RETENTION)) or ()
    known = {row["name"]: row["value"] or "" for row in rows}
    policy = known.get(POLICY, "")
    found: list[ClusterFinding] = []
    for each in wanted[:MAX_EXPLAINED]:
        found += explain_partition(cluster, topic, each, known)
        if offset is not None:
            found += _offset(cluster, topic, each, offset, policy)
    if key is not None:
        found += _key(cluster, topic, key, policy)
    found += _explain_delays(topic, read_schedules(cluster, own, [], topic))
    if any((each.log_end or 0) > (each.stable or 0) for each in wanted):
        held = explain_transactions(cluster, snapshot)
        found += [each for each in held if each.topic == topic]
    return found or [ClusterFinding(False, f"Nothing stops readers of {topic}.")]


def _unreadable(error: BrokerError, topic: str, names: Iterable[str]) -> ClusterFinding:
    if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return ClusterFinding(
            True,
            f"The user of this connection lacks the right to describe topic {topic}, or it does "
            "not exist.",
            f"An administrator runs kafkawire acls add USER read --topic {topic}.",
        )
    return ClusterFinding(
        True,
        f"{str(error).rstrip('.')}. {near_names(topic, names)}",
        f"Use the right name, or create it: kafkawire topics create {topic}.",
    )


def explain_partition(
    cluster: Cluster, topic: str, found: PartitionMap, known: Mapping[str, str]
) -> Iterator[ClusterFinding]:
    """Yield why a partition is not served, or lacks records that it had; `known`: values of
    RETENTION."""
    place = partition_text((topic, found.partition))
    if found.leader < 0 or found.log_end is None or found.log_start is None:
        brokers = " or ".join(map(str, found.replicas)) or "that has it"
        yield ClusterFinding(
            True, f"{place} has no leader: it is not served.", f"Start broker {brokers}."
        )
        return
    if len(found.in_sync) < len(found.replicas):
        late = sorted({*found.replicas} - {*found.in_sync})
        text = f"{place}: the replicas of broker {', '.join(map(str, late))} are not in sync."
        yield ClusterFinding(False, text, "Start these brokers, or wait until they have the log.")
    if found.log_start > 0:
        yield _explain_removal(cluster, topic, found, known)


def _explain_removal(
    cluster: Cluster, topic: str, found: PartitionMap, known: Mapping[str, str]
) -> ClusterFinding:
    """Say whether retention or DeleteRecords has removed the begin of a log. The broker stores only
    where the log begins, so settings and the age of the oldest record decide."""
    place = partition_text((topic, found.partition))
    keep_ms, keep_bytes = (int(known.get(name) or -1) for name in RETENTION[1:])
    text = f"The records of {place} before offset {found.log_start} are gone"
    deleted = "DeleteRecords (kafkawire topics delete-records) has removed them"
    if "delete" not in known.get(POLICY, "") or (keep_ms < 0 and keep_bytes < 0):
        return ClusterFinding(
            False, f"{text}: {deleted}, since no retention applies.", "Write them again."
        )
    kept = read_records(
        cluster, RecordQuery(topic, RecordOrder.FORWARD, found.partition, limit=1)
    ).records
    limits = [f"retention.ms={keep_ms}"] * (keep_ms >= 0)
    limits += [f"retention.bytes={keep_bytes}"] * (keep_bytes >= 0)
    age_ms = time.time_ns() // 1_000_000 - kept[0].timestamp if kept else keep_ms
    if keep_bytes < 0 and age_ms < keep_ms / 2:
        return ClusterFinding(
            False,
            f"{text}: {deleted}; retention ({limits[0]}) has not, since the oldest record left is "
            f"only {duration_ms(max(0, age_ms))} old.",
            "Write them again.",
        )
    return ClusterFinding(
        False,
        f"{text}: retention ({', '.join(limits)}) has removed them, unless DeleteRecords did.",
        f"Raise it for records to come: kafkawire configs set {limits[0].partition('=')[0]}=VALUE "
        f"--topic {topic}.",
    )


def _offset(
    cluster: Cluster, topic: str, found: PartitionMap, offset: int, policy: str
) -> Iterator[ClusterFinding]:
    place = partition_text((topic, found.partition))
    start, end = found.log_start or 0, found.log_end or 0
    if offset < start or found.log_end is None:
        return
    if offset >= end:
        yield ClusterFinding(
            False, f"Offset {offset} of {place} is not written yet: it ends at {end}."
        )
        return
    query = RecordQuery(topic, RecordOrder.FORWARD, found.partition, {found.partition: offset},
                        limit=1)  # fmt: skip
    records = read_records(cluster, query).records
    if records and records[0].offset == offset:
        yield ClusterFinding(False, f"The record at offset {offset} of {place} can be read.")
        return
    gaps = [
        s.reason for s in found.spans if s.place is RecordPlace.GAP and s.start <= offset < s.end
    ]
    why = gaps[0] if gaps else "it was in an aborted transaction, or marks the end of one"
    if not gaps and "compact" in policy:
        why = "compaction removed it, because a newer record has its key"
    yield ClusterFinding(False, f"Offset {offset} of {place} has no record: {why}.")


def _key(cluster: Cluster, topic: str, key: str, policy: str) -> Iterator[ClusterFinding]:
    page = read_records(cluster, RecordQuery(topic, key=key, limit=1))
    searched = f"{page.offsets:,} offsets were searched, until {page.stopped}"
    if page.records:
        last = page.records[0]
        place = partition_text((topic, last.partition))
        if last.value is None:
            yield ClusterFinding(
                False,
                f"The newest record of this key, offset {last.offset} of {place}, is a tombstone "
                "(no value): the key was deleted, and compaction removes what was before.",
                "Write the key again.",
            )
        else:
            text = f"The newest record of this key is at offset {last.offset} of {place}"
            older = "; compaction removes older ones" if "compact" in policy else ""
            yield ClusterFinding(False, f"{text}{older}.")
    elif "compact" in policy:
        yield ClusterFinding(
            False,
            f"No record has this key: it was never written, or a tombstone deleted it, and "
            f"compaction removed that after delete.retention.ms ({searched}).",
            "Write the key again.",
        )
    else:
        yield ClusterFinding(False, f"No record has this key ({searched}).")


def _explain_delays(topic: str, partitions: Iterable[Any]) -> Iterator[ClusterFinding]:
    """Records of a schedule topic that wait for their time, or for their target."""
    for each in partitions:
        if each.waiting:
            due = time_text(each.next_due_ms) if each.next_due_ms >= 0 else "later"
            target = each.target_topic or f"the topic in the header {each.target_header}"
            yield ClusterFinding(
                False,
                f"{topic}:{each.partition} is of a schedule topic: {count(each.waiting, 'record')} "
                f"wait for their time, the next one until {due}, and go to {target} then.",
                f"Wait, or cancel one: kafkawire schedule cancel {topic}.",
            )
        for record in each.undelivered[:MAX_EXPLAINED]:
            yield ClusterFinding(
                True,
                f"Offset {record.offset} of {topic}:{each.partition} is due and not delivered: "
                f"{record.reason}.",
                f"Create or repair its target topic; see kafkawire schedule why {topic}.",
            )


def explain_quotas(
    rows: Iterable[tuple[Mapping[str, str | None], Mapping[str, float]]],
    user: str,
    client_id: str,
) -> list[ClusterFinding]:
    """Return the quotas that may slow a client. Pure."""
    names = {"user": user, "client-id": client_id}

    def applies(entity: Mapping[str, str | None]) -> bool:
        return all(each in (None, names.get(kind, each)) for kind, each in entity.items())

    found = []
    for entity, values in rows:
        if applies(entity):
            who = " and ".join(f"{kind} {name or '(default)'}" for kind, name in entity.items())
            limits = ", ".join(f"{name}={value:g}" for name, value in values.items())
            found.append(
                ClusterFinding(
                    False,
                    f"A quota of {who} throttles the client: {limits} (bytes per second and "
                    "broker, or percent of a thread).",
                    "Raise or remove it: kafkawire quotas set, or quotas remove.",
                )
            )
    return found
