"""Apache Kafka itself, from the jars of the tools: the reference for responses.

One node serves all workers of a test run: the first that needs it starts it, the last one ends it.
(`--dist worksteal` may split these tests between workers.)
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import psutil

from tests.kit.jvm import SHORT_LIVED
from tests.kit.ports import free_ports

START_LIMIT_S = 120.0


def write_properties(folder: Path, more: Mapping[str, str], listener: str = "") -> tuple[Path, str]:
    """The settings of one KRaft node, broker and controller in one JVM; and its address. `more`:
    further settings; `listener`: PROTOCOL://HOST:PORT of a second listener."""
    port, controller = free_ports(2)
    listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"
    protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
    if listener:
        name = listener.partition(":")[0]
        listeners, protocols = f"{listener},{listeners}", f"{protocols},{name}:{name}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": protocols,
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": listeners,
        "advertised.listeners": listeners,
        "log.dirs": str(folder / "data"),
        "offsets.topic.replication.factor": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "3",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        **more,
    }
    path = folder / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path, f"127.0.0.1:{port}"


def start(
    folder: Path, classpath: str, more: Mapping[str, str] | None = None, listener: str = ""
) -> tuple[int, str]:
    """(process id, address) of a new node that answers."""
    properties, address = write_properties(folder, more or {}, listener)
    run = ["java", "-Xmx512m", *SHORT_LIVED, "-cp", classpath]
    cluster_id = base64.urlsafe_b64encode(b"a" + os.urandom(15)).decode().rstrip("=")
    tool = [*run, "kafka.tools.StorageTool", "format", "--standalone"]
    tool += ["-t", cluster_id, "-c", str(properties)]
    subprocess.run(tool, check=True, capture_output=True, timeout=START_LIMIT_S)
    with (folder / "server.log").open("wb") as log:
        command = [*run, "kafka.Kafka", str(properties)]
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    end = time.monotonic() + START_LIMIT_S
    while not answers(address):
        assert child.poll() is None, (folder / "server.log").read_text()[-3000:]
        assert time.monotonic() < end, "Apache Kafka does not answer"
        time.sleep(0.1)
    child.returncode = 0  # another worker may end it: no warning that it runs on
    return child.pid, address


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def stop(pid: int) -> None:
    """End the node that `start` started, here or in another worker of this run.

    It is killed: its data is not needed any more, and a clean stop may take half a minute.
    """
    try:
        node = psutil.Process(pid)
        assert "kafka.Kafka" in node.cmdline()
        node.kill()  # its parent may be another worker, so there is nothing to wait for
    except psutil.NoSuchProcess:
        return


@contextmanager
def shared_kafka(
    folder: Path, classpath: str, more: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The address of the one node of all that use `folder`, with `more` settings."""
    folder.mkdir(exist_ok=True)
    note = folder / "node.json"
    with exclusive(folder):
        if note.exists():
            state = json.loads(note.read_text())
        else:
            pid, address = start(Path(mkdtemp(dir=folder)), classpath, more)
            state = {"pid": pid, "address": address, "users": 0}
        state["users"] += 1
        note.write_text(json.dumps(state))
    try:
        yield state["address"]
    finally:
        with exclusive(folder):
            state = json.loads(note.read_text())
            state["users"] -= 1
            note.write_text(json.dumps(state))
            if not state["users"]:
                note.unlink()
                stop(state["pid"])


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
