"""The pytest fixture as another project uses it, and the broker handle that it returns."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from kafkawire.testing.broker import BrokerFailed, BrokerProcess

OTHER_PROJECT = """
import pytest
from kafka import KafkaConsumer, KafkaProducer

seen = []


@pytest.mark.filterwarnings("ignore")
def test_produce_and_consume(kafkawire_broker):
    producer = KafkaProducer(bootstrap_servers=kafkawire_broker.bootstrap, acks="all")
    assert producer.send("t", b"hello").get(timeout=20).offset == 0
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
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
    )
    assert "5 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.real
def test_port_is_kept_over_restart_and_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        first, pid = broker.bootstrap, broker.pid
        broker.restart()
        assert (broker.bootstrap, broker.pid == pid) == (first, False)
        broker.kill()
        assert not broker.running
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", broker.port), 5)
        broker.start()
        socket.create_connection(("127.0.0.1", broker.port), 5).close()
    assert not broker.running
    assert (tmp_path / "data").is_dir()


@pytest.mark.real
def test_data_folder_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the default is."""
    monkeypatch.chdir(tmp_path)
    with BrokerProcess("a/b") as broker:
        assert (tmp_path / "a" / "b" / "metadata.db").is_file()
        assert str(tmp_path / "a" / "b") in broker.output


@pytest.mark.real
def test_broker_that_cannot_start_reports_reason(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, settings={"num.partitions": "none"})
    with pytest.raises(BrokerFailed) as caught:
        broker.start()
    assert "ended with 2" in str(caught.value)
    assert "num.partitions=none" in str(caught.value)
    broker.stop()  # nothing to do, and no error


@pytest.mark.real
def test_second_broker_on_same_folder_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data"):
        second = BrokerProcess(tmp_path / "data")
        with pytest.raises(BrokerFailed) as caught:
            second.start()
    assert "ended with 1" in str(caught.value)
    assert str(tmp_path / "data") in str(caught.value)


@pytest.mark.real
def test_stop_ends_only_this_child(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "a") as one, BrokerProcess(tmp_path / "b") as two:
        one.stop()
        assert two.running
        assert one.output.count("kafkawire listens on") == 1


def test_environment_variables_are_not_passed_to_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKAWIRE_LISTEN of a developer's shell would move the broker of every test."""
    script = tmp_path / "child.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys
        print([name for name in os.environ if name.startswith("KAFKAWIRE_")], file=sys.stderr)
        """)
    )
    monkeypatch.setenv("KAFKAWIRE_LISTEN", "0.0.0.0:1")
    monkeypatch.setattr(BrokerProcess, "command", lambda self: [sys.executable, str(script)])
    with pytest.raises(BrokerFailed, match=r"(?s)ended with 0.*\['KAFKAWIRE_DATA'\]"):
        BrokerProcess(tmp_path, environ={"KAFKAWIRE_DATA": "x"}).start()


@pytest.mark.slow
def test_broker_that_never_serves_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import time; print('thinking', flush=True); time.sleep(600)"
    monkeypatch.setattr(BrokerProcess, "command", lambda self: [sys.executable, "-c", code])
    broker = BrokerProcess(tmp_path, start_timeout_s=3)  # Python itself must start in this time
    with pytest.raises(BrokerFailed, match="not ready after 3 s\nthinking"):
        broker.start()
    assert not broker.running


def test_pytest_does_not_rewrite_the_broker() -> None:
    """See tests/conftest.py: threads of a broker's start may import at the same time."""
    found = import_module("kafkawire.handlers.produce.handler").__spec__
    assert found is not None
    assert type(found.loader) is SourceFileLoader
