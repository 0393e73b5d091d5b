"""Apache Kafka itself as a child process, from the jars of the tools: the oracle of answers."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

START_LIMIT_S = 120.0


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


class ApacheKafka:
    """One KRaft node, broker and controller in one JVM. `classpath` holds its jars."""

    def __init__(self, folder: Path, classpath: str) -> None:
        self.folder = folder
        self.classpath = classpath
        self.port, self._controller = free_ports(2)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _properties(self) -> Path:
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": listeners,
            "advertised.listeners": listeners,
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
        }
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def start(self) -> None:
        properties = self._properties()
        run = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", self.classpath]
        cluster_id = base64.urlsafe_b64encode(b"a" + os.urandom(15)).decode().rstrip("=")
        tool = [*run, "kafka.tools.StorageTool", "format", "--standalone"]
        subprocess.run(
            [*tool, "-t", cluster_id, "-c", str(properties)],
            check=True,
            capture_output=True,
            timeout=START_LIMIT_S,
        )
        with (self.folder / "server.log").open("wb") as log:
            self._child = subprocess.Popen(
                [*run, "kafka.Kafka", str(properties)], stdout=log, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + START_LIMIT_S
        while not self._answers():
            assert self._child.poll() is None, (self.folder / "server.log").read_text()[-3000:]
            assert time.monotonic() < end, "Apache Kafka does not answer"
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(30)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
