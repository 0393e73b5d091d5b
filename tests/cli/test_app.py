"""The command line without a broker: help, targets of a reset, servers that are not Kafka.

Covers: kafkawire.cli.shared.output, kafkawire.cli.shared.parameters, kafkawire.cli.command.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkawire.cli.app import app
from kafkawire.cli.groups.reset_offsets import ResetTarget
from kafkawire.client.groups import assignment
from kafkawire.client.notation import OptionError
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import no_environment, run  # noqa: F401  (a fixture, by name)
from tests.kit.tls import certificates
from tests.kit.waiting import wait_until


@pytest.mark.parametrize("command", [[], ["serve"], ["topics", "create"], ["groups"], ["dump"]])
def test_help_describes_every_option(command: list[str]) -> None:
    result = run(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
    assert "\x1b" not in result.stdout


def test_reset_requires_exactly_one_target() -> None:
    ResetTarget(to_earliest=True).check()
    ResetTarget(to_offset=0).check()
    for target in (
        ResetTarget(),
        ResetTarget(to_earliest=True, to_latest=True),
        ResetTarget(True, shift_by=1),
    ):
        with pytest.raises(OptionError, match="--to-earliest"):
            target.check()
    with pytest.raises(OptionError, match="ISO 8601"):
        ResetTarget(to_datetime="yesterday").check()
    assert ResetTarget(to_datetime="1970-01-01T00:00:01").timestamp_ms() == 1000
    assert ResetTarget(to_datetime="1970-01-01T01:00:01+01:00").timestamp_ms() == 1000


def test_consumer_assignments_are_parsed() -> None:
    one = b"\0\3\0\0\0\1\0\1a\0\0\0\2\0\0\0\0\0\0\0\5\xff\xff\xff\xff"
    assert assignment(one) == [("a", 0), ("a", 5)]
    assert assignment(b"\0\0\0\0\0\0") == []
    for cut in range(len(one) - 4):
        assert assignment(one[:cut]) == []


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], str]]:
    """Start a server that answers every connection with these bytes and closes it."""
    stop: list[socket.socket] = []

    def start(answer: bytes) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        stop.append(listening)

        def serve() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(1000)
                    peer.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for listening in stop:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "closed the connection at the first request\n"),
        (b"\x15\x03\x03\0\x02\x02\x46", "speaks TLS: pass --command-config FILE with security.pro"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the Kafka protocol"),
        (b"\xff\xff\xff\xff", "does not speak the Kafka protocol"),
        (b"\0\0\0\x08\0\0\0\x09\0\0\0\0", "sent an invalid answer to ApiVersions"),
        (b"\0\0\0\x0a\0\0\0\x01\0\0\x7f\0\0\0", "sent an invalid answer to ApiVersions"),
        (b"\0\0\0\x0a\0\0\0\x01\0\x0d\1\0\0\0\0", "sent an invalid answer to ApiVersions"),
    ],
)
def test_server_that_is_not_kafka_is_reported(
    answering: Callable[[bytes], str], answer: bytes, sentence: str
) -> None:
    server = answering(answer)
    result = run(app, ["topics", "list", "--server", server])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert sentence in result.stderr
    assert server in result.stderr


SCRAM = "sasl.mechanism=SCRAM-SHA-256\nsasl.username=alice\nsasl.password=wrong\n"


@pytest.fixture(scope="module")
def protocols(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Start a broker with a listener of each protocol."""
    made = certificates()
    files = {"ssl.keystore.location": made / "server.pem", "ssl.key.location": made / "server.key"}
    names = ("TLS", "SASL_PLAINTEXT", "SASL_TLS")
    listeners = [f"{name}://127.0.0.1:0" for name in names]
    folder = tmp_path_factory.mktemp("protocols")
    with BrokerProcess(folder, settings=files, listeners=listeners) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoken", "listener", "answer", "logged"),
    [
        ("", "TLS", " speaks TLS: pass --command-config FILE with security.protocol=SSL or SASL_S",
         "on listener TLS: its client does not speak TLS, which this listener requires"),
        ("", "SASL_TLS", " speaks TLS: pass --command-config FILE with security.protocol=SSL or ",
         "on listener SASL_TLS: its client does not speak TLS, which this listener requires"),
        ("", "SASL_PLAINTEXT", " closed the connection at the first request: it may require a log-",
         "on listener SASL_PLAINTEXT: Metadata v13 before the log-in that this listener requires"),
        ("SSL", "PLAINTEXT", " does not speak TLS: set security.protocol=PLAINTEXT in the file of",
         "on listener PLAINTEXT: it speaks TLS, which this listener does not: set security.proto"),
        ("SASL_SSL", "SASL_PLAINTEXT", " does not speak TLS: set security.protocol=SASL_PLAINTEXT ",
         "on listener SASL_PLAINTEXT: it speaks TLS, which this listener does not"),
        ("SASL_PLAINTEXT", "SASL_TLS", " speaks TLS: pass --command-config FILE with security.prot",
         "on listener SASL_TLS: its client does not speak TLS"),
        ("SASL_PLAINTEXT", "PLAINTEXT", " has no log-in: set security.protocol=PLAINTEXT (with TLS",
         ""),
    ],
)  # fmt: skip
def test_wrong_protocol_is_reported_on_both_sides(
    protocols: BrokerProcess,
    tmp_path: Path,
    spoken: str,
    listener: str,
    answer: str,
    logged: str,
) -> None:
    words = ["topics", "list", "--server", protocols.addresses[listener]]
    if spoken:
        settings = f"ssl.ca.location={certificates()}/ca.pem\n{SCRAM}"
        (tmp_path / "settings").write_text(f"security.protocol={spoken}\n{settings}")
        words = ["--command-config", str(tmp_path / "settings"), *words]
    result = run(app, words)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"kafkawire: {protocols.addresses[listener]}{answer}")
    wait_until(lambda: logged in protocols.output, "the log line")


@pytest.mark.parametrize("listener", ["PLAINTEXT", "TLS", "SASL_PLAINTEXT"])
@pytest.mark.slow
def test_http_request_to_a_port_of_kafka_is_logged(protocols: BrokerProcess, listener: str) -> None:
    host, _, port = protocols.addresses[listener].rpartition(":")
    with socket.create_connection((host, int(port)), 30) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.recv(1) == b""
    wait_until(
        lambda: f"on listener {listener}: it sent an HTTP request" in protocols.output,
        "the log line",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            "",
            "its certificate is refused (unable to get local issuer certificate): set ssl.ca.loca",
        ),
        (
            "ssl.ca.location=/no",
            "ssl.ca.location=/no: it cannot be used (No such file or directory",
        ),
    ],
)
def test_certificates_that_cannot_be_used(
    protocols: BrokerProcess, tmp_path: Path, settings: str, sentence: str
) -> None:
    (tmp_path / "settings").write_text(f"security.protocol=SSL\n{settings}")
    words = ["topics", "list", "--server", protocols.addresses["TLS"]]
    result = run(app, ["--command-config", str(tmp_path / "settings"), *words])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert sentence in result.stderr
