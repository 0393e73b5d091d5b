"""Manifest files stored by earlier versions, read by our reader and by one written from the page.

`Plain` follows docs/manifest-format.md and uses nothing of kafkawire.manifest: if the page were
wrong, it could not read what we write.
"""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import cramjam
import pytest
from crc32c import crc32c

from kafkawire.manifest import format as manifest_format
from kafkawire.manifest.columns import EntryColumns, ObjectColumns
from kafkawire.manifest.format import pack, unpack
from tests.golden import make_manifest_v1 as maker
from tests.kit.codec.pages import example

ROOT = Path(__file__).parent.parent.parent
GOLDEN = Path(__file__).parent.parent / "golden"
PAGE = (ROOT / "docs" / "manifest-format.md").read_text(encoding="utf-8")
VERSIONS = range(1, manifest_format.VERSION + 1)


def golden(version: int, kind: str) -> tuple[bytes, dict[str, Any]]:
    says = json.loads((GOLDEN / f"manifest-v{version}.json").read_text(encoding="utf-8"))
    return (GOLDEN / f"manifest-v{version}.{kind}").read_bytes(), says[kind]


class Plain:
    """A reader written from docs/manifest-format.md. AssertionError for what the page excludes."""

    def __init__(self, data: bytes) -> None:
        self.bodies: dict[int, tuple[int, bytes]] = {}
        magic, version, checksum, size, kind, count = struct.unpack_from("<8sIIQII", data)
        assert (magic, version, size) == (b"KWMANIFS", 1, len(data))
        at = 32 + 32 * count
        assert checksum == crc32c(data[:12] + data[16:32] + data[32:at])
        self.kind = {1: "delta", 2: "snapshot"}[kind]
        for row in struct.iter_unpack("<HHIQQII", data[32:at]):
            section, section_version, flags, stored, length, rows, section_sum = row
            body = data[at : at + stored]
            at += stored
            assert (section_version, crc32c(body)) == (1, section_sum)
            assert flags & 1
            if flags & 2:
                body = bytes(cramjam.zstd.decompress(body))
            assert len(body) == length
            self.bodies[section] = rows, body
        assert at == len(data)
        self.head = json.loads(self.bodies[1][1])

    def table(self, section: int, forms: str) -> tuple[list[list[Any]], bytes]:
        """Rows of a section whose columns have these forms (u: 16 bytes), and the bytes after
        them."""
        rows, body = self.bodies.get(section, (0, b""))
        columns: list[list[Any]] = []
        at = 0
        for form in forms:
            one = "16s" if form == "u" else form
            width = struct.calcsize("<" + one)
            part = body[at : at + width * rows]
            columns.append([value for (value,) in struct.iter_unpack("<" + one, part)])
            at += width * rows
        return [list(row) for row in zip(*columns, strict=True)], body[at:]

    def says(self) -> dict[str, Any]:
        """The whole content, in the form of the golden JSON."""
        deleted, rest = self.table(7, "uq")
        left, more = self.table(3, "u")
        entries, none = self.table(6, "QqqQQQIIqIQ")
        objects, nothing = self.table(5, "uuIiQqqII")
        assert rest == more == none == nothing == b""
        head = self.head
        return {
            "sequence": head["sequence"], "cluster_id": head["cluster_id"],
            "node": head["node_id"], "epoch": head["epoch"], "created_ms": head["created_ms"],
            "cluster": head.get("cluster"), "topics": self.topics(),
            "deleted_topics": [text_of(each) for (each,) in left],
            "partitions": self.partitions(), "classes": head.get("classes", []),
            "objects": [[uuid.hex(), segment.hex(), *row] for uuid, segment, *row in objects],
            "entries": entries, "deleted": [[uuid.hex(), after] for uuid, after in deleted],
        }  # fmt: skip

    def topics(self) -> list[list[Any]]:
        rows, rest = self.table(2, "uqIIII")
        numbers_end = 8 * sum(row[5] for row in rows)
        names_end = numbers_end + sum(row[3] for row in rows)
        numbers = [number for (number,) in struct.iter_unpack("<Q", rest[:numbers_end])]
        names, settings = rest[numbers_end:names_end], rest[names_end:]
        topics = []
        for topic_id, created, flags, name, size, count in rows:
            configs = json.loads(settings[:size]) if size else {}
            topics.append([text_of(topic_id), names[:name].decode(), bool(flags & 1), created,
                           configs, numbers[:count]])  # fmt: skip
            names, settings, numbers = names[name:], settings[size:], numbers[count:]
        assert (names, settings, numbers) == (b"", b"", [])
        return topics

    def partitions(self) -> list[list[Any]]:
        rows, rest = self.table(4, "QqqI")
        partitions = []
        for number, log_start, end, length in rows:
            partitions.append([number, log_start, end, rest[:length].hex()])
            rest = rest[length:]
        assert rest == b""
        return partitions


def text_of(uuid: bytes) -> str:
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


@pytest.mark.parametrize("kind", ["delta", "snapshot"])
@pytest.mark.parametrize("version", VERSIONS)
def test_golden_manifests_of_every_version_are_read(version: int, kind: str) -> None:
    data, says = golden(version, kind)
    assert json.loads(json.dumps(maker.says(unpack(data)))) == says


@pytest.mark.parametrize("kind", ["delta", "snapshot"])
def test_reader_written_from_page_reads_our_files(kind: str) -> None:
    data, says = golden(1, kind)
    plain = Plain(data)
    assert (plain.kind, plain.says()) == (kind, says)


def test_golden_manifest_is_written_the_same() -> None:
    """If this fails, the format has changed: raise its version, keep the old file. Compressed
    sections may differ from one zstd version to the next."""
    assert pack(maker.build_delta()) == golden(1, "delta")[0]
    assert unpack(maker.build_snapshot()) == unpack(golden(1, "snapshot")[0])


def test_example_of_page_is_a_manifest() -> None:
    data = example(PAGE)
    assert len(data) == 674
    assert f"{len(data)} bytes" in PAGE
    found = unpack(data)
    assert pack(found) == data
    says = Plain(data).says()
    assert says == json.loads(json.dumps(maker.says(found)))
    ((topic_id, name, internal, created, configs, numbers),) = says["topics"]
    assert (name, internal, configs, numbers) == ("t3", False, {"retention.ms": "-1"}, [3])
    assert (topic_id, created) == (text_of(b"\3" * 16), 1_700_000_000_000)
    assert says["partitions"][0][:3] == [3, 0, 11]
    assert says["entries"][0][:5] == [3, 10, 11, 64, 72]
    assert says["objects"][0][1] == "00112233445566778899aabbccddeeff"


def test_numbers_on_page_match_code() -> None:
    for said in (
        f"header, {manifest_format.HEADER_BYTES} bytes",
        f"{manifest_format.ROW.size} bytes for each section",
        f"at most {manifest_format.MAX_SECTIONS} |",
        f"bodies of {manifest_format.PACKED_FROM_BYTES} bytes",
        f"The manifest format, version {manifest_format.VERSION}",
    ):  # fmt: skip
        assert said in PAGE, said
    for number, name in manifest_format.SECTION_NAMES.items():
        assert f"{number} {name}" in PAGE
    assert (ObjectColumns.row_bytes(), EntryColumns.row_bytes()) == (72, 76)
