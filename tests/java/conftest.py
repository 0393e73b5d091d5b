"""Apache Kafka's own command line tools, Streams, Connect and MirrorMaker 2 as clients, and Apache
Kafka itself for comparisons.

Skipped where there is no Java or no Maven. In CI a machine with both must also have the jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkawire.client.connection import ClientConnection
from kafkawire.messages import find_coordinator, init_producer_id
from tests.java.apache import shared_kafka
from tests.java.brokers import OwnBroker, run_broker
from tests.java.children import JavaChild, compile_programs
from tests.java.tools import ToolServer, run_alone
from tests.java.twins import KEYS, Twins, create, send, wait_for_leaders
from tests.kit.jars import kafka_jars, newer_kafka_jars
from tests.kit.jvm import SHORT_LIVED
from tests.kit.waiting import wait_until
from tests.real.conftest import (  # noqa: F401  (fixtures and a hook, by name)
    OTHER_BROKER,
    START_MS,
    admin,
    bootstrap,
    broker,
    make_topic,
    name,
    ours_only,
    pytest_runtest_makereport,
)

HERE = Path(__file__).parent
TOOLS = "org.apache.kafka.tools."
CLASSES = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsoleConsumer": TOOLS + "consumer.ConsoleConsumer",
    "ConsumerGroupCommand": TOOLS + "consumer.group.ConsumerGroupCommand",
    "ShareGroupCommand": TOOLS + "consumer.group.ShareGroupCommand",
    "ConsoleShareConsumer": TOOLS + "consumer.ConsoleShareConsumer",
}
OPTIONS_FIRST = ("MetadataQuorumCommand", "TransactionsCommand")
"""Tools whose options come before their subcommands."""
ALONE = ("VerifiableConsumer", "VerifiableProducer")
STREAMS_SETTINGS = {
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.assignment.interval.ms": "0",
    "group.streams.assignment.interval.ms": "0",
}
"""For streams groups without delays."""
JVM = ("-Xmx256m", *SHORT_LIVED, "-Xlog:disable")

Tool = Callable[..., str]
Program = Callable[..., JavaChild]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.java)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Serialise the workers of one run, and other runs."""
    place = Path(tempfile.gettempdir()) / f"kafkawire-tests-java-{os.getuid()}.lock"
    with place.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder of jars, downloaded by the first test that needs it."""
    if shutil.which("java") is None:
        pytest.skip("there is no java here")
    return kafka_jars()


@pytest.fixture(scope="session")
def java(jars: Path, bootstrap: str) -> list[str]:  # noqa: F811
    """The command that starts the JVM of a tool."""
    return jvm_command(jars, bootstrap)


def jvm_command(jars: Path, bootstrap: str) -> list[str]:  # noqa: F811
    """Return a command with an archive of loaded classes, which halves the cost of a JVM.

    The first tool that is run writes the archive next to the jars. A JVM that cannot use it runs
    without.
    """
    version = subprocess.run(["java", "-version"], capture_output=True, timeout=30, check=True)
    digest = hashlib.sha256(version.stderr).hexdigest()[:12]
    archive = jars.parent / f"classes-{digest}.jsa"
    classes = ["-cp", f"{jars}/*"]
    with one_at_a_time():
        if not archive.exists():
            new = archive.with_suffix(".new")
            first = ["java", *JVM, f"-XX:ArchiveClassesAtExit={new}", *classes]
            first += [TOOLS + "TopicCommand", "--list", "--bootstrap-server", bootstrap]
            subprocess.run(first, capture_output=True, timeout=120, check=False)
            if new.exists():
                new.rename(archive)
    shared = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
    logging = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
    return ["java", *JVM, *shared, "-Djava.awt.headless=true", logging, *classes]


@pytest.fixture(scope="session")
def newer_jars() -> Path:
    """The folder of Kafka 4.4's jars."""
    if shutil.which("java") is None:
        pytest.skip("there is no java here")
    return newer_kafka_jars()


@pytest.fixture(scope="session")
def newer_java(newer_jars: Path, bootstrap: str) -> list[str]:  # noqa: F811
    """The command that starts the JVM of a tool of Kafka 4.4."""
    return jvm_command(newer_jars, bootstrap)


@pytest.fixture(scope="session")
def programs(jars: Path) -> Path:
    """The folder of the compiled programs."""
    if shutil.which("javac") is None:
        pytest.skip("there is a java here, but no javac")
    with one_at_a_time():
        return compile_programs(jars)


@pytest.fixture(scope="session")
def tool_server(java: list[str], programs: Path) -> Iterator[ToolServer]:
    """One JVM for the calls of all tools."""
    server = ToolServer(program_command(java, programs, "ToolServer"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def newer_tools(newer_java: list[str], programs: Path) -> Iterator[ToolServer]:
    """The same with the tools of Kafka 4.4."""
    server = ToolServer(program_command(newer_java, programs, "ToolServer"))
    yield server
    server.close()


def program_command(java: list[str], programs: Path, *words: str) -> list[str]:
    """Return the command that runs a compiled program with arguments."""
    *options, classes = java
    return [*options, f"{classes}:{programs}", *words]


@pytest.fixture
def tool(tool_server: ToolServer, java: list[str], bootstrap: str) -> Tool:  # noqa: F811
    """tool("TopicCommand", "--list") -> its output. Fails on an exit code other than `code`."""

    def run(
        name: str,  # noqa: F811
        *arguments: str,
        data: str = "",
        code: int | None = 0,
        timeout_s: float = 90,
        stderr: bool = False,
    ) -> str:
        given = [*arguments, "--bootstrap-server", bootstrap]
        if name in OPTIONS_FIRST:
            given = [*given[-2:], *arguments]
        main = CLASSES.get(name, TOOLS + name)
        if name in ALONE:
            done = run_alone(java, main, given, timeout_s)
        else:
            done = tool_server.run(main, given, data, timeout_s)
        assert code is None or done.code == code, (
            f"{name} {' '.join(arguments)} ended with {done.code}\n"
            f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout + done.stderr if stderr else done.stdout

    return run


@pytest.fixture
def program(java: list[str], programs: Path, tmp_path: Path) -> Iterator[Program]:
    """program(class, *arguments) -> a JVM that is started by the test and killed at its end."""
    with run_programs(java, programs, tmp_path) as make:
        yield make


@pytest.fixture
def newer_program(newer_java: list[str], programs: Path, tmp_path: Path) -> Iterator[Program]:
    """The same with the jars of Kafka 4.4."""
    with run_programs(newer_java, programs, tmp_path) as make:
        yield make


@contextmanager
def run_programs(java: list[str], programs: Path, logs: Path) -> Iterator[Program]:
    children: list[JavaChild] = []

    def make(main: str, *arguments: str, heap: str = "256m") -> JavaChild:
        log = logs / f"{main.rpartition('.')[2]}-{len(children)}.log"
        command = program_command(java, programs, main, *arguments)
        command.insert(1 + command.index("-Xmx256m"), f"-Xmx{heap}")
        children.append(JavaChild(command, log))
        return children[-1]

    yield make
    for child in children:
        child.kill()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[OwnBroker]:
    """A broker for this test alone."""
    with run_broker(tmp_path / "broker") as started:
        yield started


@pytest.fixture(scope="session")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One node of Apache Kafka for all tests of this folder, in all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with shared_kafka(run / "apache", f"{jars}/*") as address:
        yield address


@pytest.fixture(scope="session")
def newer_kafka(newer_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One node of Kafka 4.4, whose streams groups have no delays."""
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with shared_kafka(run / "apache-4.4", f"{newer_jars}/*", STREAMS_SETTINGS) as address:
        yield address


@pytest.fixture(scope="module")
def twins(kafka: str, bootstrap: str) -> Iterator[Twins]:  # noqa: F811
    """Both brokers, once they return coordinators and producer ids."""
    if OTHER_BROKER:
        pytest.skip("compares ours with Apache Kafka")
    both = []
    for address in (kafka, bootstrap):
        host, _, port = address.rpartition(":")
        both.append(ClientConnection(host, int(port)))
    found = Twins(*both)
    find = find_coordinator.FindCoordinatorRequest(key="warm", key_type=0)
    producer = init_producer_id.InitProducerIdRequest(transactional_id=None)
    for connection in both:  # in Kafka both answer only after a while
        end = time.monotonic() + 60
        while (
            connection.request(KEYS["FindCoordinator"], find, at_most=2).error_code
            or connection.request(KEYS["InitProducerId"], producer, at_most=4).error_code
        ):
            assert time.monotonic() < end
            time.sleep(0.2)
    yield found
    for connection in both:
        connection.close()


@pytest.fixture(scope="session")
def sides(bootstrap: str, request: pytest.FixtureRequest) -> list[tuple[str, str]]:  # noqa: F811
    """(name, address) of the brokers that a transactional conversation runs against, once they
    return coordinators of transactions: Apache Kafka and ours, or the other broker alone."""
    found = [("other broker", bootstrap)]
    if not OTHER_BROKER:
        found = [("Apache Kafka", request.getfixturevalue("kafka")), ("ours", bootstrap)]
    for _, address in found:
        wait_for_coordinators(address)
    return found


def wait_for_coordinators(address: str) -> None:
    """Wait until the broker answers for groups and transactions: in Kafka it makes topics first."""
    host, _, port = address.rpartition(":")
    connection = ClientConnection(host, int(port))
    finds = [find_coordinator.FindCoordinatorRequest("warm", kind) for kind in (0, 1)]
    producer = init_producer_id.InitProducerIdRequest("warm", 60_000)

    def answers() -> bool:
        codes = [connection.request(KEYS["FindCoordinator"], ask, at_most=2) for ask in finds]
        codes.append(connection.request(KEYS["InitProducerId"], producer, at_most=4))
        return not any(answer.error_code for answer in codes)

    wait_until(answers, "coordinators of groups and transactions")
    connection.close()


@pytest.fixture
def topic(twins: Twins) -> str:
    """A topic of two partitions in both, with 9 records in the first."""
    made = f"t-{uuid.uuid4().hex[:8]}"
    twins.ask("CreateTopics", create(made), 7)
    wait_for_leaders(twins, made)
    for i in range(3):
        twins.ask("Produce", send(made, [(b"k", b"v")] * 3, START_MS + i * 1000), 9)
    return made


def run_tool(
    tools: ToolServer, address: str, tool: str, *arguments: str, data: str = "", code: int = 0
) -> str:
    """Run one of Kafka's tools against a broker; return its output."""
    main = CLASSES.get(tool, TOOLS + tool)
    done = tools.run(main, [*arguments, "--bootstrap-server", address], data, 90)
    assert done.code == code, done.stdout + done.stderr
    return done.stdout + done.stderr
