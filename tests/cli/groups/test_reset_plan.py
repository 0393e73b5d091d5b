"""`groups reset-offsets`: by duration, to the committed offsets, and CSV files of offsets.

Covers: kafkawire.cli.groups.reset_offsets, kafkawire.client.resets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkawire import testing
from kafkawire.cli.groups import reset_offsets
from kafkawire.cli.groups.reset_offsets import ResetTarget, read_plan, write_plan
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from tests.kit.cli import Typed, no_environment, produce, run  # noqa: F401  (a fixture, by name)


def test_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.csv")
    plan = {("b", 0): 0, ('a,"b"', 7): 2**63 - 1, ("a", 10): 5, ("a", 2): 1}
    write_plan(path, plan)
    assert read_plan(path, "g") == plan
    assert Path(path).read_text().startswith("a,2,1\na,10,5\n")


def test_files_of_kafka(tmp_path: Path) -> None:
    """One group has three columns, several have the group first."""
    path = tmp_path / "plan.csv"
    path.write_text('"topic1",0,100\r\n\r\ntopic1,1,200\r\n')
    assert read_plan(str(path), "g") == {("topic1", 0): 100, ("topic1", 1): 200}
    path.write_text("\ufeffg,topic1,0,100\nother,topic1,0,300\n", encoding="utf-8")
    assert read_plan(str(path), "g") == {("topic1", 0): 100}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "of group g"),
        (b"other,t,0,1\n", "of group g"),
        (b"t,0,1\nt,0\n", "line 2: it must be a CSV file"),
        (b"t,0,-1\n", "line 1"),
        (b"t,x,1\n", "line 1"),
        (b"t,0," + b"9" * 30, "line 1"),
        (b",0,1\n", "line 1"),
        (b"t,%d,1\n" % 2**31, "line 1"),
        (b"\xff,0,1\n", "CSV file"),
        (b't,0,1\n"' + b"x" * 200_000, "CSV file"),
    ],
)
def test_wrong_files(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "plan.csv"
    path.write_bytes(data)
    with pytest.raises(OptionError, match=said):
        read_plan(str(path), "g")


def test_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (str(tmp_path), str(tmp_path / "none"), "a\0b"):
        with pytest.raises(OptionError, match="a readable file"):
            read_plan(name, "g")
        if name != str(tmp_path / "none"):
            with pytest.raises(ClientError, match="cannot be written"):
                write_plan(name, {})
    monkeypatch.setattr(reset_offsets, "MAX_FILE_BYTES", 5)
    (tmp_path / "long").write_bytes(b"t,0,100\n")
    with pytest.raises(OptionError, match="at most"):
        read_plan(str(tmp_path / "long"), "g")


def test_duration_before_now() -> None:
    at = ResetTarget(by_duration="PT1H").timestamp_ms()
    assert at is not None
    assert abs(time.time() * 1000 - 3_600_000 - at) < 60_000
    assert ResetTarget(by_duration="300d").timestamp_ms() is not None
    for text in ("", "1", "-1h", "P", "now"):
        with pytest.raises(OptionError, match=f"--by-duration={text}"):
            ResetTarget(by_duration=text).check()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with testing.broker() as broker:
        yield broker.bootstrap


def offsets(server: str, group: str) -> dict[int, int]:
    (shown,) = Typed(server, "groups", "describe", group, "--json").json
    return {row["partition"]: row["committed"] for row in shown["offsets"]}


@pytest.mark.slow
def test_offsets_are_saved_and_restored(server: str, tmp_path: Path) -> None:
    Typed(server, "topics", "create", "t", "--partitions", "2")
    produce(server, "t", {0: 8, 1: 4})
    assert Typed(server, "consume", "t", "--max", "6", "--group", "g").code == 0
    before = offsets(server, "g")
    path = str(tmp_path / "saved.csv")

    def reset(*words: str) -> Any:
        return Typed(server, "groups", "reset-offsets", "g", *words)

    assert reset("--all-topics", "--to-current", "--export", path).code == 0
    assert reset("--all-topics", "--to-earliest", "--execute").code == 0
    assert offsets(server, "g") == {0: 0, 1: 0}
    assert reset("--from-file", path).code == 0
    assert offsets(server, "g") == {0: 0, 1: 0}  # only shown
    assert reset("--from-file", path, "--execute").code == 0
    assert offsets(server, "g") == before
    shown = reset("--all-topics", "--to-current", "--export", "-")
    assert (shown.code, shown.out) == (0, Path(path).read_text())
    (tmp_path / "beyond.csv").write_text("t,0,99\n")
    assert reset("--from-file", str(tmp_path / "beyond.csv"), "--execute").code == 0
    assert offsets(server, "g")[0] == 8


@pytest.mark.slow
def test_reset_by_duration_and_to_current(server: str) -> None:
    Typed(server, "topics", "create", "now")
    done = run_produce(server, "now", "a\nb\n")
    assert done.exit_code == 0
    words = ("groups", "reset-offsets", "new", "--topic", "now", "--execute", "--json")
    (row,) = Typed(server, *words, "--to-current").json
    assert row["to"] == 2  # nothing was committed: the end
    (row,) = Typed(server, *words, "--by-duration", "1h").json
    assert (row["from"], row["to"]) == (2, 0)
    (row,) = Typed(server, *words, "--to-current").json
    assert (row["from"], row["to"]) == (0, 0)


def run_produce(server: str, topic: str, text: str) -> Any:
    from kafkawire.cli.app import app

    return run(app, ["produce", topic, "--server", server], input=text)


@pytest.fixture
def read(server: str) -> Iterator[str]:
    """A group without members that has read two of three records, of a topic of the same name."""
    name = "read"
    assert Typed(server, "topics", "create", name, "--partitions", "2").code == 0
    produce(server, name, {0: 3, 1: 1})
    consumer = KafkaConsumer(bootstrap_servers=server, group_id=name)
    consumer.assign([TopicPartition(name, 0)])
    consumer.commit({TopicPartition(name, 0): OffsetAndMetadata(2, "note", -1)})
    consumer.close(autocommit=False)
    yield name
    Typed(server, "groups", "delete", name)
    assert Typed(server, "topics", "delete", name).code == 0


@pytest.mark.slow
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
    server: str, read: str, words: tuple[str, ...], moved: int
) -> None:
    command = ("groups", "reset-offsets", read, "--all-topics", *words, "--json")
    plan = Typed(server, *command)
    row = {"topic": read, "partition": 0, "from": 2, "to": moved, "error": None}
    assert (plan.code, plan.json) == (0, [row])
    (group,) = Typed(server, "groups", "describe", read, "--json").json
    assert group["offsets"][0]["committed"] == 2  # only shown
    assert Typed(server, *command, "--execute").code == 0
    (group,) = Typed(server, "groups", "describe", read, "--json").json
    assert group["offsets"][0]["committed"] == moved


@pytest.mark.slow
def test_reset_offsets_of_uncommitted_partitions(server: str, read: str) -> None:
    command = ("groups", "reset-offsets", read, "--topic", f"{read}:1", "--to-latest")
    assert Typed(server, *command, "--execute").code == 0
    (group,) = Typed(server, "groups", "describe", read, "--json").json
    assert [row["committed"] for row in group["offsets"]] == [2, 1]
