"""Brokers in the test's own process: in a thread, and on its event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

import kafkawire.testing
from kafkawire.client.cluster import Cluster
from kafkawire.testing import BrokerFailed

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))


def descriptors() -> dict[str, str]:
    """Open descriptors of this process and what they refer to."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # that of listdir itself
            continue
    return found


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that threads, descriptors, children and temporary folders are as before."""
    gc.collect()
    threads, before = set(threading.enumerate()), descriptors()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    folders = set(Path(tempfile.gettempdir()).iterdir())
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - threads:
        thread.join(30)  # one that is ending, as of a client that was closed
    assert set(threading.enumerate()) <= threads
    assert descriptors().items() <= before.items()  # those of earlier tests may close meanwhile
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limit
    assert set(Path(tempfile.gettempdir()).iterdir()) == folders


def use(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    assert producer.send("t", b"hello").get(timeout=90).offset == 0
    producer.close()
    consumer = KafkaConsumer(
        "t", bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"hello"
    consumer.close()


@pytest.mark.slow
def test_thread(tmp_path: Path) -> None:
    with nothing_left():
        with kafkawire.testing.broker() as b:
            use(b.bootstrap)
            assert b.data.is_dir()
        assert not b.data.exists()
        with (
            pytest.raises(OSError, match="refused"),
            socket.create_connection(("127.0.0.1", b.port), 5),
        ):
            pass


@pytest.mark.slow
async def test_own_event_loop() -> None:
    with nothing_left():
        async with kafkawire.testing.async_broker() as b:
            await asyncio.to_thread(use, b.bootstrap)
        assert not b.data.exists()
        await asyncio.get_running_loop().shutdown_default_executor()
    assert len(asyncio.all_tasks()) == 1


def test_clients_that_stay_connected_are_disconnected() -> None:
    with nothing_left():
        with kafkawire.testing.broker() as b:
            client = socket.create_connection(("127.0.0.1", b.port), 5)
        client.settimeout(20)
        assert client.recv(1) == b""
        client.close()


def test_folder_and_settings_are_chosen(tmp_path: Path) -> None:
    for _ in range(2):
        settings = {"num.partitions": 3}
        with kafkawire.testing.broker(tmp_path / "data", settings=settings) as b:
            assert b.data == tmp_path / "data"
            with Cluster(b.bootstrap) as cluster:
                assert cluster.nodes() == [1]
    assert (tmp_path / "data").is_dir()


def test_two_brokers_and_more_listeners() -> None:
    with (
        nothing_left(),
        kafkawire.testing.broker(listeners=["OTHER://127.0.0.1:0"]) as one,
        kafkawire.testing.broker() as two,
    ):
        assert one.port != two.port
        assert one.addresses["PLAINTEXT"] == one.bootstrap
        with Cluster(one.addresses["OTHER"]) as cluster:
            assert cluster.nodes() == [1]
        for each in (one, two):
            with Cluster(each.bootstrap) as cluster:
                assert cluster.metadata(None).topics == []


def test_failure_of_the_test_is_passed_on() -> None:
    with nothing_left(), pytest.raises(KeyError), kafkawire.testing.broker():
        raise KeyError("a failure of the test")


def test_cancelled_test_closes_its_broker() -> None:
    async def run(started: asyncio.Event) -> None:
        async with kafkawire.testing.async_broker():
            started.set()
            await asyncio.sleep(1000)

    async def cancel() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(run(started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with nothing_left():
        asyncio.run(cancel())


def test_wrong_settings_are_named() -> None:
    with nothing_left():
        for settings, sentence in (
            ({"num.partitions": "none"}, "num.partitions=none: it must be a whole number from"),
            ({"num.partition": 1}, "num.partition: unknown setting, did you mean num.partitions?"),
            ({"listener.name.x.max.connections": 1}, "no such listener"),
            ({"listener.name.plaintext.max.connections": 0}, "it must be a whole number from 1"),
        ):
            with (
                pytest.raises(BrokerFailed, match=sentence),
                kafkawire.testing.broker(settings=settings),
            ):
                pass


def test_wrong_listeners_are_named() -> None:
    for text in ("127.0.0.1:0", "OTHER://127.0.0.1", "PLAINTEXT://127.0.0.1:0"):
        with (
            pytest.raises(BrokerFailed, match=f"listeners={text}: "),
            kafkawire.testing.broker(listeners=[text]),
        ):
            pass


def test_port_in_use_is_named() -> None:
    with nothing_left(), socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = f"^listen=127.0.0.1:{port}: another process listens there$"
        with pytest.raises(BrokerFailed, match=sentence), kafkawire.testing.broker(port=port):
            pass


def test_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        nothing_left(),
        pytest.raises(BrokerFailed, match=f"{tmp_path}/file"),
        kafkawire.testing.broker(tmp_path / "file"),
    ):
        pass


def test_folder_in_use_is_named(tmp_path: Path) -> None:
    with (
        nothing_left(),
        kafkawire.testing.broker(tmp_path),
        pytest.raises(BrokerFailed, match=str(tmp_path)),
        kafkawire.testing.broker(tmp_path),
    ):
        pass


@pytest.mark.slow
def test_snapshots(tmp_path: Path) -> None:
    with nothing_left(), kafkawire.testing.broker(tmp_path / "data") as b:
        use(b.bootstrap)
        with pytest.raises(ValueError, match=r"^snapshot\(to\): .* data=FOLDER, and after its end"):
            b.snapshot("to")
    for _ in range(2):
        with nothing_left(), kafkawire.testing.broker(snapshot=tmp_path / "data") as b:
            assert [record.value for record in b.records("t")] == [b"hello"]


async def test_clock_of_the_loop_is_not_moved() -> None:
    with pytest.raises(ValueError, match=r"^clock=manual: .*, use broker\(\)$"):
        async with kafkawire.testing.async_broker(clock="manual"):
            pass


def test_encryption_leaves_nothing() -> None:
    with nothing_left(), kafkawire.testing.broker(tls=True) as b:
        assert b.client_settings()["security.protocol"] == "SSL"
