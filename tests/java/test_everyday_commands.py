"""The commands about records, groups and topics against Apache Kafka: they work with any broker."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from kafkawire.cli.app import app
from tests.kit.cli import Typed, produce, run


def test_records_and_topics_of_apache_kafka(kafka: str, tmp_path: Path) -> None:
    topic = f"everyday-{uuid.uuid4()}"
    made = Typed(kafka, "topics", "create", topic, "--partitions", "2", "--config",
                 "retention.ms=-1")  # fmt: skip
    assert (made.code, made.err) == (0, "")
    produce(kafka, topic, {0: 6, 1: 3})
    words = ["produce", topic, "--key-separator", ":", "--compression", "zstd", "--server", kafka]
    produced = run(app, words, input="k:last\nk:of all\n")
    assert (produced.exit_code, produced.stderr) == (0, "")
    tail = Typed(kafka, "consume", topic, "--tail", "2", "--json").lines
    assert [line["value"] for line in tail] == ["last", "of all"]
    done = Typed(kafka, "topics", "copy", topic, f"{topic}-copy", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["same_offsets"]

    def read(name: str) -> list[Any]:
        lines = Typed(kafka, "consume", name, "--json").lines
        return [{**line, "topic": None} for line in lines]

    assert read(f"{topic}-copy") == read(topic)
    assert Typed(kafka, "export", topic, str(tmp_path / "t.csv")).code == 0
    assert Typed(kafka, "topics", "create", f"{topic}-new", "--partitions", "2").code == 0
    assert Typed(kafka, "import", f"{topic}-new", str(tmp_path / "t.csv")).code == 0
    assert read(f"{topic}-new") == read(topic)
    (row,) = Typed(kafka, "topics", "add-partitions", topic, "--by", "1", "--json").json
    assert (row["before"], row["partitions"]) == (2, 3)
    deleted = ("topics", "delete-records", f"{topic}:0", "--before-offset", "4", "-y", "--json")
    (row,) = Typed(kafka, *deleted).json
    assert (row["new_log_start"], row["error"]) == (4, None)


def test_groups_of_apache_kafka(kafka: str, tmp_path: Path) -> None:
    topic = f"lag-{uuid.uuid4()}"
    group = f"group-{topic}"
    Typed(kafka, "topics", "create", topic, "--partitions", "2", "--config", "retention.ms=-1")
    produce(kafka, topic, {0: 6, 1: 3})
    assert Typed(kafka, "consume", f"{topic}:0", "--limit", "4", "--group", group).code == 0
    (shown,) = Typed(kafka, "groups", "lag", group, "--json").json
    assert (shown["state"], shown["lag"], shown["last_commit_ms"]) == ("Empty", 2, None)
    assert group in {row["group"] for row in Typed(kafka, "groups", "lag", "--json").json}
    why = Typed(kafka, "groups", "why", group, "--observe", "0s", "--json").json
    assert [cause["cause"] for cause in why["causes"]] == ["no-members"]
    saved = str(tmp_path / "saved.csv")
    reset = ("groups", "reset-offsets", group)
    assert Typed(kafka, *reset, "--all-topics", "--to-current", "--output", saved).code == 0
    assert Typed(kafka, *reset, "--all-topics", "--to-earliest", "--execute").code == 0
    (row,) = Typed(kafka, *reset, "--from-file", saved, "--execute", "--json").json
    assert (row["from"], row["to"], row["error"]) == (0, 4, None)
    (row,) = Typed(kafka, "offsets", "delete", group, "--topic", f"{topic}:0", "--json").json
    assert (row["committed"], row["error"]) == (4, None)
