"""Azurite, the emulator of Azure Blob Storage, for the tests: one server per worker of a test run.

`make test` installs it where there is npm (tests/programs/azurite.sh). Without it tests are
skipped, and fail where CI is set.

Fixtures: `azurite` (session), `azure_url` (a container of the test's own).
"""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import time
import uuid
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.minio import _die_with_parent
from tests.kit.ports import free_port

PROGRAM = Path(__file__).parents[2] / ".venv/azurite/node_modules/.bin/azurite-blob"
ACCOUNT, KEY = "kafkawiretests", b64encode(b"a key of the tests").decode()
READY_WITHIN_S = 60.0


@dataclass(frozen=True)
class Azurite:
    """A running server. `endpoint`: without the account."""

    endpoint: str

    @property
    def environ(self) -> dict[str, str]:
        """The environment with its credentials, without any setting of the machine's owner."""
        return {
            "AZURE_STORAGE_KEY": KEY,
            "AZURE_STORAGE_SAS_TOKEN": "",
            "AZURE_STORAGE_CONNECTION_STRING": "",
        }

    def tier(self) -> str:
        """Return the URL of a tier in a container that does not exist yet."""
        container = f"test-{uuid.uuid4().hex[:16]}"
        return f"azure://{ACCOUNT}/{container}/tier?endpoint={self.endpoint}"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Azurite]:
    """Run a server with its data in a folder until the context ends."""
    if not PROGRAM.exists():
        message = "there is no Azurite: `make test` installs it where there is npm"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(3):  # another process may take the port in between
        port = free_port()
        with (folder / "server.log").open("wb") as log:
            child = subprocess.Popen(
                [PROGRAM, "--silent", "--blobHost", "127.0.0.1", "--blobPort", str(port),
                 "--disableTelemetry", "--skipApiVersionCheck",
                 "--inMemoryPersistence"],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
            )  # fmt: skip
        try:
            if _answers_in_time(port, child):
                yield Azurite(f"http://127.0.0.1:{port}")
                return
        finally:
            child.kill()  # its data is not needed any more
            child.wait()
    raise AssertionError("Azurite does not start:\n" + (folder / "server.log").read_text()[-3000:])


def _answers_in_time(port: int, child: subprocess.Popen[bytes]) -> bool:
    """Whether the server answers in time, with any status; False if its process ends before."""
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end and child.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", f"/{ACCOUNT}?comp=list")
            connection.getresponse().read()
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """The Azurite server of this worker of the run."""
    with running(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture
def azure_url(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tier in a container that no other test uses; the environment has its credentials."""
    for name, value in azurite.environ.items():
        monkeypatch.setenv(name, value)
    return azurite.tier()
