"""`kafkawire find`: conditions, output, costs, errors, over a folder and a broker.

Covers: kafkawire.cli.records.find, kafkawire.reading.files.stored.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from kafkawire.cli.records.find import LONG_S, LongProgress
from kafkawire.codec.batches import Record, pack
from kafkawire.metadata.tables import metadata
from kafkawire.reading.files.open import open_place
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.fake_kafka import Log, serving
from tests.kit.spark.files import Files, Share

T0 = 1_700_000_000_000  # 2023-11-14T22:13:20Z
NOWHERE = "127.0.0.1:1"
LARGE = b"K" * (1 << 20)
RECORDS = [
    Record(0, T0, b"4711", b"created", [("type", b"order")]),
    Record(1, T0 + 1000, b"12", b"created", [("type", b"order")]),
    Record(2, T0 + 2000, None, b"no key"),
    Record(3, T0 + 60_000, LARGE, b"large"),
    Record(4, T0 + 120_000, b"4711", b"paid", [("type", b"payment"), ("tag", None)]),
    Record(5, T0 + 180_000, b"\xff", b"\xff\0"),
]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(open_place(str(tmp_path / "data" / "brokers" / "1")))
    [number] = made.topic("orders")
    times = [(0, T0 + 500_000), (2, T0 + 600_000)], [(3, T0 + 700_000), (5, T0 + 900_000)]
    for each, stored in zip((RECORDS[:3], RECORDS[3:]), times, strict=True):
        made.put(each[0].offset + 1, Share(number, [bytes(pack(each, codec=4))], stored=stored))
    made.publish()
    return made


def find(files: Files, *words: str) -> Typed:
    return Typed(NOWHERE, "find", "orders", "--source", files.place.url, *words)


def offsets(files: Files, *words: str) -> list[int]:
    return [line["offset"] for line in find(files, *words, "--json").lines]


def test_text_and_json(files: Files) -> None:
    found = find(files, "--key", "4711")
    assert (found.code, found.err) == (0, "")
    assert found.out == (
        "orders:0 0 2023-11-14T22:13:20.000Z created\norders:0 4 2023-11-14T22:15:20.000Z paid\n"
    )
    [line] = find(files, "--key", "4711", "--header", "tag", "--json").lines
    assert line == {
        "topic": "orders",
        "partition": 0,
        "offset": 4,
        "timestamp": T0 + 120_000,
        "key": "4711",
        "value": "paid",
        "headers": [["type", "payment"], ["tag", None]],
    }


def test_conditions(files: Files, tmp_path: Path) -> None:
    assert offsets(files, "--header", "type=order") == [0, 1]
    assert offsets(files, "--header", "type=order", "--limit", "1") == [0]
    assert offsets(files, "--key", "4711", "--latest") == [4]
    assert offsets(files, "--from", f"@{T0 + 1000}", "--until", "+2m") == [1, 2, 3, 4]
    assert offsets(files, "--from", "2023-11-14T22:15", "--until", "2023-11-14T22:16") == [4]
    assert offsets(files, "--key", "4711", "--until", f"@{T0 + 1}") == [0]
    (tmp_path / "key").write_bytes(LARGE)
    assert offsets(files, "--key-file", str(tmp_path / "key")) == [3]
    (tmp_path / "key").write_bytes(b"\xff")
    assert offsets(files, "--key-file", str(tmp_path / "key"), "--latest") == [5]


def test_records_by_time_of_storing(files: Files) -> None:
    assert offsets(files, "--stored-from", f"@{T0 + 600_000}") == [2, 3, 4, 5]
    assert offsets(files, "--stored-from", f"@{T0 + 600_999}") == [2, 3, 4, 5]  # in that second
    assert offsets(files, "--stored-from", f"@{T0 + 601_000}") == [3, 4, 5]
    assert offsets(files, "--stored-from", f"@{T0 + 800_000}") == [5]
    assert offsets(files, "--stored-to", f"@{T0 + 600_000}") == [0, 1]
    assert offsets(files, "--stored-to", f"@{T0 + 600_001}") == [0, 1, 2]
    assert offsets(files, "--stored-from", f"@{T0 + 600_000}", "--stored-to", "+2m") == [2, 3, 4]
    assert offsets(files, "--stored-from", f"@{T0}", "--until", f"@{T0 + 2000}") == [0, 1]
    assert find(files, "--stored-from", f"@{T0 + 901_000}").code == 1
    assert offsets(files, "--key", "4711", "--stored-to", f"@{T0 + 700_000}") == [0]
    # A segment of an earlier version has no store times: it counts as stored before all others.
    [number] = files.topic("older")
    files.put(8, Share(number, [bytes(pack([Record(0, T0, b"k", b"v")]))]))
    files.put(9, Share(number, [bytes(pack([Record(1, T0, b"k", b"v")]))], stored=[(1, T0)]))
    files.publish()
    words = ("older", "--source", files.place.url, "--json")
    for option, wanted in (("--stored-from", 1), ("--stored-to", 0)):
        [line] = Typed(NOWHERE, "find", *words, option, f"@{T0}").lines
        assert line["offset"] == wanted
    found = find(files, "--stored-from", "yesterday")
    assert (found.code, "--stored-from" in found.err) == (2, True)
    assert find(files, "--stored-to", "+5m").err.count("--stored-from") == 1
    found = Typed(NOWHERE, "find", "orders", "--stored-to", "now")
    assert (found.code, "--source, a data folder" in found.err) == (2, True)


def test_progress_of_long_searches_only() -> None:
    now = 0.0
    seen: list[tuple[str, int, int]] = []
    shown = LongProgress(lambda *each: seen.append(each), lambda: now)
    shown("KiB searched", 1, 10)
    now = LONG_S / 2
    shown("KiB searched", 2, 10)
    assert seen == []
    now = LONG_S
    shown("KiB searched", 3, 10)
    shown("KiB searched", 10, 10)
    assert seen == [("KiB searched", 3, 10), ("KiB searched", 10, 10)]
    seen.clear()
    shown = LongProgress(lambda *each: seen.append(each), lambda: now)
    shown("KiB searched", 5, 10)
    now += LONG_S
    shown("KiB searched", 10, 10)  # the end
    assert seen == []


def test_damage_is_named_and_fails(files: Files) -> None:
    folder = Path(files.place.tier.folder)
    path = min(folder.rglob("*.segment"), key=lambda each: each.name)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    found = find(files, "--key", "4711")
    assert found.code == 1
    assert found.out == "orders:0 4 2023-11-14T22:15:20.000Z paid\n"
    assert "damaged" in found.err
    assert found.err.endswith("kafkawire: 1 range of offsets of orders could not be read\n")


def test_records_in_journals_only_are_named(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "data" / "metadata.db"
    engine = create_engine(f"sqlite:///{path}")
    metadata.create_all(engine)
    engine.dispose()
    with closing(sqlite3.connect(path)) as connection, connection:
        facts = files.topics["orders"]
        connection.execute(
            "INSERT INTO topics (id, name, internal, created_ms, version) VALUES (?, ?, 0, 5, 1)",
            (facts.id, "orders"),
        )
        connection.execute("INSERT INTO partitions VALUES (1, ?, 0, 1, 0)", (facts.id,))
        connection.execute("INSERT INTO lead_groups VALUES (1, 0, 1, 1, 0, 0)")
        connection.execute(
            "INSERT INTO partition_offset_checkpoints VALUES (1, 9, 0, x'01', x'01', 0)"
        )
    found = find(files, "--key", "4711")
    assert found.code == 0
    assert "orders:0 has offsets [6, 9) in journals only" in found.err


def test_broker() -> None:
    log = Log([bytes(pack(RECORDS))], 0, len(RECORDS))
    with serving({("orders", 0): log}) as kafka:
        by_server = Typed(kafka.address, "find", "orders:0", "--key", "4711", "--json").lines
        assert [line["offset"] for line in by_server] == [0, 4]
        found = Typed(
            NOWHERE, "find", "orders", "--source", kafka.address, "--key", "4711", "--latest",
            "--explain",
        )  # fmt: skip
        assert (found.code, found.out) == (0, "orders:0 4 2023-11-14T22:15:20.000Z paid\n")
        assert f"{kafka.address}: 1 request, 1.0 MiB" in found.err
