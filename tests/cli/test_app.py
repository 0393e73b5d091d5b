"""The command line without a broker: version, help, wrong arguments, servers that are not Kafka.

In-process and fast; tests/cli/test_admin.py runs commands against a broker,
tests/cli/test_sources.py covers the sources of settings.

Covers: kafkawire.cli.shared.output, kafkawire.cli.shared.parameters, kafkawire.cli.lazy_group.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from kafkawire.cli.app import app
from kafkawire.cli.groups.reset_plan import ResetTarget
from kafkawire.cli.shared.options import OptionError
from kafkawire.client.groups import assignment
from tests.kit.cli import no_environment, run  # noqa: F401  (a fixture, by name)


def test_version_option() -> None:
    assert run(app, ["version"]).stdout.startswith("kafkawire ")
    facts = json.loads(run(app, ["version", "--json"]).stdout)
    assert set(facts) == {"kafkawire", "python", "compiled"}


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


def test_reset_partition_selection() -> None:
    result = run(app, ["groups", "reset-offsets", "g", "--to-latest"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--all-topics" in result.stderr


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
        (b"", "closed the connection"),
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


def test_unreachable_server_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        server = f"127.0.0.1:{free.getsockname()[1]}"
    result = run(app, ["groups", "list", "--server", server])
    assert result.exit_code == 1
    assert result.stderr == f"kafkawire: cannot connect to {server}: Connection refused\n"


def test_invalid_server_address_is_refused() -> None:
    result = run(app, ["topics", "list", "--server", "nowhere"])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "nowhere" in result.stderr


def test_a_mistyped_command_of_a_group_names_the_nearest() -> None:
    result = run(app, ["topics", "lst"])
    assert result.exit_code == 2
    assert "Did you mean 'list'?" in result.stderr
