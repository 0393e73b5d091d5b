"""Segments stored by earlier versions, read by our reader and by one written from the page alone.

`Plain` follows docs/segment-format.md and uses nothing of kafkawire.codec.segment.format: if the
page were wrong, it could not read what we write.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from kafkawire.codec.batches import records
from kafkawire.codec.segment import directory, layout
from kafkawire.codec.segment import format as codec
from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.log.io.worker_jobs import ScrubArguments, find_job, no_pace
from tests.golden import make_segment_v1, make_segment_v1_origin, make_segment_v1_stored
from tests.kit.codec.pages import example
from tests.kit.log.segments import everything

ROOT = Path(__file__).parent.parent.parent
GOLDEN = Path(__file__).parent.parent / "golden"
PAGE = (ROOT / "docs" / "segment-format.md").read_text(encoding="utf-8")


class Plain:
    """A reader written from docs/segment-format.md. AssertionError for what the page excludes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._header()
        self._trailer()
        self.entries = self._directory()
        self.states = self._state()
        self.origin = self._origin() if 4 in self.sections else None
        self.stored = self._stored() if 7 in self.sections else None

    def at(self, form: str, position: int) -> tuple[Any, ...]:
        return struct.unpack_from("<" + form, self.data, position)

    def _header(self) -> None:
        magic, version, checksum, self.uuid, self.node = self.at("8sII16si", 0)
        assert (magic, version) == (b"KWSEGMNT", 1)
        assert checksum == crc32c(self.data[:12] + self.data[16:64])
        (self.created_ms,) = self.at("q", 40)

    def _trailer(self) -> None:
        start = len(self.data) - 96
        uuid, size, self.batches_end, self.batches, self.records = self.at("16sQQQQ", start)
        self.partitions, sections, table, table_sum = self.at("IIQI", start + 48)
        version, checksum, magic = self.at("II8s", start + 80)
        assert (magic, version, uuid, size) == (b"KWSEGEND", 1, self.uuid, len(self.data))
        assert checksum == crc32c(self.data[start : start + 84])
        assert table == start - 32 * sections
        assert table_sum == crc32c(self.data[table:start])
        self.sections = {}
        at = self.batches_end
        for row in range(table, start, 32):
            kind, kind_version, flags, position, length, section_sum = self.at("HHIQQI", row)
            assert position == at
            assert self.at("HHIQ", position) == (kind, kind_version, flags, length)
            at = position + 16 + length
            assert section_sum == crc32c(self.data[position:at])
            assert flags == (1 if kind in (1, 2) else 0)
            self.sections[kind] = (position + 16, length)
        assert at == table

    def _directory(self) -> list[dict[str, Any]]:
        body, length = self.sections[1]
        count, topic_count = self.at("II", body)
        at = body + 8 + 88 * count
        topics = []
        for _ in range(topic_count):
            topic_id, size = self.at("16sH", at)
            topics.append((topic_id, self.data[at + 18 : at + 18 + size].decode()))
            at += 18 + size
        assert at == body + length
        assert count == self.partitions
        names = ("number", "topic", "index", "start", "length", "base", "end", "newest", "records",
                 "batches", "index_sum", "index_at", "index_length", "zero")  # fmt: skip
        entries = []
        for n in range(count):
            entry = dict(zip(names, self.at("QIIQQqqqQIIQII", body + 8 + 88 * n), strict=True))
            entry["topic_id"], entry["topic"] = topics[entry["topic"]]
            entries.append(entry)
        return entries

    def _state(self) -> dict[int, tuple[Any, ...]]:
        at = self.sections[3][0] + 8
        states = {}
        for _ in range(self.at("I", at - 8)[0]):
            number, log_start, epochs, producers, aborted = self.at("QqIII", at)
            at += 28
            middle, stop = at + epochs, at + epochs + producers
            lost = [self.at("qqq", stop + 24 * n) for n in range(aborted)]
            states[number] = log_start, self.data[at:middle], self.data[middle:stop], lost
            at = stop + 24 * aborted
        assert at == sum(self.sections[3])
        return states

    def _text(self, at: int, size: int) -> str:
        return self.data[at : at + size].decode()

    def _origin(self) -> dict[str, Any]:
        at, length = self.sections[4]
        stop = at + length
        count, generation, cluster, kind = self.at("IIHH", at)
        at += 12
        said = {
            "cluster_id": self._text(at, cluster),
            "generation": generation,
            "retention_class": self._text(at + cluster, kind),
            "topics": [],
        }
        at += cluster + kind
        for _ in range(count):
            topic_id, flags, partitions, created_ms, settings = self.at("16sIIqI", at)
            at += 36
            configs = {}
            for _ in range(settings):
                name, value = self.at("HI", at)
                configs[self._text(at + 6, name)] = self._text(at + 6 + name, value)
                at += 6 + name + value
            said["topics"].append({
                "id": topic_id.hex(), "partitions": partitions, "created_ms": created_ms,
                "internal": bool(flags & 1), "configs": configs,
            })  # fmt: skip
        assert at == stop
        return said

    def _stored(self) -> dict[str, list[list[int]]]:
        body, length = self.sections[7]
        count, zero = self.at("II", body)
        assert not zero
        at, said = body + 8, {}
        for _ in range(count):
            number, first, first_ms, n, zero = self.at("QqqII", at)
            assert n
            assert not zero
            offsets, seconds = self.at(f"{n}I", at + 32), self.at(f"{n}I", at + 32 + 4 * n)
            said[str(number)] = [
                [first + offset, first_ms + 1000 * second]
                for offset, second in zip(offsets, seconds, strict=True)
            ]
            at += 32 + 8 * n
        assert at == body + length
        return said

    def batches_of(self, entry: dict[str, Any]) -> list[bytes]:
        """All batches, found through the index's blocks."""
        at, size = entry["index_at"], entry["index_length"]
        assert crc32c(self.data[at : at + size]) == entry["index_sum"]
        n = size // 28
        offsets, positions = self.at(f"{n}q", at), self.at(f"{n}q", at + 8 * n)
        newest, sums = self.at(f"{n}q", at + 16 * n), self.at(f"{n}I", at + 24 * n)
        found: list[bytes] = []
        top = -1
        for block, stop in enumerate([*positions[1:], entry["length"]] if n else []):
            data = self.data[entry["start"] + positions[block] : entry["start"] + stop]
            assert crc32c(data) == sums[block]
            first = len(found)
            while data:
                end = 12 + struct.unpack_from(">i", data, 8)[0]
                found.append(data[:end])
                data = data[end:]
            assert struct.unpack_from(">q", found[first])[0] == entry["base"] + offsets[block]
            top = max(top, *(struct.unpack_from(">q", one, 35)[0] for one in found[first:]))
            assert newest[block] == top
        assert (len(found), top) == (entry["batches"], entry["newest"])
        return found


def golden(name: str) -> tuple[bytes, dict[str, Any]]:
    says = json.loads((GOLDEN / f"segment-{name}.json").read_text(encoding="utf-8"))
    return (GOLDEN / f"segment-{name}.segment").read_bytes(), says


NAMES = ["v1", "v1-origin", "v1-stored"]
"""Without and with the sections `origin` and `stored`, which are optional for readers: the same
version."""


@pytest.mark.parametrize("name", NAMES)
def test_golden_segments_are_read(name: str) -> None:
    data, says = golden(name)
    whole = everything(data)
    assert (whole.header.uuid.hex(), whole.header.node_id) == (says["uuid"], says["node"])
    assert whole.header.created_ms == says["created_ms"]
    assert len(whole.entries) == len(says["partitions"])
    for entry, batches, said in zip(whole.entries, whole.batches, says["partitions"], strict=True):
        assert [batch.hex() for batch in batches] == said["batches"]
        state = whole.states[entry.number]
        assert (entry.number, entry.topic, entry.index) == (
            said["number"], said["topic"], said["index"],
        )  # fmt: skip
        assert entry.topic_id.hex() == said["topic_id"]
        assert (entry.base_offset, entry.end_offset) == (said["base_offset"], said["end_offset"])
        assert state.log_start == said["log_start"]
        assert state.leader_epochs.hex() == said["leader_epochs"]
        assert state.producers.hex() == said["producers"]
        assert [list(entry) for entry in state.aborted] == said["aborted"]
    assert whole.origin == (make_segment_v1_origin.ORIGIN if name == "v1-origin" else None)
    stored = {number: state.stored for number, state in whole.states.items() if state.stored}
    assert stored == (make_segment_v1_stored.STORED if name == "v1-stored" else {})


@pytest.mark.parametrize("name", NAMES)
def test_golden_segments_pass_all_checks(name: str) -> None:
    arguments = ScrubArguments(str(GOLDEN / f"segment-{name}.segment"))
    assert find_job("scrub")(DiskFileSystem(), arguments, no_pace).problems == []


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("v1", make_segment_v1.build),
        ("v1-origin", make_segment_v1_origin.build),
        ("v1-stored", make_segment_v1_stored.build),
    ],
)
def test_golden_segment_is_written_byte_for_byte(
    name: str, build: Callable[[], tuple[bytes, dict[str, Any]]]
) -> None:
    """If this fails, the format has changed: raise its version, keep the old file."""
    data, says = build()
    assert (data, json.loads(json.dumps(says))) == golden(name)


def test_every_version_has_a_golden_file() -> None:
    assert {f"v{n}" for n in range(1, layout.VERSION + 1)} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_reader_written_from_page_reads_our_files(name: str) -> None:
    data, says = golden(name)
    plain = Plain(data)
    assert (plain.origin, plain.stored) == (says.get("origin"), says.get("stored"))
    assert (plain.batches, plain.records) == (23, 24)
    assert len(says["partitions"]) == len(plain.entries) == len(plain.states)
    for said, entry in zip(says["partitions"], plain.entries, strict=True):
        assert [batch.hex() for batch in plain.batches_of(entry)] == said["batches"]
        assert (entry["topic"], entry["index"]) == (said["topic"], said["index"])
        log_start, epochs, producers, aborted = plain.states[said["number"]]
        assert (epochs.hex(), producers.hex()) == (said["leader_epochs"], said["producers"])
        assert (log_start, [list(one) for one in aborted]) == (said["log_start"], said["aborted"])


def test_example_of_page_is_a_segment() -> None:
    data = example(PAGE)
    assert len(data) == 558
    plain, whole = Plain(data), everything(data)
    (entry,) = plain.entries
    assert (entry["number"], entry["topic"], entry["index"]) == (3, "t3", 2)
    (batch,) = plain.batches_of(entry)
    assert whole.batches == [[batch]]
    (record,) = records(batch)
    assert (record.offset, record.timestamp, record.key, record.value) == (
        10, 1000, b"k", b"\x0a" * 3,
    )  # fmt: skip
    assert (plain.node, plain.created_ms) == (1, 1_700_000_000_000)


def test_numbers_on_page_match_code() -> None:
    for said in (
        f"header, {codec.HEADER_BYTES} bytes", f"trailer, {codec.TRAILER_BYTES} bytes",
        f"{layout.SECTION.size} bytes for each section", f"{directory.ENTRY.size} bytes * n",
        f"at most {layout.MAX_SECTIONS} sections", f"last {codec.TAIL_BYTES} bytes",
        f"The segment format, version {layout.VERSION}",
    ):  # fmt: skip
        assert said in PAGE, said
