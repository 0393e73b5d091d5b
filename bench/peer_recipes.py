"""How each peer is installed and started, as Recipes: Apache Kafka, kfake, klite, Nisshi.

Installing is a shell script per peer under peers/, into KAFKAWIRE_PEERS (~/.cache/kafkawire-peers);
klite is not installed but found: $KLITE names its binary, else it is searched on PATH. A peer that
is not available on this machine is left out and named with the reason. Called by the comparison
(bench.peers) and by `python -m bench --broker`.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.client import BENCH
from bench.server import Recipe, free_port

# What install.sh ends with where a peer's tools are missing.
NOT_HERE = 3
# A cold JVM on one core has a fifth of the throughput of a warm one. With an fsync for each append
# the JVM has a smaller share of the time.
KAFKA_WARM_S, KAFKA_FSYNC_WARM_S = 60.0, 30.0

# Without S3 klite deletes its oldest data at this size, whether or not it has been read: more than
# any cell writes (its default is 1 GiB).
KLITE_LOG_BYTES = 4 << 30

# The options of Kafka's own start script, the heap's first size excepted.
JVM = (
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

KAFKA_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
# The comparison stops a broker's process while another one is measured.
broker.session.timeout.ms=3600000
# A deleted topic's files must go before the next cell, not a minute later.
log.segment.delete.delay.ms=500
"""


class NotInstalled(Exception):
    """Raised with one sentence on why a peer is not available here."""


def home() -> Path:
    """Where peers are installed."""
    return Path(os.environ.get("KAFKAWIRE_PEERS", Path.home() / ".cache" / "kafkawire-peers"))


def install(peer: str) -> None:
    """Run the peer's script; NotInstalled where that fails."""
    script = BENCH / "peers" / peer / "install.sh"
    done = subprocess.run([str(script), str(home())], capture_output=True, text=True, check=False)
    if done.returncode == NOT_HERE:
        raise NotInstalled(done.stdout.strip())
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise NotInstalled(f"{peer} does not install: {lines[-1] if lines else 'no reason given'}")


def java(main: str, *words: str, options: Sequence[str] = JVM) -> list[str]:
    """The command line of a class of Apache Kafka's."""
    logging = f"-Dlog4j2.configurationFile={BENCH / 'peers' / 'kafka' / 'log4j2.properties'}"
    return ["java", *options, logging, "-cp", f"{home()}/kafka/libs/*", main, *words]


def tools_jar() -> Path | None:
    """kafka-tools-VERSION.jar, where Kafka is installed."""
    found = sorted((home() / "kafka" / "libs").glob("kafka-tools-[0-9]*.jar"))
    return found[0] if found else None


def versions() -> dict[str, str]:
    """Versions that the scripts install; Kafka's is the installed one."""
    go = (BENCH / "peers" / "kfake" / "go.mod").read_text()
    nisshi = (BENCH / "peers" / "nisshi" / "install.sh").read_text()
    jar = tools_jar()
    klite_found = klite_binary()
    found = {
        "Apache Kafka": jar.stem.removeprefix("kafka-tools-") if jar else "",
        "kfake": re.findall(r"pkg/kfake (\S+)", go)[0],
        "klite": version_of(klite_found) if klite_found else "",
        "Nisshi": re.findall(r"^version=(\S+)", nisshi, re.MULTILINE)[0],
    }
    return {name: version for name, version in found.items() if version}


def version_of(binary: Path) -> str:
    """The last word of what `--version` prints; a question mark where that says nothing."""
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return "?"
    return (done.stdout.split() or ["?"])[-1]


def format_storage(words: Sequence[str]) -> None:
    """Run Kafka's StorageTool; NotInstalled where that fails."""
    command = java("kafka.tools.StorageTool", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalled(f"Kafka's storage can't be formatted: {done.stderr[-300:]}")


def kafka(fsync: bool = False) -> Recipe:
    """Apache Kafka, one KRaft node; `fsync`: at every append (Kafka acks from the page cache)."""

    def prepare(port: int, folder: Path) -> None:
        if (folder / "log" / "meta.properties").exists():
            return
        settings = KAFKA_SETTINGS.format(port=port, controller=free_port(), folder=folder)
        if fsync:
            settings += "log.flush.interval.messages=1\n"
        (folder / "server.properties").write_text(settings)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        words = ["format", "--standalone", "-t", cluster.replace("-", "A")]
        words += ["-c", str(folder / "server.properties")]
        format_storage(words)

    def command(port: int, folder: Path) -> list[str]:
        return java("kafka.Kafka", str(folder / "server.properties"))

    if fsync:
        return Recipe("Kafka fsync", command, prepare, durable=True, warm_s=KAFKA_FSYNC_WARM_S)
    return Recipe("Kafka", command, prepare, warm_s=KAFKA_WARM_S)


def kfake() -> Recipe:
    """franz-go's fake cluster: all in memory."""

    def command(port: int, folder: Path) -> list[str]:
        return [str(home() / "bin" / "kfake-bench"), str(port)]

    return Recipe("kfake", command, warm_s=2.0)


def klite_binary() -> Path | None:
    """The program that $KLITE names, else klite on PATH."""
    found = shutil.which(os.environ.get("KLITE") or "klite")
    return Path(found).absolute() if found else None


def klite() -> Recipe:
    """klite without S3, as it comes: one fsync every 2 ms, before every ack. NotInstalled where
    there is no binary."""
    binary = klite_binary()
    if binary is None:
        named = os.environ.get("KLITE")
        raise NotInstalled(
            f"KLITE is {named}, which is no program" if named
            else "no klite on PATH, and KLITE names none"
        )  # fmt: skip

    def command(port: int, folder: Path) -> list[str]:
        words = [str(binary), "--listen", f"127.0.0.1:{port}", "--data-dir", str(folder)]
        return [*words, "--log-level", "warn", "--wal-max-disk-size", str(KLITE_LOG_BYTES)]

    return Recipe("klite", command, durable=True, only_durable=True, warm_s=2.0)


def nisshi() -> Recipe:
    """Nisshi on SQLite (WAL, synchronous=normal: no fsync before an ack)."""

    def command(port: int, folder: Path) -> list[str]:
        url = f"tcp://127.0.0.1:{port}"
        words = [str(home() / "bin" / "nisshi"), "broker", "--silent", "--listener-url", url]
        words += ["--advertised-listener-url", url, "--storage-engine", "sqlite://nisshi.db"]
        return [*words, "--group-initial-rebalance-delay", "0s"]

    return Recipe(
        "Nisshi", command, warm_s=2.0, slow=True, env={"RUST_LOG": "warn"}, in_folder=True
    )


# name on the command line -> (folder under peers/, None where nothing is installed; recipe)
PEERS: dict[str, tuple[str | None, Callable[[], Recipe]]] = {
    "kafka": ("kafka", kafka),
    "kafka-fsync": ("kafka", lambda: kafka(fsync=True)),
    "kfake": ("kfake", kfake),
    "klite": (None, klite),
    "nisshi": ("nisshi", nisshi),
}
DEFAULT_PEERS = ("kafka", "kafka-fsync", "kfake", "klite", "nisshi")
QUICK_PEERS = ("kafka", "kafka-fsync", "kfake", "klite")
# Half an hour to build: only if requested by name.
LONG_TO_BUILD = {"nisshi": Path("bin/nisshi")}


def installed(peer: str, asked: bool = True) -> Recipe:
    """The recipe of a peer, installed if needed; if that takes long, only on request."""
    folder, recipe = PEERS[peer]
    built = LONG_TO_BUILD.get(peer)
    if built and not asked and not (home() / built).exists():
        raise NotInstalled(f"it takes half an hour to build: --with {peer} does it")
    if folder:
        install(folder)
    return recipe()
