"""`topics delete-records` and `offsets delete` against a broker.

Covers: kafkawire.cli.topics.change, kafkawire.cli.offsets.delete, kafkawire.client.admin.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkawire import testing
from tests.kit.cli import NEW_YEAR_MS, Typed, no_environment, produce  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with testing.broker() as broker:
        yield broker.bootstrap


def created(server: str, topic: str, partitions: int = 2) -> None:
    done = Typed(server, "topics", "create", topic, "--partitions", str(partitions))
    assert done.code == 0, done.err


def starts(server: str, topic: str) -> list[int]:
    rows = Typed(server, "offsets", "describe", topic, "--json").json
    return [row["log_start"] for row in rows]


def test_records_are_deleted(server: str) -> None:
    created(server, "d")
    produce(server, "d", {0: 10, 1: 4})
    words = ("topics", "delete-records", "d", "--before", f"@{NEW_YEAR_MS + 5000}")
    plan = Typed(server, *words, "--dry-run", "--json").json
    assert [(row["new_log_start"], row["records"]) for row in plan] == [(5, 5), (4, 4)]
    assert starts(server, "d") == [0, 0]
    done = Typed(server, *words, "--yes", "--json").json
    assert [(row["new_log_start"], row["error"]) for row in done] == [(5, None), (4, None)]
    assert starts(server, "d") == [5, 4]
    one = ("topics", "delete-records", "d:0", "--before-offset", "7", "--yes")
    assert Typed(server, *one).code == 0
    assert starts(server, "d") == [7, 4]
    earlier = ("topics", "delete-records", "d:0", "--before-offset", "1", "--yes")
    assert Typed(server, *earlier).code == 0
    assert starts(server, "d") == [7, 4]
    assert Typed(server, "topics", "delete-records", "d", "--all", "-y").code == 0
    assert starts(server, "d") == [10, 4]


def test_deletion_asks_first(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    created(server, "asked", 1)
    produce(server, "asked", {0: 3})
    words = ("topics", "delete-records", "asked", "--all")
    monkeypatch.setattr("kafkawire.cli.topics.change._at_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: "no")
    refused = Typed(server, *words)
    assert (refused.code, refused.err) == (1, "kafkawire: nothing was deleted\n")
    assert starts(server, "asked") == [0]
    monkeypatch.setattr("builtins.input", lambda prompt: "Y")
    assert Typed(server, *words).code == 0
    assert starts(server, "asked") == [3]


def committed(server: str, group: str) -> list[tuple[str, int]]:
    (shown,) = Typed(server, "groups", "describe", group, "--json").json
    return [(row["topic"], row["partition"]) for row in shown["offsets"]]


def test_committed_offsets_are_deleted(server: str) -> None:
    for topic in ("o1", "o2"):
        created(server, topic)
        produce(server, topic, {0: 1, 1: 1})
        assert Typed(server, "consume", topic, "--group", "g").code == 0
    everything = [("o1", 0), ("o1", 1), ("o2", 0), ("o2", 1)]
    assert committed(server, "g") == everything
    (row,) = Typed(server, "offsets", "delete", "g", "--topic", "o1:1", "--json").json
    assert row == {"topic": "o1", "partition": 1, "committed": 1, "error": None}
    assert committed(server, "g") == [place for place in everything if place != ("o1", 1)]
    assert Typed(server, "offsets", "delete", "g", "--topic", "o2").code == 0
    assert committed(server, "g") == [("o1", 0)]
    assert Typed(server, "offsets", "delete", "g", "--all-topics").code == 0
