"""The systemd unit and its files: systemd's own checks, the options of its TOML file, and
READY=1 and STOPPING=1 of a broker.
"""

from __future__ import annotations

import configparser
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkawire.cli.app import app
from kafkawire.cli.serving.sources import collect
from kafkawire.cli.shared.options import parse_listeners
from kafkawire.server.service_manager import READY, STOPPING, SUPERSEDED_CODE, notify
from kafkawire.testing.process import BrokerProcess
from tests.deploy.dockerfile import ROOT
from tests.kit.cli import commands_of

FOLDER = ROOT / "deploy" / "systemd"
UNIT = FOLDER / "kafkawire.service"
EXPOSURE_LIMIT = 2.0
"""Of `systemd-analyze security`, 10 being a service without any limits; 1.3 when it was written."""


class Unit(configparser.ConfigParser):
    """A unit file. Of an option that is given several times the last one is kept."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr  # case counts


def unit() -> Unit:
    found = Unit(strict=False, interpolation=None)
    found.read_string(UNIT.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """The unit with a program that exists on this machine."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    path = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    path.write_text(text.replace("/opt/kafkawire/bin/kafkawire", sys.executable), encoding="utf-8")
    return path


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.real
def test_systemd_accepts_the_unit(checked: Path) -> None:
    done = _analyze("verify", checked)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    checked.write_text(checked.read_text().replace("Restart=on-failure", "Restart=sometimes"))
    assert "sometimes" in _analyze("verify", checked).stderr


@pytest.mark.real
def test_service_is_exposed_little(checked: Path) -> None:
    done = _analyze("security", "--offline=yes", checked)
    if "offline" in done.stderr:
        pytest.skip("this systemd-analyze cannot check a file")
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_LIMIT


def test_unit_runs_the_broker_with_its_file() -> None:
    service = unit()["Service"]
    _, command, *options = service["ExecStart"].split()
    assert command in commands_of(app)
    assert options == ["--config", "/etc/kafkawire/kafkawire.toml"]
    assert service["Type"] == "notify"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["2", str(SUPERSEDED_CODE)]
    assert int(service["LimitNOFILE"]) >= 65536
    assert int(service["TimeoutStopSec"]) >= 30


def test_file_of_the_unit_is_valid() -> None:
    path = FOLDER / "kafkawire.toml"
    found = collect({}, [], {}, str(path))
    assert found.options["data"].text == f"/var/lib/{unit()['Service']['StateDirectory']}"
    assert parse_listeners(found.options["listen"].values)[0].port == 9092
    assert found.settings["metrics.listener"].text == "127.0.0.1:9404"


def test_users_of_unit_and_sysusers_agree() -> None:
    (line,) = re.findall(r"^u (\S+) ", (FOLDER / "kafkawire.sysusers").read_text(), re.MULTILINE)
    assert unit()["Service"]["User"] == unit()["Service"]["Group"] == line


@contextmanager
def _manager(path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))
        channel.settimeout(60)
        yield channel


def test_states_are_sent(tmp_path: Path) -> None:
    with _manager(tmp_path / "notify") as channel:
        notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert channel.recv(100) == b"READY=1"


def test_abstract_socket(tmp_path: Path) -> None:
    name = f"kafkawire-test-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"\0{name}")
        channel.settimeout(60)
        notify(STOPPING, {"NOTIFY_SOCKET": f"@{name}"})
        assert channel.recv(100) == b"STOPPING=1"


def test_missing_service_manager_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notify(READY, {})
    assert not caplog.records
    notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "none")})
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "READY=1" in record.getMessage()


@pytest.mark.slow
def test_broker_reports_its_start_and_its_stop(tmp_path: Path) -> None:
    with _manager(tmp_path / "notify") as channel:
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with BrokerProcess(tmp_path / "data", environ=environ) as broker:
            assert channel.recv(100) == b"READY=1"
            broker.stop()
            assert channel.recv(100) == b"STOPPING=1"
