"""Starts and ends of `serve --workers`: folders of other numbers of brokers, refusals, signals.

Covers: kafkawire.supervisor.run, kafkawire.supervisor.pages, kafkawire.server.worker.link,
kafkawire.server.worker.ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, STDOUT

import psutil
import pytest

from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.testing.control import BrokerFailed
from kafkawire.testing.process import BrokerProcess
from tests.kit.client import Client
from tests.kit.cluster import SETTINGS
from tests.kit.waiting import wait_until
from tests.kit.workers import Workers
from tests.real.librdkafka import produce


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def send(broker: BrokerProcess, topic: str, values: list[bytes], partition: int = 0) -> None:
    rows = [{"value": value, "partition": partition} for value in values]
    produce(broker.bootstrap, topic, rows, acks="all")


def test_stop_leaves_no_processes(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        children = psutil.Process(workers.pid).children(recursive=True)
        pids = [workers.pid, *(each.pid for each in children)]
        assert len(pids) >= 3
        workers.stop()
        assert [pid for pid in pids if is_running(pid)] == []
        assert workers.output.count("kafkawire listens on") == 1
        assert "all workers have ended" in workers.output
        workers.start()
        workers.create("t", 2)
        send(workers, "t", [b"x"])


def test_topic_of_the_first_client_is_led_by_all_workers(tmp_path: Path) -> None:
    """It connects as soon as the address listens, and is answered when all workers can lead."""

    async def create(port: int) -> dict[int, int]:
        client = await Client.connect(port)
        try:
            request = CreateTopicsRequest([CreatableTopic("first", 6, 1)], 30_000)
            (made,) = (await client.call(request, 5)).topics
            assert made.error_code == 0
            topic = MetadataRequestTopic(name="first")
            (found,) = (await client.call(MetadataRequest([topic]), 8)).topics
        finally:
            await client.close()
        return Counter(each.leader_id for each in found.partitions)

    with Workers(tmp_path) as workers, ThreadPoolExecutor() as threads:
        workers.stop()
        started = threads.submit(workers.start)
        wait_until(lambda: is_listening(workers.port), "the address")
        assert asyncio.run(create(workers.port)) == {1: 3, 2: 3}
        started.result()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_workers_end_with_the_supervisor(tmp_path: Path) -> None:
    """They close cleanly: what was acknowledged is there, and the next start has a clean end."""
    workers = Workers(tmp_path)
    workers.start()
    workers.create("t", 2)
    for partition in (0, 1):
        send(workers, "t", [b"x", b"y"], partition)
    pids = list(workers.worker_pids().values())
    assert len(pids) == 2
    workers.kill()  # waits until nobody writes to its output
    wait_until(lambda: not any(is_running(pid) for pid in pids), "the workers have ended")
    assert workers.output.count("the supervisor of the workers has ended") == 2
    with workers:
        assert workers.read_all("t", 2) == {0: [b"x", b"y"], 1: [b"x", b"y"]}


def test_stop_with_worker_that_hangs(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        pids = workers.worker_pids()
        workers.signal_worker(2, signal.SIGSTOP)
        workers.stop(90)
        assert not any(is_running(pid) for pid in pids.values())


@pytest.mark.parametrize("ready", [0, 1])
def test_stop_during_start(tmp_path: Path, ready: int) -> None:
    """When the first worker starts, and when the others do."""
    words = ["serve", "--workers=3", "--worker-ports=0,0,0", "--listen=127.0.0.1:0"]
    command = [sys.executable, "-P", "-m", "kafkawire", *words, f"--data={tmp_path}"]
    with subprocess.Popen(command, stdout=PIPE, stderr=STDOUT, text=True) as process:
        assert process.stdout is not None
        seen = ""
        while seen.count("started worker") <= ready:
            seen += process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        seen += process.stdout.read()  # until the last worker has ended
        assert process.wait(60) == 0
    assert "kafkawire listens on" not in seen
    assert "all workers have ended" in seen


def test_worker_that_cannot_start_again_leaves_the_others_serving(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        leaders = workers.create("t", 2)
        folder = tmp_path / "brokers" / "2"
        folder.rename(tmp_path / "two")
        folder.write_bytes(b"")  # no folder can be made there
        workers.kill_worker(2)
        wait_until(lambda: "worker 2 has ended with code 1" in workers.output, "it cannot start")
        send(workers, "t", [b"x"], leaders.index(1))
        folder.unlink()
        (tmp_path / "two").rename(folder)
        wait_until(lambda: workers.output.count("worker 2 serves at") == 2, "it serves again")
        send(workers, "t", [b"y"], leaders.index(2))


@pytest.mark.parametrize("taken", ["shared", "own"])
def test_taken_port_is_one_sentence_before_anything_starts(tmp_path: Path, taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = BrokerProcess(
            tmp_path / "data",
            port=port if taken == "shared" else 0,
            arguments=["--workers", "2", "--worker-ports", f"0,{port if taken == 'own' else 0}"],
        )
        with pytest.raises(BrokerFailed, match=r"ended with 2: .*another process listens there"):
            broker.start()
    assert not (tmp_path / "data").exists()


def test_folder_of_one_broker_is_served_by_two(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as one:
        produce(one.bootstrap, "old", [{"value": b"x"}], acks="all")
    with Workers(tmp_path) as two:
        assert two.leaders_of("old", 1) == {0: 1}
        assert two.read_all("old", 1) == {0: [b"x"]}
        assert sorted(two.create("new", 2)) == [1, 2]
        send(two, "old", [b"y"])
        send(two, "new", [b"z"], 1)
        assert two.read_all("new", 2) == {0: [], 1: [b"z"]}


def test_folder_of_more_brokers_is_handed_over_to_those_that_are_left(tmp_path: Path) -> None:
    with Workers(tmp_path, 3) as three:
        assert sorted(three.create("t", 3)) == [1, 2, 3]
        for partition in range(3):
            send(three, "t", [b"x"], partition)
    with Workers(tmp_path, 1) as one:
        assert "has more brokers than --workers 1: 2, 3" in one.output
        wait_until(lambda: sorted(one.worker_pids()) == [1], "the end of workers 2 and 3")
        wait_until(lambda: set(one.leaders_of("t", 3).values()) == {1}, "worker 1 to lead all")
        assert one.read_all("t", 3) == {0: [b"x"], 1: [b"x"], 2: [b"x"]}
        for partition in range(3):
            send(one, "t", [b"y"], partition)
        assert one.create("new", 2) == [1, 1]
        assert "broker 2 has handed over what it led and has ended" in one.output
    with Workers(tmp_path, 3) as three:
        assert sorted(three.create("newer", 3)) == [1, 2, 3]
        assert three.read_all("t", 3) == {key: [b"x", b"y"] for key in range(3)}


def test_refused_start_ends_all_with_its_sentence(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        workers.create("t", 2)
        send(workers, "t", [b"x"])
    (tmp_path / "metadata.db").rename(tmp_path / "metadata.old")
    with pytest.raises(BrokerFailed, match=r"ended with 2: .*metadata.db is missing or empty"):
        workers.start()
    assert not (tmp_path / "metadata.db").exists(), "another worker has created it"
    (tmp_path / "metadata.old").rename(tmp_path / "metadata.db")
    with workers:
        assert workers.read_all("t", 2) == {0: [b"x"], 1: []}


@pytest.mark.parametrize("count", [2, 4])
def test_first_start_of_empty_folder(tmp_path: Path, count: int) -> None:
    for at in range(2):
        with Workers(tmp_path / str(at), count) as workers:
            assert sorted(workers.worker_pids()) == list(range(1, count + 1))
            assert len(set(workers.create("t", count))) == count
            assert "restarts" not in workers.output
        shutil.rmtree(tmp_path / str(at))


def test_pages_of_all_workers(tmp_path: Path) -> None:
    with Workers(tmp_path, settings={"metrics.listener": "127.0.0.1:0"}) as workers:
        workers.create("t", 2)
        found = workers.output.partition("metrics of all workers on http://")[2]
        url = f"http://{found.partition('/')[0]}"
        health = json.loads(urllib.request.urlopen(f"{url}/health").read())
        assert health["status"] == "ok"
        assert [each["node_id"] for each in health["workers"].values()] == [1, 2]

        def page() -> str:
            return str(urllib.request.urlopen(f"{url}/metrics").read(), "utf-8")

        for node in (1, 2):  # the topic was created at one of them
            wait_until(lambda: f'kafkawire_topics{{node="{node}"}} 1.0' in page(), "topic")  # noqa: B023
        assert 'kafkawire_worker_up{node="2"} 1' in page()
        assert page().count("# TYPE kafkawire_topics gauge") == 1
        for path, code in (("/nothing", 404), ("/health/", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url + path)
            assert refused.value.code == code
            refused.value.close()
        workers.signal_worker(2, signal.SIGSTOP)
        with pytest.raises(urllib.error.HTTPError) as ill:
            urllib.request.urlopen(f"{url}/health")
        assert ill.value.code == 503
        assert json.loads(ill.value.read())["workers"]["1"]["status"] == "ok"
        workers.signal_worker(2, signal.SIGCONT)


def test_reload_is_for_all_workers(tmp_path: Path) -> None:
    file = tmp_path / "kafkawire.toml"
    file.write_text("[settings]\nnum.partitions = 1\n")
    with Workers(tmp_path / "data", arguments=("--config", str(file))) as workers:
        file.write_text('log-level = "debug"\n[settings]\nnum.partitions = 1\n')
        os.kill(workers.pid, signal.SIGHUP)
        wait_until(
            lambda: workers.output.count("SIGHUP: the log level is now debug") == 2, "both reload"
        )


def test_systemd_is_notified_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        workers = Workers(tmp_path / "data")
        workers.environ["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        with workers:
            assert manager.recv(100) == b"READY=1"
            assert len(workers.worker_pids()) == 2
        assert manager.recv(100) == b"STOPPING=1"
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)
