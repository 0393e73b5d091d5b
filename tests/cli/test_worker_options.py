"""Options of `serve --workers`: what is refused in a sentence, and what a worker gets.

Covers: kafkawire.cli.serving.run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafkawire.broker.options import InheritedSockets, WorkerRole
from kafkawire.cli.serving.options import Given, parse
from kafkawire.cli.serving.run import has_workers, read, run, serve_options
from tests.kit.cli import no_environment  # noqa: F401  (a fixture, by name)


def given(*words: str) -> Given:
    found = parse(words)
    assert found is not None
    return found


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line on standard error."""
    with pytest.raises(SystemExit) as ended:
        run(given("--show-config", *words), {})
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("count", ["0", "-1", "x", "65", "1e1", "", "٣", "9" * 30, "2.0"])
def test_wrong_numbers_of_workers(capsys: pytest.CaptureFixture[str], count: str) -> None:
    said = refusal(capsys, f"--workers={count}")
    where = "workers (command line --workers)"
    assert said == f"kafkawire: {where}={count}: it must be a whole number from 1 to 64\n"


def test_sources_of_workers(tmp_path: Path) -> None:
    file = tmp_path / "kafkawire.toml"
    file.write_text('workers = 3\nworker-ports = ["1,2", "5"]\n')
    options = serve_options(read(given("--config", str(file)), {}))
    assert (options.workers, options.worker_ports) == (3, ("1,2", "5"))
    environ = {"KAFKAWIRE_WORKERS": "2", "KAFKAWIRE_WORKER_PORTS": "7,8"}
    options = serve_options(read(given("--config", str(file)), environ))
    assert (options.workers, options.worker_ports) == (2, ("7", "8"))


def test_when_there_is_a_supervisor(tmp_path: Path) -> None:
    def has(*words: str) -> bool:
        sources = read(given("--data", str(tmp_path), *words), {})
        return has_workers(serve_options(sources), sources)

    assert [has(), has("--workers=1"), has("--workers=2")] == [False, False, True]
    assert has("--workers=1", "--worker-ports=9093")
    (tmp_path / "brokers" / "2").mkdir(parents=True)
    assert [has(), has("--workers=1")] == [False, True]


def test_worker_has_its_share_and_its_own_port() -> None:
    role = WorkerRole(4, False, False, 9, (InheritedSockets((3,), (4,), 9094),))
    words = ["--workers=4", "--advertise=h.example:19092", "--set=hot.bytes=1073741824"]
    worker = given(*words, "--set", "node.id=3", "--worker", role.option_value())
    options = serve_options(read(worker, {}), worker.worker)
    assert options.worker == role
    assert options.advertised == {"PLAINTEXT": ("h.example", 9094)}
    assert (options.settings["hot.bytes"], options.settings["node.id"]) == (str(256 << 20), "3")
    listeners = "--listen=127.0.0.1:1", "--listen=B=PLAINTEXT://127.0.0.1:2"
    with pytest.raises(ValueError, match="it must be what the supervisor"):
        serve_options(read(given(*listeners), {"KAFKAWIRE_WORKERS": "4"}), role.option_value())


def test_worker_gets_the_command_line_of_the_supervisor() -> None:
    words = ["--listen=h:1", "--listen=B=PLAINTEXT://h:2", "--data=-x", "--insecure", "--set=a=b"]
    found = given(*words, "--config=f", "--workers=2")
    assert found.words()[0] == "serve"
    assert parse(found.words()[1:]) == found
    assert json.loads(WorkerRole(1, True, True, 3, ()).option_value())["drain"] is True
