"""The checksum of the extension module alone."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import PathFinder

import crc32c as package
import pytest

from kafkawire import crc32c as ours


def test_checksum_is_that_of_the_package() -> None:
    for data in (b"", b"123456789", bytearray(range(256)), memoryview(bytes(1000))[3:]):
        assert ours.crc32c(data) == package.crc32c(data)
        assert ours.crc32c(data, 7) == package.crc32c(data, 7)
    assert ours.crc32c(b"123456789") == 0xE3069283


def test_package_without_extension_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PathFinder, "find_spec", lambda *_: None)
    assert ours._extension() is package


def test_import_reads_no_metadata_of_packages() -> None:
    code = "import sys, kafkawire.crc32c; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"crc32c", "importlib.metadata", "email"}.isdisjoint(done.stdout.split())
