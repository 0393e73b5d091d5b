"""The rot trial in short, and tests that its judgement notices what must not happen."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.trials.context import Context
from tests.trials.records import Outgoing, Record
from tests.trials.rot.base import RotBase
from tests.trials.rot.case import judge_delayed, judge_transactions
from tests.trials.rot.damage import (
    FileRot,
    RowGone,
    RowRot,
    draw_file,
    draw_page,
    draw_row,
    flipped,
)
from tests.trials.rot.trial import round_

DUE, NEVER = Outgoing(1, b"k", b"amount=1000"), Outgoing(2, b"k", b"later")
SHORT = "row of the schedules,row of the metadata,journal"


def base(tmp_path: Path) -> RotBase:
    return RotBase(tmp_path, {}, stopped=True, due={1}, never={2}, committed={5, 6}, aborted={7})


def delivered(*rows: Outgoing) -> list[Record]:
    return [Record(at, row.uid, row.key, row.digest) for at, row in enumerate(rows)]


SENT = {row.uid: (row.key, row.digest) for row in (DUE, NEVER)}


def test_sound_deliveries_pass(tmp_path: Path) -> None:
    assert judge_delayed(base(tmp_path), SENT, delivered(DUE), set()) == []
    assert judge_delayed(base(tmp_path), SENT, [], {1}) == [], "its record is damaged, and named"


@pytest.mark.parametrize(
    ("rows", "noticed"),
    [
        ([Outgoing(1, b"k", b"amount=9000")], "other bytes"),
        ([DUE, NEVER], "early by years"),
        ([DUE, DUE], "delivered twice"),
        ([], "not delivered"),
        ([DUE, Outgoing(9, b"k", b"never sent")], "other bytes"),
    ],
)
def test_wrong_deliveries_are_reported(tmp_path: Path, rows: list[Outgoing], noticed: str) -> None:
    (fault, *_) = judge_delayed(base(tmp_path), SENT, delivered(*rows), set())
    assert noticed in fault


@pytest.mark.parametrize(
    ("found", "noticed"),
    [([5, 6, 7], "aborted"), ([5], "not read"), ([5, 6, 6], "twice"), ([5, 6], "")],
)
def test_wrong_transactions_are_reported(tmp_path: Path, found: list[int], noticed: str) -> None:
    faults = judge_transactions(base(tmp_path), found, set())
    assert bool(faults) == bool(noticed)
    assert noticed in "".join(faults)
    assert judge_transactions(base(tmp_path), [5], {6}) == []


def test_rot_changes_exactly_one_bit(tmp_path: Path) -> None:
    rng = Random(3)
    sound = b"x" * 9000 + bytes(500)
    (tmp_path / "file").write_bytes(sound)
    for _ in range(50):
        rot = draw_file(rng, tmp_path, "file")
        assert isinstance(rot, FileRot)
        rot.apply(tmp_path)
        changed = (tmp_path / "file").read_bytes()
        different = [a ^ b for a, b in zip(sound, changed, strict=True) if a != b]
        assert [each.bit_count() for each in different] == [1]
        rot.apply(tmp_path)
    (tmp_path / "empty").write_bytes(bytes(10))
    assert draw_file(rng, tmp_path, "empty") is None


def database(folder: Path) -> str:
    with closing(sqlite3.connect(folder / "a.db")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT UNIQUE, data BLOB)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", [(1, "a", b"x"), (2, "b", None)])
        connection.commit()
    return "a.db"


def test_rot_of_rows_and_pages(tmp_path: Path) -> None:
    path, rng = database(tmp_path), Random(5)
    sound = (tmp_path / path).read_bytes()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for _ in range(30):
        rot = draw_row(rng, tmp_path, path, scratch)
        assert isinstance(rot, RowRot)
        assert (tmp_path / path).read_bytes() == sound, "drawing changes a copy"
        rot.apply(tmp_path)
        with closing(sqlite3.connect(tmp_path / path)) as connection:
            connection.text_factory = lambda data: data.decode(errors="replace")
            rows = connection.execute("SELECT * FROM t").fetchall()
        assert len(set(rows) & {(1, "a", b"x"), (2, "b", None)}) == 1
        (tmp_path / path).write_bytes(sound)
    assert draw_page(rng, tmp_path, path).byte % 4096 < 200


def test_row_of_a_table_with_evidence_may_be_gone(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    rng = Random(5)
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT)")
        connection.executemany("INSERT INTO topics VALUES (?, ?)", [(1, "a"), (2, "b")])
        connection.commit()
    drawn = [draw_row(rng, tmp_path, "a.db", tmp_path / "scratch") for _ in range(50)]
    gone = [rot for rot in drawn if isinstance(rot, RowGone)]
    assert 0 < len(gone) < 25
    gone[0].apply(tmp_path)
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        (left,) = connection.execute("SELECT * FROM topics").fetchall()
    assert left != tuple(value for _, value in gone[0].row)


def test_rot_of_a_row_leaves_its_checksum(tmp_path: Path) -> None:
    """A database that computes it again would make the damage valid."""
    (tmp_path / "scratch").mkdir()
    declared = (
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, "
        "checksum BIGINT GENERATED ALWAYS AS (3 * n + id) STORED, "
        "intact BOOLEAN GENERATED ALWAYS AS (checksum IS (3 * n + id)) VIRTUAL)"
    )
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute(declared)
        connection.execute("INSERT INTO t (id, n) VALUES (1, 5)")
        connection.commit()
    rot = RowRot("a.db", "t", (("id", 1), ("n", 5)), "n", 7)
    rot.apply(tmp_path)
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        assert connection.execute("SELECT n, checksum, intact FROM t").fetchall() == [(7, 16, 0)]
        query = "SELECT sql FROM sqlite_master"
        assert connection.execute(query).fetchall() == [(declared,)]


@pytest.mark.parametrize("value", [0, 7, 1 << 40, 0.5, "text", b"\0"])
def test_flipped_values_differ_in_one_bit(value: object) -> None:
    assert flipped(Random(1), value) != value
    assert flipped(Random(1), None) is None
    assert flipped(Random(1), "") is None


@pytest.mark.real
@pytest.mark.slow
async def test_short_rot_trial_passes(tmp_path: Path) -> None:
    context = Context("rot", 6, 0, tmp_path, time.monotonic() + 30, short=True, say=print)
    context.match = SHORT
    await round_(context)
    assert context.findings == []
    assert context.counts["fsck runs"] >= 3
