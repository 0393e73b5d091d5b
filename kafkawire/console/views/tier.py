"""The remote tier: its state, what is not uploaded and why, cost, the last scrub, and moves."""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import ClientError
from kafkawire.client.tier import tier_command
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.parts import ListPage, first_error, page_of, sentence_of

MAX_ANSWERS = 20
"""Answers of one broker that a page reads: 10,000 partitions."""
MAX_FINDINGS = 100
"""Findings of a scrub that are shown."""
ADVICE = {
    "active": "Wait: the journal is cut in time for tiering.max.lag.ms.",
    "transaction open": "End the transaction, or abort it.",
    "waiting for age": "Wait: small segments are uploaded together, by tiering.max.lag.ms.",
    "queued": "Wait; if the queue grows, raise tier.upload.threads.",
    "uploading": "Wait.",
    "rate-limited": "Wait; the store or the limit of the topic slows uploads.",
    "error": "Remove the cause; the upload is repeated by itself.",
    "paused": "Run kafkawire tier resume.",
    "not tiered": "Set remote.storage.enable=true for the topic, if it is wanted.",
    "owned by another broker": "Stop the other broker, or give one of them another tier URL.",
}
"""Advice by the reason (kafkawire.tiering.upload.scheduler.Reason)."""


class WaitingRange(NamedTuple):
    """Offsets that are not in the tier, or those of a topic with one reason: then `start` is -1 and
    `partitions` counts. `since_ms`: since when they wait, None: not known; `late`: longer than
    tiering.max.lag.ms."""

    topic: str
    partition: int
    start: int
    end: int
    partitions: int
    size_bytes: int
    reason: str
    detail: str
    since_ms: int | None
    late: bool

    @property
    def advice(self) -> str:
        """Return what to do."""
        return ADVICE.get(self.reason, "")


class TierBroker(NamedTuple):
    """The tier of one broker. `facts`: kafkawire.tiering.admin.status.tier_facts; `scrub` and
    `move`: progress or result of the last ones since its start. None with an `error`."""

    node: int
    facts: Mapping[str, Any] | None
    scrub: Mapping[str, Any] | None
    move: Mapping[str, Any] | None
    error: str


class CostPart(NamedTuple):
    """The cost of a topic or of a kind of request this month. `forecast`: of the whole month at
    the rate so far. `requests`: None for storage and transfer."""

    name: str
    requests: float | None
    cost: float
    forecast: float


class TierCost(NamedTuple):
    """The cost of this month of all brokers. `budget`: tier.budget.month, None without one."""

    month: str
    prices: str
    currency: str
    spent: float
    forecast: float
    stored_bytes: int
    budget: float | None
    topics: Sequence[CostPart]
    kinds: Sequence[CostPart]


class TierState(NamedTuple):
    """The tier of a cluster. `cut`: more offsets wait than were read; `refused`: why there is
    nothing to show, empty if there is."""

    brokers: Sequence[TierBroker]
    waiting: ListPage[WaitingRange]
    cut: bool
    cost: TierCost | None
    refused: str


class _Answers(NamedTuple):
    state: TierBroker
    pieces: Sequence[Mapping[str, Any]]
    cut: bool
    cost: Mapping[str, Any]


def describe_tier(
    cluster: Cluster, own: OwnBroker, topic: str = "", every: bool = False, page: int = 1
) -> TierState:
    """Return the state of the tier, of all brokers. `topic`: list each range of this topic, else
    one row for each topic and reason; `every`: with topics that are not tiered. ClientError."""
    states: list[TierBroker] = []
    pieces: list[Mapping[str, Any]] = []
    costs: list[Mapping[str, Any]] = []
    cut = False
    for node in cluster.nodes():
        found = first_error(
            lambda node=node: own.ask(  # type: ignore[misc]
                cluster, node, lambda at: _read(at, node, topic, every)
            )
        )
        if isinstance(found, ClientError):
            states.append(TierBroker(node, None, None, None, sentence_of(found)))
            continue
        states.append(found.state)
        pieces += found.pieces
        costs.append(found.cost)
        cut = cut or found.cut
    ranges = [_range(each) for each in pieces if each["reason"] != "uploaded"]
    rows = ranges if topic else group_by_topic(ranges)
    rows.sort(key=lambda row: (not row.late, row.since_ms or 0, row.topic, row.partition))
    now_ms = max((each.facts["now_ms"] for each in states if each.facts is not None), default=0)
    refused = "" if costs or not states else states[0].error
    return TierState(states, page_of(rows, page), cut, sum_costs(costs, now_ms), refused)


def _read(at: ClientConnection, node: int, topic: str, every: bool) -> _Answers:
    pieces: list[Mapping[str, Any]] = []
    after: Any = None
    for _ in range(MAX_ANSWERS):
        answer = tier_command(at, "why", topic=topic or None, all=every, after=after)
        pieces += answer["pieces"]
        after = answer["next"]
        if after is None:
            break
    scrub, move = tier_command(at, "scrub", watch=True), tier_command(at, "move", watch=True)
    if scrub["state"] == "done":
        listed, left = scrub["findings"], scrub["findings"][MAX_FINDINGS:]
        scrub |= {"findings": listed[:MAX_FINDINGS], "more": scrub["more"] + len(left)}
    state = TierBroker(node, answer["tier"], scrub, move, "")
    return _Answers(state, pieces, after is not None, tier_command(at, "cost"))


def _range(row: Mapping[str, Any]) -> WaitingRange:
    return WaitingRange(
        row["topic"], row["partition"], row["from"], row["to"], 1, row["bytes"], row["reason"],
        row["detail"], row["since_ms"], row["late"],
    )  # fmt: skip


def group_by_topic(ranges: Iterable[WaitingRange]) -> list[WaitingRange]:
    """Return one row for each topic and reason: the oldest time, one of the details. Pure."""
    found: dict[tuple[str, str], WaitingRange] = {}
    places: dict[tuple[str, str], set[int]] = {}
    for each in ranges:
        key = each.topic, each.reason
        places.setdefault(key, set()).add(each.partition)
        last = found.get(key, each._replace(size_bytes=0))
        times = [at for at in (last.since_ms, each.since_ms) if at is not None]
        found[key] = last._replace(
            start=-1,
            partitions=len(places[key]),
            size_bytes=last.size_bytes + each.size_bytes,
            detail=last.detail or each.detail,
            since_ms=min(times, default=None),
            late=last.late or each.late,
        )
    return list(found.values())


def sum_costs(answers: Sequence[Mapping[str, Any]], now_ms: int) -> TierCost | None:
    """Return the cost of several brokers together; None without any. Pure."""
    if not answers:
        return None
    first = answers[0]
    share = elapsed_share(now_ms)
    storage = sum(each["storage"]["cost"] for each in answers)
    left = sum(each["storage"]["cost_of_a_month"] for each in answers) * (1 - share)
    transfer = sum(each["transfer_cost"] for each in answers)
    topics: dict[str, tuple[float, float]] = {}
    kinds: dict[str, tuple[float, float]] = {}
    for answer in answers:
        for row in answer["topics"]:
            count, cost = topics.get(row["topic"], (0.0, 0.0))
            topics[row["topic"]] = count + sum(row["requests"].values()), cost + row["cost"]
        for row in answer["kinds"]:
            count, cost = kinds.get(row["kind"], (0.0, 0.0))
            kinds[row["kind"]] = count + row["requests"], cost + row["cost"]
    parts = [CostPart(kind, count, cost, cost / share) for kind, (count, cost) in kinds.items()]
    parts += [
        CostPart("transfer", None, transfer, transfer / share),
        CostPart("storage", None, storage, storage + left),
    ]
    return TierCost(
        first["month"],
        first["prices"],
        first["currency"],
        sum(each.cost for each in parts),
        sum(each.forecast for each in parts),
        sum(each["storage"]["bytes"] for each in answers),
        first["budget"],
        sorted(
            (CostPart(name, count, cost, cost / share) for name, (count, cost) in topics.items()),
            key=lambda row: (-row.cost, row.name),
        ),
        parts,
    )


def elapsed_share(now_ms: int) -> float:
    """Return the share of its month that a time is after the begin, at least an hour of it."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    days = calendar.monthrange(at.year, at.month)[1]
    hours = (at.day - 1) * 24 + at.hour + at.minute / 60
    return max(1.0, hours) / (days * 24)
