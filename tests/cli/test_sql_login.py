"""`kafkawire sql` of a broker with log-in, TLS and access rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.cli.app import app
from kafkawire.testing.control import TEST_SETTINGS
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import no_environment, produce, run  # noqa: F401  (a fixture)
from tests.kit.ports import free_port
from tests.kit.tls import certificates

pytestmark = pytest.mark.real
PASSWORD, WRONG = "alice-secret", "alice-wrong"
STATEMENT = "SELECT count(*) FROM orders"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The listener SASL_TLS; alice may read `orders`, which has 7 records, and nothing else."""
    folder = tmp_path_factory.mktemp("sql-login")
    users = folder / "users"
    users.write_text(f"alice:{PASSWORD}\n")
    users.chmod(0o600)
    address = f"localhost:{free_port()}"
    settings = {
        **TEST_SETTINGS,
        "authorizer": "acl",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.plain.users.file": users,
        "ssl.keystore.location": certificates() / "server.pem",
        "ssl.key.location": certificates() / "server.key",
    }
    with BrokerProcess(
        folder / "data", settings=settings, listeners=[f"SASL_TLS://{address}"]
    ) as process:
        for topic in ("orders", "others"):
            produce(process.bootstrap, topic, {0: 7})
        words = ["acls", "add", "alice", "read", "describe", "--topic", "orders"]
        assert run(app, [*words, "--server", process.bootstrap]).exit_code == 0
        yield address
        assert not [each for each in (PASSWORD, WRONG) if each in process.output]


def config(folder: Path, password: str = PASSWORD) -> str:
    file = folder / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=alice\n"
        f"sasl.password={password}\nssl.ca.location={certificates()}/ca.pem\n"
    )
    return str(file)


def test_statement(address: str, tmp_path: Path) -> None:
    words = ["--command-config", config(tmp_path), "sql"]
    for option in ("--server", "--source"):
        done = run(app, [*words, option, address, STATEMENT])
        assert (done.exit_code, done.stdout.split()[-1], done.stderr) == (0, "7", "")
    done = run(app, [*words, "--server", address, "--json", "SHOW TABLES"])
    assert done.stdout == '{"topic": "orders", "partitions": 1}\n'


def test_refusals(address: str, tmp_path: Path) -> None:
    words = ["sql", "--server", address, STATEMENT]
    done = run(app, ["--command-config", config(tmp_path, WRONG), *words])
    assert done.exit_code == 1
    assert "refused user alice: Authentication failed" in done.stderr
    assert WRONG not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = run(app, ["--command-config", "/no/file", *words])
    assert done.exit_code == 2
    assert done.stderr.startswith("kafkawire: --command-config=/no/file: it cannot be read")
