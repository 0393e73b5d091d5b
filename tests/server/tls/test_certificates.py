"""Changed PEM files are loaded again; broken ones change nothing, with a CRITICAL line."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest

from kafkawire.cli.certs import issue
from kafkawire.security.tls.contexts import load
from kafkawire.server.tls.certificates import Certificates
from tests.kit.env import memory_env
from tests.kit.tls import authority, certificates, expired_server, settings


class Files:
    """The certificate of a broker in a folder of the test."""

    def __init__(self, folder: Path, rules: str = "DEFAULT") -> None:
        self.folder = folder
        for name in ("server.pem", "server.key"):
            shutil.copy(certificates() / name, folder)
        chosen = settings(keystore=f"{folder}/server.pem", key=f"{folder}/server.key")
        self.loaded = Certificates(memory_env(), chosen, load(chosen), rules)

    def replace(self, certificate: bytes, key: bytes) -> None:
        (self.folder / "server.pem").write_bytes(certificate)
        (self.folder / "server.key").write_bytes(key)

    async def changed(self) -> bool:
        before = self.loaded.contexts
        for _ in range(3):
            await self.loaded.check()
        return self.loaded.contexts is not before


async def test_new_files_are_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    files = Files(tmp_path)
    assert not await files.changed()
    made = issue("new", authority(), 1, ["localhost"])
    files.replace(made.certificate_pem(), made.key_pem())
    assert await files.changed()
    assert isinstance(files.loaded.contexts.silent, ssl.SSLContext)
    assert "loaded again" in caplog.text
    assert not await files.changed()


@pytest.mark.parametrize("case", ["garbage", "mismatch", "expired", "missing", "empty"])
async def test_broken_files_change_nothing(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    key = (tmp_path / "server.key").read_bytes()
    certificate = (tmp_path / "server.pem").read_bytes()
    other = issue("other", authority(), 1, ["localhost"])
    if case == "garbage":
        files.replace(b"garbage", key)
    elif case == "mismatch":
        files.replace(other.certificate_pem(), key)
    elif case == "expired":
        (tmp_path / "x").mkdir()
        both = expired_server(tmp_path / "x").read_bytes()
        files.replace(both, both)
    elif case == "empty":
        files.replace(b"", b"")
    else:
        (tmp_path / "server.pem").unlink()
    assert not await files.changed()
    assert not await files.changed()
    (line,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert "stays in use" in line.getMessage()
    assert str(tmp_path) in line.getMessage()
    files.replace(certificate, key)  # repaired: what is loaded is in the files again
    assert not await files.changed()
    files.replace(other.certificate_pem(), other.key_pem())
    assert await files.changed()


async def test_a_file_that_is_being_written_is_not_loaded(tmp_path: Path) -> None:
    files = Files(tmp_path)
    made = issue("new", authority(), 1, ["localhost"])
    (tmp_path / "server.pem").write_bytes(made.certificate_pem())
    before = files.loaded.contexts
    await files.loaded.check()
    (tmp_path / "server.key").write_bytes(made.key_pem())
    await files.loaded.check()
    assert files.loaded.contexts is before
    await files.loaded.check()
    assert files.loaded.contexts is not before


async def test_the_subject_becomes_a_principal(tmp_path: Path) -> None:
    pem = (certificates() / "client.pem").read_text()
    der = ssl.PEM_cert_to_DER_cert(pem)
    assert str(Files(tmp_path).loaded.principal_of(der)) == "User:CN=alice"
    mapped = Files(tmp_path, "RULE:CN=(.*)/$1/U").loaded
    assert str(mapped.principal_of(der)) == "User:ALICE"
