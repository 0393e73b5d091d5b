"""The pytest fixtures as another project uses them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

OTHER_PROJECT = """
import pytest
from kafka import KafkaConsumer, KafkaProducer

seen = []


@pytest.mark.filterwarnings("ignore")
def test_produce_and_consume(kafkawire_broker):
    producer = KafkaProducer(bootstrap_servers=kafkawire_broker.bootstrap, acks="all")
    assert producer.send("t", b"hello").get(timeout=90).offset == 0
    producer.close()
    consumer = KafkaConsumer(
        "t", bootstrap_servers=kafkawire_broker.bootstrap, auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"hello"
    consumer.close()
    seen.append(kafkawire_broker.bootstrap)


def test_a_broker_of_its_own(kafkawire_broker):
    assert kafkawire_broker.running
    assert kafkawire_broker.bootstrap not in seen


def test_shared(kafkawire_session_broker):
    seen.append(kafkawire_session_broker)


def test_shared_again(kafkawire_session_broker):
    assert kafkawire_session_broker in seen


def test_settings(kafkawire_broker_factory):
    from kafkawire.client.cluster import Cluster

    broker = kafkawire_broker_factory(settings={"num.partitions": "3"})
    with Cluster(broker.bootstrap) as cluster:
        assert cluster.metadata(None).topics == []
    assert "group.initial.rebalance.delay.ms=0" in broker.command()
    assert sum(file.stat().st_blocks for file in broker.data.rglob("*")) * 512 < 6 << 20
    settings = {"group.initial.rebalance.delay.ms": "7"}
    broker = kafkawire_broker_factory(settings=settings)
    assert "group.initial.rebalance.delay.ms=7" in broker.command()
"""


@pytest.mark.real
def test_plugin_in_another_project(tmp_path: Path) -> None:
    """With folders named like our former top-level packages next to its tests: they must not
    interfere."""
    for name in ("log", "groups", "offsets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the wrong package')\n")
    (tmp_path / "test_it.py").write_text(OTHER_PROJECT)
    assert "5 passed" in run(tmp_path)


def run(folder: Path, *options: str) -> str:
    """Run pytest in a folder, and return its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [*command, "--basetemp", str(folder / "temp"), "test_it.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
    )
    return done.stdout + done.stderr


def kept(folder: Path) -> set[str]:
    """The data folders that a run of pytest has left."""
    return {str(found.parent) for found in (folder / "temp").rglob("brokers")}


FAILURES = """
import os
import pytest


@pytest.fixture
def broken(kafkawire_broker):
    yield
    raise KeyError("in a teardown")


def test_passes(kafkawire_broker):
    pass


def test_fails(kafkawire_broker):
    print("NAMED", kafkawire_broker.data)
    raise KeyError("in a test")


def test_fails_in_its_teardown(kafkawire_broker, broken):
    print("NAMED", kafkawire_broker.data)


def test_shared(kafkawire_broker_factory):
    broker = kafkawire_broker_factory()
    print("NAMED", broker.data)
    raise KeyError("in a test of a shared broker")


def test_without_a_broker():
    raise KeyError("in another test")


def test_chosen_folder(kafkawire_broker_factory, tmp_path):
    kafkawire_broker_factory(data=tmp_path / "chosen").stop()
"""


@pytest.mark.real
def test_data_of_failed_tests_is_kept(tmp_path: Path) -> None:
    """And named in their reports, with the broker's output."""
    (tmp_path / "test_it.py").write_text(FAILURES)
    output = run(tmp_path)
    assert "3 failed, 3 passed, 1 error" in output
    named = set(re.findall("^NAMED (.*)", output, re.MULTILINE))
    assert len(named) == 3
    assert kept(tmp_path) == named | {str(tmp_path / "temp" / "test_chosen_folder0" / "chosen")}
    assert set(re.findall("^data folder, kept: (.*)", output, re.MULTILINE)) == named
    assert output.count("kafkawire listens on") == 3


REPORTS = """
import pytest


@pytest.fixture(scope="module")
def first(kafkawire_broker_factory):
    return kafkawire_broker_factory()


@pytest.fixture(scope="module")
def second(kafkawire_broker_factory):
    return kafkawire_broker_factory()


def test_uses_both(first, second):
    pass


def test_starts_its_own(kafkawire_broker_factory):
    kafkawire_broker_factory()


def test_fails_with_the_second(second, kafkawire_broker_factory):
    print("NAMED", second.data)
    print("NAMED", kafkawire_broker_factory().data)
    raise KeyError
"""


@pytest.mark.real
def test_report_of_failed_test_has_its_brokers_only(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(REPORTS)
    output = run(tmp_path)
    assert "1 failed, 2 passed" in output
    named = set(re.findall("^NAMED (.*)", output, re.MULTILINE))
    assert len(named) == 2
    assert set(re.findall("^data folder, kept: (.*)", output, re.MULTILINE)) == named


@pytest.mark.real
def test_failure_shows_the_line_of_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(kafkawire_broker):\n    kafkawire_broker.wait_for('none', 1, timeout_s=0.1)\n"
    )
    output = run(tmp_path)
    assert "test_it.py:2: AssertionError" in output
    assert "topics.py" not in output


@pytest.mark.real
def test_data_of_passed_tests_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_own(kafkawire_broker): pass\n"
        "def test_shared(kafkawire_session_broker): pass\n"
        "def test_killed(kafkawire_broker): kafkawire_broker.kill()\n"
    )
    output = run(tmp_path)
    assert "3 passed" in output
    assert not list((tmp_path / "temp").glob("kafkawire*")), output


SCOPED = """
import pytest
from kafkawire.client.cluster import Cluster

seen = set()


@pytest.fixture(scope="session")
def kafkawire_settings():
    return {"num.partitions": "7"}


@pytest.mark.parametrize("number", range(3))
def test_broker(kafkawire_broker, number):
    seen.add(kafkawire_broker.pid)
    assert "num.partitions=7" in kafkawire_broker.command()


def test_count():
    assert len(seen) == COUNT
"""


@pytest.mark.real
@pytest.mark.parametrize(("scope", "count"), [("function", 3), ("module", 1), ("session", 1)])
def test_scope_of_broker(tmp_path: Path, scope: str, count: int) -> None:
    (tmp_path / "test_it.py").write_text(SCOPED.replace("COUNT", str(count)))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nkafkawire_scope = {scope}\n")
    assert "4 passed" in run(tmp_path)
    assert not kept(tmp_path)


def test_unknown_scope_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").touch()
    allowed = "function, class, module, package, session"
    output = run(tmp_path, "-o", "kafkawire_scope=file")
    assert f"ERROR: kafkawire_scope=file: it must be one of {allowed}" in output


WORKERS = """
import os
import pytest


@pytest.mark.parametrize("number", range(4))
def test_broker(kafkawire_session_broker, number, tmp_path_factory):
    common = tmp_path_factory.getbasetemp().parent / "seen"
    common.mkdir(exist_ok=True)
    (common / f"{os.getpid()}-{kafkawire_session_broker.port}").touch()
"""


@pytest.mark.real
def test_each_worker_of_xdist_has_its_broker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(WORKERS)
    assert "8 passed" in run(tmp_path, "-n", "2", "--dist", "each")
    seen = [each.name.split("-") for each in tmp_path.glob("temp/seen/*")]
    assert 2 == len(seen) == len({pid for pid, _ in seen}) == len({port for _, port in seen})
    assert not kept(tmp_path)


def test_pytest_does_not_rewrite_the_broker() -> None:
    """Threads of a broker's start may import at the same time (tests/conftest.py)."""
    found = import_module("kafkawire.handlers.produce.handler").__spec__
    assert found is not None
    assert type(found.loader) is SourceFileLoader


SPARES = """
import os
import pytest


class TestOfUsualBrokers:
    @pytest.mark.parametrize("number", range(2))
    def test_broker(self, kafkawire_broker, number):
        assert kafkawire_broker.running
        assert "num.partitions=3" not in kafkawire_broker.command()


class TestOfOtherSettings:
    @pytest.fixture(scope="session")
    def kafkawire_settings(self):
        return {"num.partitions": 3}

    @pytest.fixture
    def broken(self):
        pytest.skip("before the broker is started")

    def test_broker(self, kafkawire_broker, tmp_path_factory):
        assert "num.partitions=3" in kafkawire_broker.command()
        # Its own, and that of the next test: those of earlier tests, and the one that was started
        # with other settings, are deleted.
        assert len(list(tmp_path_factory.getbasetemp().glob("kafkawire[0-9]*"))) == 2

    def test_skipped(self, broken, kafkawire_broker):
        pass
"""


@pytest.mark.real
def test_broker_for_the_next_test_is_started_early(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SPARES)
    output = run(tmp_path)
    assert "3 passed, 1 skipped" in output, output
    assert not list((tmp_path / "temp").glob("kafkawire*"))
