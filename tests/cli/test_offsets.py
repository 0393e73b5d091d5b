"""`kafkawire offsets`, `consume`, `backup` and `restore`.

Covers: kafkawire.cli.offsets.report.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.cli.offsets.report import Walk, _enter
from kafkawire.cli.records.consume import parse_start
from kafkawire.client.notation import OptionError
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
