"""franz-go logs in over TLS, produces and consumes: its own SCRAM, in Go, against ours."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.security.sasl.scram import Hash
from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_port
from tests.kit.programs import program
from tests.kit.sasl import alter, upsertion
from tests.kit.tls import certificates

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD, WRONG = "alice-secret", "alice-wrong"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, str]]:
    address = f"localhost:{free_port()}"
    settings = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.location": certificates() / "server.pem",
        "ssl.key.location": certificates() / "server.key",
    }
    folder = tmp_path_factory.mktemp("franz")
    with BrokerProcess(
        folder / "data", settings=settings, listeners=[f"SASL_TLS://{address}"]
    ) as process:
        yield process, address
        assert not [each for each in (PASSWORD, WRONG) if each in process.output]


def log_in(address: str, mechanism: str, password: str, authority: Path) -> tuple[int, str]:
    done = subprocess.run(
        [program("franz-go"), "login", address, mechanism, "alice", password, authority,
         f"franz-{mechanism}"],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_franz_go_logs_in(broker: tuple[BrokerProcess, str], mechanism: str) -> None:
    process, address = broker
    program("franz-go")  # skips
    for kind in (Hash.SHA256, Hash.SHA512):
        await alter(process.port, upsertion("alice", PASSWORD, kind))
    ours = certificates() / "ca.pem"
    assert log_in(address, mechanism, PASSWORD, ours) == (0, "one\n")
    code, said = log_in(address, mechanism, WRONG, ours)
    assert code == 1
    assert "SASL_AUTHENTICATION_FAILED" in said
    code, said = log_in(address, mechanism, PASSWORD, certificates() / "client.pem")
    assert code == 1
    assert "certificate" in said
