"""Settings and features of the whole cluster: transactions without verification, which may hang,
and levels of transaction.version, as in Apache Kafka.

They change all transactions of a broker, so both brokers are of this module alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.testing.process import BrokerProcess
from tests.java.apache import start, stop
from tests.java.calls.admin import SAFE_DOWNGRADE, TRANSACTION_VERSION, UPGRADE
from tests.java.calls.wire import Owner
from tests.java.conftest import TOOLS, Program, wait_for_coordinators
from tests.java.log_content import StateRecord
from tests.java.tools import ToolServer
from tests.java.transactional import Side, compare, converse, on_both
from tests.kit.waiting import wait_until
from tests.real.conftest import OTHER_BROKER, SETTINGS

BROKER = 4
VERIFICATION = "transaction.partition.verification.enable"
INVALID_STATE, CONCURRENT, FENCED, INVALID_UPDATE = 48, 51, 90, 95
UNSAFE_DOWNGRADE = 3
PROBES = 50
"""Partitions to try whether a changed setting is obeyed, which in Kafka takes a moment."""


@pytest.fixture(scope="module")
def sides(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[str, str]]]:
    """(name, address) of both brokers."""
    if OTHER_BROKER:
        yield [("other broker", OTHER_BROKER)]
        return
    jars: Path = request.getfixturevalue("jars")
    pid, address = start(tmp_path_factory.mktemp("kafka"), f"{jars}/*")
    try:
        with BrokerProcess(tmp_path_factory.mktemp("ours"), settings=SETTINGS) as ours:
            both = [("Apache Kafka", address), ("ours", ours.bootstrap)]
            for _, bootstrap in both:
                wait_for_coordinators(bootstrap)
            yield both
    finally:
        stop(pid)


def verify(side: Side, enable: bool) -> None:
    """Change the setting of the whole cluster, and wait until it is obeyed."""
    row = AlterableConfig(name=VERIFICATION, value=str(enable).lower())
    changed = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[row])
    request = IncrementalAlterConfigsRequest(resources=[changed])
    assert side.send("IncrementalAlterConfigs", request, 1).responses[0].error_code == 0
    topic = side.topic(f"probe-{enable}", PROBES)
    probe = side.owner(f"probe-{enable}")
    partitions = iter(range(PROBES))

    def obeyed() -> bool:
        code, _ = side.produce_once((topic, next(partitions)), probe, 0, version=9)
        side.transcript.pop()
        return code == (INVALID_STATE if enable else 0)

    wait_until(obeyed, f"{VERIFICATION}={enable}")


@on_both
def test_hanging_transaction(side: Side) -> None:
    part = side.topic(), 0
    owner: Owner = side.owner()
    verify(side, False)
    assert side.produce(part, owner, 0, version=9) == (0, 0)
    assert side.describe(owner.id or "")[1] == "Empty"
    side.write(part, b"after")
    assert side.offset_of(part, committed=True) == 0
    (found,) = side.producers(part)
    assert found.current_txn_start_offset == 0
    verify(side, True)
    assert side.produce(part, owner, 1, version=9) == (0, 2)  # it is open: nothing is asked
    for version in range(6):
        code = side.end_old(owner, True, version) if version < 5 else side.end(owner, True, 5)[0]
        assert code == INVALID_STATE
    assert side.markers(part, owner.pid, 0) == 0
    assert side.offset_of(part, committed=True) == 4
    assert side.fetch(part).visible() == [b"after"]
    assert side.produce(part, owner, 2, version=9)[0] == INVALID_STATE
    assert side.produce(part, owner, 2, version=12) == (0, 4)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_answers_to_update_features(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        tv = TRANSACTION_VERSION
        refused = [
            (tv, 3, UPGRADE), (tv, -1, UPGRADE), (tv, 1, UPGRADE), (tv, 0, UPGRADE),
            ("x", 1, UPGRADE), ("x", 0, UPGRADE), ("", 1, UPGRADE), ("", 0, UPGRADE),
            ("x", -1, UPGRADE),
        ]  # fmt: skip
        if version:
            refused += [(tv, 1, kind) for kind in (0, 4, -1)] + [("x", -1, 0)]
        else:
            refused.append((tv, 1, SAFE_DOWNGRADE))  # v0 cannot lower a level
        for validate_only in (False, True)[: 1 + bool(version)]:
            fields: dict[str, Any] = {"version": version, "validate_only": validate_only}
            assert side.update_features(**fields) == (0, None)
            for row in refused:
                assert side.update_features(row, **fields)[0] == INVALID_UPDATE
            for kind in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE)[: 1 if not version else 3]:
                assert side.update_features((tv, 2, kind), **fields) == (0, None)
                assert side.update_features(*[(tv, 2, kind)] * 2, **fields) == (0, None)
            row = "x", 1, UPGRADE
            assert side.update_features((tv, 2, UPGRADE), row, **fields)[0] == INVALID_UPDATE
        assert side.transaction_version(3) == 2
        if version:
            change_levels(side, version)

    conversation(sides)


def change_levels(side: Side, version: int) -> None:
    """Lower and raise the level, with a dry run before."""
    tv = TRANSACTION_VERSION
    for level, kind in ((1, SAFE_DOWNGRADE), (0, UNSAFE_DOWNGRADE), (1, UPGRADE), (2, UPGRADE)):
        row = tv, level, kind
        before = side.transaction_version()
        assert side.update_features(row, version=version, validate_only=True) == (0, None)
        assert side.transaction_version() == before
        assert side.update_features(row, version=version) == (0, None)
        side.wait_for_level(level)
        for known_since in (3, 4):
            assert side.transaction_version(known_since) == (level or None)
        wrong = (tv, 2, SAFE_DOWNGRADE) if level < 2 else (tv, 1, UPGRADE)
        assert side.update_features(wrong, version=version)[0] == INVALID_UPDATE


@contextmanager
def finalized(side: Side, level: int) -> Iterator[None]:
    """Run with this level of transaction.version, and then with 2 again."""
    side.finalize(level)
    try:
        yield
    finally:
        side.finalize(2)


@pytest.mark.parametrize("level", [0, 1])
def test_first_protocol_at_lower_levels(sides: list[tuple[str, str]], level: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        with finalized(side, level):
            topic = side.topic()
            owner = side.owner()
            for sequence, commit in enumerate((True, False)):
                assert side.add(owner, (topic, 0)) == [0]
                assert side.produce((topic, 0), owner, sequence) == (0, 2 * sequence)
                assert side.end_old(owner, commit) == 0
                side.settle(owner)
            states = side.states(owner.id or "")
            assert [row.state for row in states] == [
                *("Empty", "Ongoing", "PrepareCommit", "CompleteCommit"),
                *("Ongoing", "PrepareAbort", "CompleteAbort"),
            ]
            assert {(row.version, row.epoch) for row in states} == {(level, 0)}
            kinds = [batch.kind for batch in side.fetch((topic, 0)).batches]
            assert kinds == ["transactional", "commit", "transactional", "abort"]

    conversation(sides)


@on_both
def test_second_protocol_at_level_1(side: Side) -> None:
    with finalized(side, 1):
        topic = side.topic()
        owner = side.owner()
        assert side.produce((topic, 0), owner, 0, version=12) == (0, 0)
        owner = side.end_new(owner, True)
        side.settle(owner)
        assert side.txn_commit(owner, side.new("g"), {(topic, 0): 1}, 5) == [0]
        owner = side.end_new(owner, False)
        side.settle(owner)
        assert side.end_new(owner, False).epoch == 3
        side.settle(owner)
        assert {row.version for row in side.states(owner.id or "")} == {1}


@pytest.mark.parametrize("level", [0, 1])
def test_fenced_producers_at_lower_levels(sides: list[tuple[str, str]], level: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        with finalized(side, level):
            topic = side.topic()
            late = side.owner("late", timeout_ms=1000)
            side.add(late, (topic, 0))
            assert side.produce((topic, 0), late, 0) == (0, 0)
            side.wait_for_state(late, "CompleteAbort")
            data, marker = side.fetch((topic, 0)).batches
            assert (data.epoch, marker.kind, marker.epoch) == (0, "abort", 1)
            assert side.end_old(late, True) == FENCED
            assert side.end(late, True, 5)[0] == INVALID_STATE
            assert side.init(late.id, late.pid, 0)[0] == FENCED  # with level 2 it gets epoch 1
            assert side.init(late.id) == (0, late.pid, 2)
            owner = side.owner("own")
            side.add(owner, (topic, 1))
            assert side.init_once(owner.id, owner.pid, 0)[0] == CONCURRENT
            assert side.init(owner.id, owner.pid, 0)[0] == FENCED
            assert side.describe(owner.id or "")[1] == "CompleteAbort"
        assert side.init(owner.id, owner.pid, 0)[0] == FENCED  # no record has its last epoch
        for each in (late, owner):
            side.states(each.id or "")

    conversation(sides)


@on_both
def test_open_transactions_survive_a_change_of_the_level(side: Side) -> None:
    """With level 0 the second protocol is left out: Kafka cannot write the version of its client
    into a record, and answers CONCURRENT_TRANSACTIONS to that id from then on."""
    topic = side.topic(partitions=4)
    new, old = side.owner("new"), side.owner("old")
    assert side.produce((topic, 0), new, 0, version=12) == (0, 0)
    side.add(old, (topic, 1))
    with finalized(side, 0):
        assert side.end_old(old, True) == 0
        up, late = side.owner("up"), side.owner("late", timeout_ms=1000)
        side.add(up, (topic, 2))
        side.add(late, (topic, 3))
        side.wait_for_state(late, "CompleteAbort")
    assert side.end_new(new, True).epoch == 1
    assert side.end_old(up, True) == 0
    assert side.init(late.id, late.pid, 0)[0] == FENCED
    for owner in (new, old, up, late):
        side.settle(owner)
        side.states(owner.id or "")
    for partition in range(4):
        side.fetch((topic, partition))


def test_features_tool(sides: list[tuple[str, str]], tool_server: ToolServer) -> None:
    """kafka-features prints the same for both, but for epochs and the features that we lack."""

    def run(address: str, *arguments: str) -> tuple[int, list[str]]:
        given = ["--bootstrap-server", address, *arguments]
        done = tool_server.run(f"{TOOLS}FeatureCommand", given, "", 90)
        lines = (done.stdout + done.stderr).splitlines()
        return done.code, [
            re.sub(r"Epoch: \d+", "Epoch", line)
            for line in lines
            if not line.startswith("Feature: ") or TRANSACTION_VERSION in line
        ]

    def converse_by_tool(address: str) -> list[tuple[int, list[str]]]:
        one, none = (f"{TRANSACTION_VERSION}={level}" for level in (1, 0))
        calls = [
            ["downgrade", "--feature", one, "--dry-run"],
            ["downgrade", "--feature", one],
            ["upgrade", "--feature", none],
            ["disable", "--feature", TRANSACTION_VERSION],
            ["downgrade", "--feature", none, "--unsafe"],
            ["upgrade", "--feature", f"{TRANSACTION_VERSION}=3"],
            ["upgrade", "--feature", one, "--feature", "nosuch=1"],
            ["disable", "--feature", "nosuch"],
            ["upgrade", "--feature", f"{TRANSACTION_VERSION}=2"],
        ]
        found = [run(address, "describe")]
        for call in calls:
            found += [run(address, *call), run(address, "describe")]
        return found

    expected = [converse_by_tool(address) for _, address in sides]
    assert all(found == expected[0] for found in expected[1:]), expected
    codes = [code for code, _ in expected[0]]
    assert codes[1::2] == [0, 0, 1, 0, 0, 1, 1, 1, 0]
    assert any("FinalizedVersionLevel: 0" in line for line in expected[0][8][1])


def test_java_producer_follows_the_level(sides: list[tuple[str, str]], program: Program) -> None:
    """A new producer uses the first protocol at level 0. When the level is raised it changes to the
    second one, after one InitProducerId."""

    def conversation(side: Side) -> None:
        side.finalize(0)
        topic = side.topic(partitions=1)
        id = side.new("steady")
        side.mark_states(id)
        child = program("SteadyProducer", side.address, topic, id)
        child.start()
        child.wait_for_line("committed", 3)
        assert {row.version for row in side.states(id)} == {0}
        side.finalize(2)
        wait_until(lambda: side.states(id)[-1].protocol == 2, "the second protocol")
        done = child.output.count("committed")
        child.wait_for_line("committed", done + 2)
        child.kill()
        side.settle(Owner(id, 0, 0))
        rows = side.states(id)
        side.transcript[:] = [("changes", {"": changes(rows)})]

    both = [converse(conversation, name, address, "steady") for name, address in sides]
    for other in both[1:]:
        compare(both[0], other)


Change = list[tuple[str, int, int]]


def changes(rows: list[StateRecord]) -> tuple[set[tuple[str, int, int]], Change]:
    """(state, epoch, protocol) of the records before the second InitProducerId, which are those of
    several transactions; and of the first ones from it on."""
    shown = [(row.state, row.epoch, row.protocol) for row in rows]
    (second,) = [at for at, row in enumerate(rows) if at and row.state == "Empty"]
    before, after = set(shown[:second]), shown[second : second + 7]
    states = "Ongoing", "PrepareCommit", "CompleteCommit"
    assert before == {("Empty", 0, 0), *((state, 0, 0) for state in states)}
    assert after == [
        ("Empty", 1, 0),
        *zip(states, (1, 2, 2), (2, 2, 2), strict=True),
        *zip(states, (2, 3, 3), (2, 2, 2), strict=True),
    ]
    return before, after
