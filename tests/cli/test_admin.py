"""`kafkawire topics` and `kafkawire groups` against a running broker.

Covers: kafkawire.cli.topics.commands, kafkawire.cli.groups.commands,
kafkawire.cli.cluster.describe, kafkawire.cli.shared.outcomes, kafkawire.cli.shared.output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.testing.process import BrokerProcess

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("cli"), settings=settings) as running:
        yield running


class Typed:
    """A command that was run: its exit code and its output."""

    def __init__(self, broker: BrokerProcess, *words: str) -> None:
        result = CliRunner(env={"KAFKAWIRE_SERVER": broker.bootstrap}).invoke(app, list(words))
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr

    @property
    def json(self) -> Any:
        assert self.err == ""
        return json.loads(self.out)


def produce(broker: BrokerProcess, topic: str, counts: dict[int, int]) -> None:
    """Append this many records to each partition, a second apart from the start of 2026."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    for partition, count in counts.items():
        for number in range(count):
            at_ms = 1_767_225_600_000 + 1000 * number
            producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=at_ms)
    producer.close()


def test_create_alter_describe_and_delete_topic(broker: BrokerProcess) -> None:
    made = Typed(broker, "topics", "create", "life", "--partitions", "2", "--config",
                 "retention.ms=-1", "--json")  # fmt: skip
    assert (made.code, made.json[0]["partitions"], made.json[0]["error"]) == (0, 2, None)
    listed = {row["topic"]: row for row in Typed(broker, "topics", "list", "--json").json}
    assert listed["life"] == {
        "topic": "life",
        "id": made.json[0]["id"],
        "partitions": 2,
        "internal": False,
    }
    produce(broker, "life", {0: 3})
    (shown,) = Typed(broker, "topics", "describe", "life", "--json").json
    assert shown["configs"] == {"retention.ms": "-1"}
    assert [row["log_end"] for row in shown["partitions"]] == [3, 0]
    table = Typed(broker, "topics", "describe", "life").out
    assert "retention.ms=-1" in table
    assert "leader" in table
    assert Typed(broker, "topics", "delete", "life").code == 0
    assert "life" not in Typed(broker, "topics", "list").out


def test_broker_error_is_printed_as_one_sentence(broker: BrokerProcess) -> None:
    assert Typed(broker, "topics", "create", "twice").code == 0
    for words, sentence in [
        (("create", "twice"), "twice: TOPIC_ALREADY_EXISTS: "),
        (("create", "a b"), "a b: INVALID_TOPIC_EXCEPTION: "),
        (("create", "c", "--config", "retention.ms=-2"), "c: INVALID_CONFIG: "),
        (("delete", "none"), "none: UNKNOWN_TOPIC_OR_PARTITION: "),
        (("describe", "none"), "topic none: the broker answered UNKNOWN_TOPIC_OR_PARTITION: "),
    ]:
        typed = Typed(broker, "topics", *words)
        assert (typed.code, typed.out) == (1, ""), words
        assert typed.err.startswith("kafkawire: " + sentence)
        assert typed.err.count("\n") == 1


def test_results_of_several_topics_are_printed_separately(broker: BrokerProcess) -> None:
    assert Typed(broker, "topics", "create", "there").code == 0
    typed = Typed(broker, "topics", "create", "there", "new", "--json")
    assert typed.code == 1
    assert {row["topic"]: row["error"] is None for row in typed.json} == {
        "there": False,
        "new": True,
    }


@pytest.fixture
def read(broker: BrokerProcess) -> Iterator[str]:
    """A group without members that has read two of three records, of a topic of the same name."""
    name = "read"
    assert Typed(broker, "topics", "create", name, "--partitions", "2").code == 0
    produce(broker, name, {0: 3, 1: 1})
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=name)
    consumer.assign([TopicPartition(name, 0)])
    consumer.commit({TopicPartition(name, 0): OffsetAndMetadata(2, "note", -1)})
    consumer.close(autocommit=False)
    yield name
    Typed(broker, "groups", "delete", name)
    assert Typed(broker, "topics", "delete", name).code == 0


def test_groups_describe_shows_offsets_and_lag(broker: BrokerProcess, read: str) -> None:
    (group,) = Typed(broker, "groups", "describe", read, "--json").json
    assert (group["state"], group["members"]) == ("Empty", [])
    assert group["offsets"] == [
        {
            "topic": read,
            "partition": 0,
            "committed": 2,
            "log_end": 3,
            "lag": 1,
            "metadata": "note",
            "member": None,
        }
    ]
    listed = {row["group"]: row for row in Typed(broker, "groups", "list", "--json").json}
    assert listed[read]["state"] == "Empty"
    assert Typed(broker, "groups", "list", "--state", "stable", "--json").json == []
    refused = Typed(broker, "groups", "list", "--state", "nosuch")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--state=nosuch: it must be one of Empty, " in refused.err


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 3),
        (("--to-offset", "1"), 1),
        (("--to-offset", "99"), 3),  # kept within the log, like Kafka's tool
        (("--shift-by", "-1"), 1),
        (("--shift-by", "-9"), 0),
        (("--to-datetime", "2026-01-01T00:00:01"), 1),
        (("--to-datetime", "2026-01-01T01:00:00.500+01:00"), 1),
        (("--to-datetime", "2030-01-01"), 3),
    ],
)
def test_reset_offsets_requires_execute(
    broker: BrokerProcess, read: str, words: tuple[str, ...], moved: int
) -> None:
    command = ("groups", "reset-offsets", read, "--all-topics", *words, "--json")
    plan = Typed(broker, *command)
    row = {"topic": read, "partition": 0, "from": 2, "to": moved, "error": None}
    assert (plan.code, plan.json) == (0, [row])
    (group,) = Typed(broker, "groups", "describe", read, "--json").json
    assert group["offsets"][0]["committed"] == 2  # only shown
    assert Typed(broker, *command, "--execute").code == 0
    (group,) = Typed(broker, "groups", "describe", read, "--json").json
    assert group["offsets"][0]["committed"] == moved


def test_reset_offsets_of_uncommitted_partitions(broker: BrokerProcess, read: str) -> None:
    command = ("groups", "reset-offsets", read, "--topic", f"{read}:1", "--to-latest")
    assert Typed(broker, *command, "--execute").code == 0
    (group,) = Typed(broker, "groups", "describe", read, "--json").json
    assert [row["committed"] for row in group["offsets"]] == [2, 1]
    typed = Typed(broker, "groups", "reset-offsets", read, "--topic", f"{read}:7", "--to-latest")
    assert (typed.code, typed.err) == (1, f"kafkawire: topic {read} has no partition 7\n")


def test_reset_of_group_with_members_is_refused(broker: BrokerProcess, read: str) -> None:
    consumer = KafkaConsumer(
        read, bootstrap_servers=broker.bootstrap, group_id=read, client_id="me"
    )
    while not consumer.assignment():
        consumer.poll(timeout_ms=100)
    (group,) = Typed(broker, "groups", "describe", read, "--json").json
    assert group["state"] == "Stable"
    (member,) = group["members"]
    assert member["client"] == "me"
    assert member["assigned"] == [f"{read}:0,1"]
    assert {row["member"] for row in group["offsets"]} == {member["member"]}
    command = ("groups", "reset-offsets", read, "--all-topics", "--to-latest", "--execute")
    moved = Typed(broker, *command)
    sentence = (
        f"kafkawire: group {read} is active: it is Stable with 1 member (me); stop them before "
        "its offsets are reset\n"
    )
    assert (moved.code, moved.out, moved.err) == (1, "", sentence)
    planned = Typed(broker, *command[:-1])
    assert (planned.code, planned.err) == (0, sentence)
    assert "dry run" in planned.out
    deleted = Typed(broker, "groups", "delete", read)
    assert (deleted.code, "NON_EMPTY_GROUP" in deleted.err) == (1, True)
    consumer.close(autocommit=False)


def test_missing_group_is_reported(broker: BrokerProcess, read: str) -> None:
    assert Typed(broker, "groups", "delete", read).code == 0
    for words in (("delete", read), ("describe", read)):
        typed = Typed(broker, "groups", *words)
        assert typed.code == 1
        assert "GROUP_ID_NOT_FOUND" in typed.err
