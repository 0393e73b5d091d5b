"""A folder, tier or backup with one file of a newer program: each command refuses it in a sentence
that names the file, and changes no byte."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from kafkawire.broker.stored_formats import refuse_newer_files
from kafkawire.codec.segment import layout as segment_layout
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import LogError
from kafkawire.log.journal import ledger
from kafkawire.log.objects.format import VERSION as LOG_OBJECT_VERSION
from kafkawire.log.recovery.earlier_terms import NAME as LEFT
from kafkawire.log.recovery.given_up import NAME as GIVEN_UP
from kafkawire.manifest import format as manifest_format
from kafkawire.manifest.keys import CURRENT, OWNER
from kafkawire.manifest.sealed_json import seal
from kafkawire.metadata.schema import VERSION_TABLE
from kafkawire.metadata.store import MetadataError
from tests.kit.cli import Typed
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of, running
from tests.kit.waiting import until
from tests.tiering.test_broker import QUICK as UPLOAD_QUICK
from tests.tiering.test_broker import uploaded

QUICK = {"cut_interval_ms": "100", "journal_roll_ms": "200"}
HOME = "brokers/1"


def json_line(path: Path) -> None:
    body = json.loads(path.read_bytes().split(b"\n")[0]) if path.exists() else {}
    line = json.dumps({**body, "version": 2}).encode()
    path.write_bytes(b"%s\n%08x\n" % (line, crc32c(line)))


def sealed(path: Path) -> None:
    text = re.sub(rb', "crc": "[0-9a-f]{8}"}\s*$', b"}", path.read_bytes())
    body = json.loads(text)
    path.write_bytes(seal(json.dumps({**body, "format": body["format"] + 1})))


def newer_ledger(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = ledger.RECORDS_AT
    (length,) = struct.unpack_from(">I", data, at + 8)
    struct.pack_into(">H", data, at + 12, ledger.VERSION + 1)
    stop = at + ledger.RECORD_HEAD_BYTES + length
    struct.pack_into(">I", data, at + 4, crc32c(bytes(data[at + 8 : stop])))
    path.write_bytes(data)


def journal(path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(">I", data, 8, 2)
    path.write_bytes(data)


def segment(path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 8, segment_layout.VERSION + 1)
    checksum = crc32c(bytes(data[16:64]), crc32c(bytes(data[:12])))
    struct.pack_into("<I", data, 12, checksum)
    path.write_bytes(data)


def segment_section(path: Path) -> None:
    """A section that must be known, of a later version."""
    data = path.read_bytes()
    trailer = segment_layout.read_trailer(data, len(data))
    sections = list(trailer.sections)
    known = sections[0]
    sections[0] = segment_layout.Section(
        known.kind, known.version + 1, segment_layout.REQUIRED, known.start, known.length,
        known.checksum,
    )  # fmt: skip
    later = segment_layout.Trailer(
        trailer.uuid, trailer.file_size, trailer.batches_end, trailer.partitions, trailer.batches,
        trailer.records, sections,
    )  # fmt: skip
    tail = segment_layout.write_trailer(later)
    path.write_bytes(data[: -len(tail)] + tail)


def manifest(path: Path) -> None:
    data = bytearray(path.read_bytes())
    (count,) = struct.unpack_from("<I", data, 28)
    struct.pack_into("<I", data, 8, manifest_format.VERSION + 1)
    table = bytes(data[32 : 32 + 32 * count])
    checksum = crc32c(table, crc32c(bytes(data[16:32]), crc32c(bytes(data[:12]))))
    struct.pack_into("<I", data, 12, checksum)
    path.write_bytes(data)


def manifest_section(path: Path) -> None:
    data = bytearray(path.read_bytes())
    (count,) = struct.unpack_from("<I", data, 28)
    struct.pack_into("<H", data, 34, manifest_format.SECTION_VERSION + 1)
    table = bytes(data[32 : 32 + 32 * count])
    checksum = crc32c(table, crc32c(bytes(data[16:32]), crc32c(bytes(data[:12]))))
    struct.pack_into("<I", data, 12, checksum)
    path.write_bytes(data)


def snapshot(path: Path) -> None:
    data = struct.pack(">8sH16siqI", b"KWGROUPS", 4, bytes(16), 0, 0, 0) + bytes(50)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data + struct.pack(">I", crc32c(data)))


def metadata(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.close()


CASES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "run": ("run", json_line),
    "identity": ("identity", json_line),
    "given up": (GIVEN_UP, json_line),
    "left": (LEFT, json_line),
    "spending": ("tier-spending", json_line),
    "ledger": ("ledger.0", newer_ledger),
    "journal": ("journals/*.journal", journal),
    "segment": ("segments/*.segment", segment),
    "section of a segment": ("segments/*.segment", segment_section),
    "manifest": ("manifest/snapshot-*", manifest),
    "section of a manifest": ("manifest/snapshot-*", manifest_section),
    "delta of a manifest": ("manifest/delta-*", manifest),
    "manifest/current": (CURRENT, sealed),
    "snapshot of groups": ("groups/offsets-0.snapshot", snapshot),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a stopped broker with journals, segments and a local manifest."""
    data = tmp_path_factory.mktemp("sound") / "data"

    async def fill() -> None:
        async with running(data, **QUICK) as server:
            client = await Client.connect(port_of(server))
            await make(client, "t")
            await client.call(produce("t", batch(b"value")), 9)
            await until(
                lambda: server.broker.table.find_by_name("t", 0).cut_offset == 1, "it is cut"
            )
            await until((data / HOME / CURRENT).exists, "the manifest")
            await client.close()

    asyncio.run(fill())
    refuse_newer_files(real_env().fs, str(data / HOME))
    return data


def hashes(data: Path) -> dict[str, str]:
    """All files but locks, and what SQLite creates next to a file that it only reads."""
    files = [path for path in sorted(data.rglob("*")) if path.is_file() and path.name != "lock"]
    files = [path for path in files if not path.name.endswith(("-shm", "-wal"))]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_newer_file_is_refused_and_nothing_is_changed(
    sound: Path, tmp_path: Path, name: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(sound, data)
    pattern, change = CASES[name]
    path = max((data / HOME).glob(pattern), default=data / HOME / pattern)
    change(path)
    before = hashes(data)

    async def start() -> None:
        async with running(data, **QUICK):
            raise AssertionError("it was served")

    with pytest.raises(LogError) as refused:
        asyncio.run(start())
    said = [str(refused.value)]
    for command in (("fsck",), ("fsck", "--repair", "--skip-lost"), ("restore", "--from-log")):
        done = Typed("", *command, "--data", str(data))
        assert done.code, command
        said.append(done.err)
    for text in said:
        assert str(path) in " ".join(text.split())
        assert "start the newer version that wrote it" in " ".join(text.split())
        assert "damaged" not in text
    assert hashes(data) == before


@pytest.mark.slow
def test_newer_metadata_is_refused_and_nothing_is_changed(sound: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(sound, data)
    metadata(data / "metadata.db")
    before = hashes(data)

    async def start() -> None:
        async with running(data, **QUICK):
            raise AssertionError("it was served")

    with pytest.raises(MetadataError) as refused:
        asyncio.run(start())
    done = Typed("", "fsck", "--data", str(data), "--repair", "--skip-lost")
    assert done.code
    for text in (str(refused.value), " ".join(done.err.split())):
        assert f"{data}/metadata.db was written by a newer kafkawire (revision 9999" in text
    assert hashes(data) == before


def log_object(path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(">I", data, 8, LOG_OBJECT_VERSION + 1)
    path.write_bytes(data)


TIER: dict[str, tuple[str, Callable[[Path], None]]] = {
    "owner": (OWNER, sealed),
    "manifest/current": (CURRENT, sealed),
    "snapshot": ("manifest/snapshot-*", manifest),
    "delta": ("manifest/delta-*", manifest),
    "section of a delta": ("manifest/delta-*", manifest_section),
    "log object": ("nodes/1/log/*/*", log_object),
}


@pytest.fixture(scope="module")
def sound_tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of a stopped broker, its tier, and a copy of both."""
    root = tmp_path_factory.mktemp("tier")

    async def fill() -> None:
        async with running(root / "data", **tiered(root), durability="s3") as server:
            client = await Client.connect(port_of(server))
            await make(client, "t")
            for number in range(2):
                await client.call(produce("t", batch(b"value")), 9)
                await uploaded(server, number + 1)
            await client.call(produce("t", batch(b"value")), 9)
            await client.close()

    asyncio.run(fill())
    for name in ("data", "tier"):
        shutil.copytree(root / name, root / "sound" / name)
    return root


def tiered(root: Path) -> dict[str, str]:
    return {**UPLOAD_QUICK, "tier_url": f"file://{root}/tier"}


@pytest.mark.slow
@pytest.mark.parametrize("name", TIER)
def test_newer_object_is_refused_and_no_other_is_changed(
    sound_tier: Path, tmp_path: Path, name: str
) -> None:
    root, tier = sound_tier, sound_tier / "tier"
    for each in ("data", "tier"):
        shutil.rmtree(root / each)
        shutil.copytree(root / "sound" / each, root / each)
    pattern, change = TIER[name]
    path = max(tier.glob(pattern))
    change(path)
    before = hashes(tier)
    said = []
    if name != "owner":  # a restore claims nothing
        new = str(tmp_path / "new")
        done = Typed("", "restore", f"file://{tier}", "--data", new, "--yes")
        assert (done.code, Path(new).exists()) == (1, False)
        said.append(done.err)

    async def start() -> None:
        async with running(root / "data", **tiered(root)) as server:
            tiering = server.broker.tiering
            assert tiering is not None
            await until(lambda: tiering.state != "attaching", "the tier is refused")
            assert tiering.state == "owned by another"
            said.append(str(tiering.error))

    if name == "log object":
        with pytest.raises(LogError) as refused:
            asyncio.run(start())
        said.append(str(refused.value))
    else:
        asyncio.run(start())
    for text in said:
        assert "start the newer version that wrote it" in " ".join(text.split())
        assert path.name in text
    now = hashes(tier)
    # What an earlier version writes of its own: its log, and before it has read the manifest's
    # files, that it owns the tier.
    own = {key for key in before if "/nodes/" in key and name != "log object"}
    own |= {str(tier / OWNER)} if path.match("manifest/*-*") else set()
    assert {key: before[key] for key in before.keys() - own}.items() <= now.items()
    assert all("/nodes/" in key for key in now.keys() - before.keys())


def test_newer_rocksdb_is_refused(tmp_path: Path) -> None:
    rocksdict = pytest.importorskip("rocksdict")
    home = tmp_path / HOME
    home.mkdir(parents=True)
    database = rocksdict.Rdict(str(home / "offsets"), rocksdict.Options(raw_mode=True))
    database.put(b"v", b"\x09")
    database.close()
    before = hashes(tmp_path)
    with pytest.raises(LogError, match="offsets has format version 9, this kafkawire reads up to"):
        refuse_newer_files(real_env().fs, str(home))
    assert hashes(tmp_path) == before
