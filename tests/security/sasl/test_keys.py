"""Keys of an issuer: cached, refreshed, and read rarely whatever clients send."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kafkawire.security.sasl.tokens import (
    MAX_BYTES,
    KeyRows,
    KeySource,
    check_source,
    parse_keys,
    read_source,
)
from tests.kit.issuer import Issuer


class Source:
    """A key set that a test changes. `reads` counts how often it was read."""

    def __init__(self, *issuers: Issuer) -> None:
        self.issuers = list(issuers)
        self.reads = 0
        self.now_s = 100.0
        self.failing = False
        self.keys = KeySource("test", self.read, lambda: self.now_s, 3600)

    async def read(self) -> KeyRows:
        self.reads += 1
        await asyncio.sleep(0)
        if self.failing:
            raise OSError("refused")
        rows = [row for each in self.issuers for row in json.loads(each.key_set())["keys"]]
        return parse_keys(json.dumps({"keys": rows}).encode())


async def test_keys_are_cached_for_an_hour() -> None:
    source = Source(Issuer("a"))
    assert await source.keys.find("a")
    source.now_s += 3599
    assert await source.keys.find("a")
    assert source.reads == 1
    source.now_s += 2
    assert await source.keys.find("a")
    assert source.reads == 2


async def test_unknown_keys_cause_one_read_per_interval() -> None:
    source = Source(Issuer("a"))
    found = await asyncio.gather(*(source.keys.find(f"k{at}") for at in range(1000)))
    assert not any(found)
    assert source.reads == 1
    source.now_s += 9
    await source.keys.find("b")
    assert source.reads == 1
    source.issuers.append(Issuer("b"))  # the issuer rotated its keys
    source.now_s += 2
    assert await source.keys.find("b")
    assert source.reads == 2


async def test_keys_stay_when_issuer_cannot_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(Issuer("a"))
    assert await source.keys.find("a")
    source.failing = True
    source.now_s += 4000
    assert await source.keys.find("a")
    assert await source.keys.find("a")
    assert source.reads == 2
    assert "the 1 keys read before" in caplog.text


async def test_token_without_id_has_the_only_key() -> None:
    source = Source(Issuer("a"))
    assert await source.keys.find(None)
    source = Source(Issuer("a"), Issuer("b"))
    assert not await source.keys.find(None)


def test_locations() -> None:
    for good in ("https://h/k", "http://127.0.0.1:1/k", "http://[::1]/k", "/k", "file:///k"):
        check_source(good)
    for bad in ("http://host/k", "ftp://h/k", "keys.json", "", "https://", "data:,x"):
        with pytest.raises(ValueError, match="https://"):
            check_source(bad)


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"{}")
    assert read_source(str(file)) == read_source(file.as_uri()) == b"{}"
    file.write_bytes(b"x" * (MAX_BYTES + 1))
    with pytest.raises(ValueError, match="more than"):
        read_source(str(file))
