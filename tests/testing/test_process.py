"""A broker as a child process: BrokerProcess, and the fork server that starts it.

Covers: kafkawire.forkserver
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.offsets import leaders
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.testing import (
    TEST_SETTINGS,
    BrokerFailed,
    BrokerProcess,
    TopicConsumer,
    TopicProducer,
)
from kafkawire.testing.forks import (
    ForkServer,
    ForkServerFailed,
    Start,
    find_or_start_server,
    inherited_environ,
)
from kafkawire.testing.topics import create_topic, unique_name
from tests.kit.ports import free_ports
from tests.kit.waiting import wait_until


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
def test_port_is_the_one_it_listens_on_where_another_is_advertised(tmp_path: Path) -> None:
    port, advertised = free_ports(2)
    words = ["--advertise", f"127.0.0.1:{advertised}"]
    with BrokerProcess(tmp_path / "data", port=port, arguments=words) as broker:
        assert broker.port == port
        broker.restart()
        socket.create_connection(("127.0.0.1", port), 5).close()


@pytest.mark.real
def test_workers_keep_their_ports_and_records(tmp_path: Path) -> None:
    def addresses() -> dict[int, tuple[str, int]]:
        with contextlib.closing(ClientConnection("127.0.0.1", broker.port)) as asking:
            found = asking.request(3, MetadataRequest(topics=None)).brokers
        return {each.node_id: (each.host, each.port) for each in found}

    with BrokerProcess(tmp_path / "data", settings=TEST_SETTINGS, workers=2) as broker:
        first = broker.bootstrap
        wait_until(lambda: len(addresses()) == 2, "both are known")
        before = addresses()
        assert broker.port not in {port for _, port in before.values()}
        name = unique_name("t")
        create_topic(broker.bootstrap, name, 4)
        for index in range(4):
            TopicProducer(broker.bootstrap).send(name, b"%d" % index, partition=index)
        broker.kill()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", broker.port), 5)
        broker.restart()
        assert broker.bootstrap == first
        wait_until(lambda: addresses() == before, "both are back at their ports")
        read = TopicConsumer(broker.bootstrap).read(name, 4)
        assert sorted(record.value or b"" for record in read) == [b"0", b"1", b"2", b"3"]


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


@pytest.mark.real
def test_environment_is_passed_without_settings_of_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKAWIRE_SET_NUM_PARTITIONS of a developer's shell would change the broker of every test;
    other variables may have changed since the fork server was started."""
    find_or_start_server()
    monkeypatch.setenv("KAFKAWIRE_SET_NUM_PARTITIONS", "7")
    with BrokerProcess(tmp_path) as broker:
        assert default_partitions(broker) == 1
    environ = {"KAFKAWIRE_SET_NUM_PARTITIONS": "5"}
    with BrokerProcess(tmp_path, environ=environ) as broker:
        assert default_partitions(broker) == 5


def default_partitions(broker: BrokerProcess) -> int:
    """num.partitions of a running broker."""
    topic = unique_name("t")
    create_topic(broker.bootstrap, topic, -1)
    with Cluster(broker.bootstrap) as cluster:
        return len(leaders(cluster, [topic]))


@pytest.mark.real
def test_broker_that_is_not_ready_in_time_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "other") as other:
        broker = BrokerProcess(tmp_path / "slow", start_timeout_s=0.0)
        with pytest.raises(BrokerFailed, match="not ready after 0 s"):
            broker.start()
        assert not broker.running
        assert other.running


@pytest.mark.real
def test_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = BrokerProcess(tmp_path, port=port)
        with pytest.raises(BrokerFailed) as caught:
            broker.start()
    first = str(caught.value).splitlines()[0]
    assert first == (
        f"the broker ended with 2: listen=127.0.0.1:{port}: another process listens there"
    )
    assert not broker.running


@pytest.mark.real
def test_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokerFailed, match=f"data={tmp_path}/file: it must be a folder"):
        BrokerProcess(tmp_path / "file").start()


@pytest.mark.real
def test_settings_may_be_numbers_and_booleans(tmp_path: Path) -> None:
    settings = {"num.partitions": 3, "auto.create.topics.enable": False}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        assert default_partitions(broker) == 3
        assert "auto.create.topics.enable=false" in broker.command()


@pytest.mark.real
def test_more_listeners_and_a_chosen_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with BrokerProcess(tmp_path, listeners=[f"SECOND://127.0.0.1:{port}"]) as broker:
        assert broker.port != port
        socket.create_connection(("127.0.0.1", port), 5).close()
        socket.create_connection(("127.0.0.1", broker.port), 5).close()


@pytest.mark.real
def test_listeners_get_ports_that_stay(tmp_path: Path) -> None:
    given = ["SECOND://127.0.0.1:0", "OUT=SASL_PLAINTEXT://127.0.0.1:0"]
    with BrokerProcess(tmp_path, settings=TEST_SETTINGS, listeners=given) as broker:
        addresses = broker.addresses
        assert list(addresses) == ["PLAINTEXT", "SECOND", "OUT"]
        assert addresses["PLAINTEXT"] == broker.bootstrap
        assert broker.listeners == [
            f"SECOND=PLAINTEXT://{addresses['SECOND']}",
            f"OUT=SASL_PLAINTEXT://{addresses['OUT']}",
        ]
        broker.restart()
        assert broker.addresses == addresses
        with Cluster(addresses["SECOND"]) as cluster:
            assert cluster.nodes() == [1]


@pytest.mark.real
def test_snapshot_is_the_state_of_another_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=TEST_SETTINGS) as broker:
        TopicProducer(broker.bootstrap).send("t", b"before")
        folder = broker.snapshot(tmp_path / "snapshot")
        assert broker.running
        TopicProducer(broker.bootstrap).send("t", b"after")
        with (
            BrokerProcess(settings=TEST_SETTINGS, snapshot=folder) as one,
            BrokerProcess(settings=TEST_SETTINGS, snapshot=folder) as two,
        ):
            TopicProducer(one.bootstrap).send("t", b"in one")
            assert [row.value for row in one.records("t")] == [b"before", b"in one"]
            assert [row.value for row in two.records("t")] == [b"before"]
        assert [row.value for row in broker.records("t")] == [b"before", b"after"]


@pytest.mark.real
def test_temporary_folder_is_deleted_or_kept() -> None:
    with BrokerProcess(settings=TEST_SETTINGS) as broker:
        used = sum(each.stat().st_blocks * 512 for each in broker.data.rglob("*"))
        assert used < 6 << 20
    assert not broker.data.exists()
    with pytest.raises(KeyError) as caught, broker_of_failed_test() as broker:
        raise KeyError("a failure of the test")
    assert str(broker.data) in caught.value.__notes__[0]
    assert broker.data.is_dir()
    shutil.rmtree(broker.data)
    broker = BrokerProcess(settings={"num.partitions": "none"})
    with pytest.raises(BrokerFailed), broker:
        pass
    assert not broker.data.exists()


def broker_of_failed_test() -> BrokerProcess:
    return BrokerProcess(settings=TEST_SETTINGS)


PARENT = """
import os, sys, time
from kafkawire.testing import BrokerProcess
from kafkawire.testing.forks import find_or_start_server
broker = BrokerProcess(sys.argv[1])
broker.start()
extra = BrokerProcess(sys.argv[2], environ={"KAFKAWIRE_LOG_LEVEL": "warning"})
extra.start()
if sys.argv[3] == "forked":
    if os.fork() == 0:  # holds the connection to the fork server open
        time.sleep(1000)
servers = [find_or_start_server()._process.pid, extra._server._process.pid]
print(broker.pid, extra.pid, *servers, flush=True)
sys.stdin.read()
"""


TEST = """
import os
import time
from kafkawire.testing.forks import find_or_start_server


def test_that_is_killed(kafkawire_broker, kafkawire_session_broker):
    brokers = kafkawire_broker.pid, kafkawire_session_broker.pid
    print("PIDS", *brokers, find_or_start_server()._process.pid, os.getpid(), flush=True)
    time.sleep(1000)
"""


@pytest.mark.real
@pytest.mark.slow
def test_brokers_end_with_a_killed_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "test_it.py"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    with subprocess.Popen(
        [*command, "--basetemp", str(tmp_path / "temp")],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        line = next(line for line in parent.stdout if "PIDS" in line)
        pids = [int(word) for word in line.partition("PIDS")[2].split()]
        assert len(pids) == 4
        assert not any(map(ended, pids))
        parent.kill()
    end = time.monotonic() + 60
    while not all(map(ended, pids)):
        assert time.monotonic() < end
        time.sleep(0.02)


def ended(pid: int) -> bool:
    """Whether there is no such process, or it waits for its parent to notice its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return True


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "forked", "ended"])
def test_brokers_end_with_their_parent(tmp_path: Path, how: str) -> None:
    """However it ends: SIGKILL; SIGKILL while a process that it forked still runs; and an end
    without stopping the broker."""
    command = [sys.executable, "-c", PARENT, str(tmp_path / "a"), str(tmp_path / "b"), how]
    parent = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    pids: list[int] = []
    try:
        pids += [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 4
        assert not any(ended(pid) for pid in pids)
        if how != "ended":
            parent.kill()
        parent.stdin.close()
        parent.wait()
        end = time.monotonic() + 60
        while not all(ended(pid) for pid in pids):
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)  # the process that it has forked
        for pid in pids:
            if not ended(pid):
                os.kill(pid, signal.SIGKILL)
        parent.stdout.close()


@pytest.mark.real
def test_brokers_end_with_a_killed_fork_server(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "a", environ={"A": "b"}) as broker:
        assert broker._server is not None
        broker._server._process.kill()
        broker._server._process.wait()
        broker.kill()  # waits for its end
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", broker.port), 5)
        broker.restart()
        assert broker.running


@pytest.mark.real
def test_fork_server_that_fails_reports_its_output() -> None:
    server = ForkServer({**inherited_environ(), "PYTHONHOME": "/nowhere"})
    with pytest.raises(ForkServerFailed, match=r"(?s)it ended with 1.*No module named"):
        server.start(Start([], {}, "/"))
    server.close()


@pytest.mark.real
def test_brokers_are_started_by_several_threads(tmp_path: Path) -> None:
    brokers = [BrokerProcess(tmp_path / str(number)) for number in range(4)]
    threads = [threading.Thread(target=broker.start) for broker in brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({broker.port for broker in brokers if broker.running}) == 4
    for broker in brokers:
        broker.stop()


@pytest.mark.real
def test_broker_that_ends_by_itself_is_not_an_error(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        end_from_outside(broker)
        broker.restart()
        assert broker.running
        end_from_outside(broker)


def end_from_outside(broker: BrokerProcess) -> None:
    os.kill(broker.pid, signal.SIGKILL)
    while broker.running:
        time.sleep(0.01)
