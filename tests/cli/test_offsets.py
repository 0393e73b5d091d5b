"""`kafkawire offsets`, `consume`, `backup` and `restore`.

Covers: kafkawire.cli.offsets.report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.cli.offsets.report import Walk, _enter
from kafkawire.cli.records.consume import parse_start
from kafkawire.cli.shared.options import OptionError
from kafkawire.codec.batches import build, read_head
from kafkawire.offsets.types import OffsetType
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import NEW_YEAR_MS, Typed, produce


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", (OffsetType.RESET_TO_EARLIEST, 0)),
        ("latest", (OffsetType.RESET_TO_LATEST, 0)),
        ("resume", (OffsetType.RESUME_OR_EARLIEST, 0)),
        ("resume-or-earliest", (OffsetType.RESUME_OR_EARLIEST, 0)),
        ("resume-or-latest", (OffsetType.RESUME_OR_LATEST, 0)),
        ("offset:17", (OffsetType.EXACT_OFFSET, 17)),
        ("nearest:17", (OffsetType.RESET_TO_OFFSET, 17)),
        ("time:1767225600000", (OffsetType.EXACT_TS_NS, NEW_YEAR_MS * 1_000_000)),
        ("time:2026-01-01T00:00:00", (OffsetType.EXACT_TS_NS, NEW_YEAR_MS * 1_000_000)),
        ("time:2026-01-01T01:00:00+01:00", (OffsetType.EXACT_TS_NS, NEW_YEAR_MS * 1_000_000)),
        ("2026-01-01T00:00", (OffsetType.EXACT_TS_NS, NEW_YEAR_MS * 1_000_000)),
        (f"@{NEW_YEAR_MS}", (OffsetType.EXACT_TS_NS, NEW_YEAR_MS * 1_000_000)),
    ],
)
def test_start_positions_are_parsed(text: str, expected: tuple[OffsetType, int]) -> None:
    assert parse_start(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "never",
        "offset",
        "offset:",
        "offset:-1",
        "time:",
        "time:x",
        "nearest:",
        "nearest:-2",
        "offset:99999999999999999999",
        "time:9999999999999999999999",
    ],
)
def test_invalid_start_position_is_named(text: str) -> None:
    with pytest.raises(OptionError, match=rf"--from={text}: it must be earliest, latest"):
        parse_start(text)


def walked(*batches: bytes, gaps_allowed: bool = False) -> Walk:
    walk = Walk(0)
    for batch in batches:
        _enter(walk, read_head(batch), gaps_allowed)
    return walk


def batch(base_offset: int, count: int = 2, epoch: int = 0) -> bytes:
    pairs = [(None, b"v")] * count
    return bytes(build(pairs, base_offset=base_offset, timestamp_ms=1, leader_epoch=epoch))


def test_validation_reports_each_kind_of_defect() -> None:
    good = walked(batch(0), batch(2, epoch=3), batch(4, epoch=3))
    assert (good.problems, good.next_offset, good.records, good.missing) == ([], 6, 6, 0)
    assert walked(batch(0), batch(5)).problems == ["offsets 2..4 are missing"]
    assert walked(batch(0), batch(5), gaps_allowed=True).problems == []
    assert walked(batch(0), batch(5), gaps_allowed=True).missing == 3
    assert walked(batch(0), batch(1)).problems == ["offset 1 follows 1: offsets do not rise"]
    (epoch,) = walked(batch(0, epoch=2), batch(2, epoch=1)).problems
    assert epoch == "leader epoch 1 at offset 2 is below the previous one, 2"
    thin = bytearray(batch(0, 3))
    thin[57:61] = (2).to_bytes(4, "big")
    assert walked(bytes(thin)).problems == ["the batch at offset 0 has 2 records for 3 offsets"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("offsets")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[str]:
    settings = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "1"}
    with BrokerProcess(data, settings=settings) as running:
        Typed(running.bootstrap, "topics", "create", "o", "--partitions", "2")
        produce(running.bootstrap, "o", {0: 10, 1: 3})
        yield running.bootstrap


@pytest.mark.real
def test_offsets_are_described(server: str) -> None:
    rows = Typed(server, "offsets", "describe", "o", "--json").json
    assert rows == [
        {"partition": 0, "log_start": 0, "log_end": 10, "offsets": 10},
        {"partition": 1, "log_start": 0, "log_end": 3, "offsets": 3},
    ]
    rows = Typed(server, "offsets", "describe", "o", "--group", "none", "--json").json
    assert [(row["committed"], row["lag"]) for row in rows] == [(None, None)] * 2
    assert "log start" in Typed(server, "offsets", "describe", "o").out
    missing = Typed(server, "offsets", "describe", "nope")
    assert (missing.code, "UNKNOWN_TOPIC_OR_PARTITION" in missing.err) == (1, True)


@pytest.mark.real
def test_every_batch_is_validated(server: str) -> None:
    rows = Typed(server, "offsets", "validate", "o", "--json").json
    assert [(row["records"], row["read_to"], row["contiguous"]) for row in rows] == [
        (10, 10, True),
        (3, 3, True),
    ]
    assert all(row["problems"] == [] and row["bytes"] > 61 for row in rows)
    rows = Typed(server, "offsets", "validate", "o", "--range", "1..3", "--json").json
    assert all(row["problems"] == [] and row["records"] >= 2 for row in rows)
    (row,) = Typed(server, "offsets", "validate", "o:1", "--json").json
    assert (row["partition"], row["records"]) == (1, 3)
    absent = Typed(server, "offsets", "validate", "o:0,2")
    assert (absent.code, "topic o has no partition 2" in absent.err) == (1, True)
    refused = Typed(server, "offsets", "validate", "o", "--range", "1..9", "--json")
    problems = [row["problems"] for row in json.loads(refused.out)]
    reported = "range 1..9 is not within 0..3, which is what the partition has"
    assert (refused.code, problems) == (1, [[], [reported]])
    for text in ("1", "1..x", "..", "-1..2", "3..2", "0.." + "9" * 30):
        wrong = Typed(server, "offsets", "validate", "o", "--range", text)
        assert (wrong.code, f"--range={text}: it must be START..END" in wrong.err) == (2, True)


@pytest.mark.real
def test_statistics_come_from_the_broker_or_from_its_folder(server: str, data: Path) -> None:
    rows = Typed(server, "offsets", "stats", "o", "--json").json
    assert [row["offsets"] for row in rows] == [10, 3]
    assert all(row["bytes"] > 0 for row in rows)
    stored = Typed(server, "offsets", "stats", "o", "--data", str(data), "--json").json
    assert [(row["partition"], row["segments"]) for row in stored] == [(0, 0), (1, 0)]
    stored = Typed(server, "offsets", "metrics", "--data", str(data), "--json").json
    assert (stored["mappings"], stored["segments_live"], stored["live_bytes"]) == (0, 0, 0)
    assert "checkpoints" in Typed(server, "offsets", "metrics", "--source", str(data)).out
    assert Typed(server, "offsets", "metrics", "--source", "nowhere").code == 2
    for folder, topic, words in [
        (data, "nope", "has no topic nope"),
        (data / "brokers", "o", "is not a data folder"),
    ]:
        refused = Typed(server, "offsets", "stats", topic, "--data", str(folder))
        assert (refused.code, words in refused.err) == (1, True)


@pytest.mark.real
def test_consume_starts_at_given_position(server: str) -> None:
    def values(*words: str) -> list[tuple[int, int]]:
        lines = Typed(server, "consume", "o", *words, "--json").lines
        return sorted((line["partition"], line["offset"]) for line in lines)

    everything = [(0, at) for at in range(10)] + [(1, at) for at in range(3)]
    assert values() == everything
    assert values("--from", "latest") == []
    assert values("--from", "offset:2") == [(0, at) for at in range(2, 10)] + [(1, 2)]
    assert values("--from", "offset:8", "--partition", "0") == [(0, 8), (0, 9)]
    at = f"time:{NEW_YEAR_MS + 7_500}"
    assert values("--from", at) == [(0, 8), (0, 9)]
    assert len(values("--max", "4")) == 4
    assert values("--max", "0") == []
    assert Typed(server, "consume", "o", "--partition", "1").out == "0\n1\n2\n"
    (first, *_) = Typed(server, "consume", "o", "--json").lines
    assert first == {
        "topic": "o",
        "partition": 0,
        "offset": 0,
        "timestamp": NEW_YEAR_MS,
        "key": "k",
        "value": "0",
        "headers": [],
    }


@pytest.mark.real
def test_consume_resumes_at_committed_offset(server: str) -> None:
    words = ("consume", "o", "--from", "resume", "--group", "r", "--json")
    first = Typed(server, *words, "--max", "7").lines
    rest = Typed(server, *words).lines
    assert (len(first), len(rest)) == (7, 6)
    places = {(line["partition"], line["offset"]) for line in first + rest}
    assert len(places) == 13
    rows = Typed(server, "offsets", "describe", "o", "--group", "r", "--json").json
    assert [(row["committed"], row["lag"]) for row in rows] == [(10, 0), (3, 0)]
    assert Typed(server, *words).lines == []


@pytest.mark.real
def test_impossible_consume_is_reported(server: str) -> None:
    for words, code, sentence in [
        (("--from", "resume"), 2, "--group"),
        (("--from", "never"), 2, "earliest, latest"),
        (("--limit", "-1"), 2, "--limit=-1"),
        (("--from", "offset:4"), 1, "o-1: offset 4 is not within 0..3"),
        (("--partition", "9"), 1, "has no partition 9"),
    ]:
        refused = Typed(server, "consume", "o", *words)
        assert (refused.code, refused.out) == (code, ""), words
        assert sentence in refused.err
        assert refused.err.count("\n") == 1
