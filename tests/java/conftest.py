"""Apache Kafka's own command line tools as clients: each call is a JVM of its own, 1-2 s.

Skipped where there is no Java or no Maven. In CI a machine with Java must also have the jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.real.conftest import (  # noqa: F401  (fixtures and a hook, by name)
    admin,
    bootstrap,
    broker,
    make_topic,
    name,
    ours_only,
    pytest_runtest_makereport,
)

HERE = Path(__file__).parent
IN_CI = os.environ.get("CI") == "true"
TOOLS = "org.apache.kafka.tools."
CLASSES = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsoleConsumer": TOOLS + "consumer.ConsoleConsumer",
    "ConsumerGroupCommand": TOOLS + "consumer.group.ConsumerGroupCommand",
}
# A tool lives for a second: the quick compiler alone and the smallest collector are best for it.
JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")

Tool = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.java)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """The workers of one run, and other runs, take turns."""
    place = Path(tempfile.gettempdir()) / f"kafkawire-tests-java-{os.getuid()}.lock"
    with place.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder of jars; fetched by the first who asks."""
    if shutil.which("java") is None:
        pytest.skip("there is no java here")
    command = ["sh", str(HERE / "install.sh")]
    with one_at_a_time():
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode != 0:
        assert not IN_CI, f"Java is here but the jars cannot be had:\n{done.stderr[-3000:]}"
        pytest.skip(f"the jars cannot be had: {done.stderr.strip()[-200:]}")
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def java(jars: Path, bootstrap: str) -> list[str]:  # noqa: F811
    """How the JVM of a tool is started: with an archive of loaded classes, which halves its cost.

    The first tool ever run leaves the archive beside the jars. A JVM that cannot use it does
    without."""
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


@pytest.fixture
def tool(java: list[str], bootstrap: str) -> Tool:  # noqa: F811
    """tool("TopicCommand", "--list") -> its output. Fails on an exit code other than `code`."""

    def run(
        name: str,  # noqa: F811
        *arguments: str,
        data: str = "",
        code: int | None = 0,
        timeout_s: float = 90,
        stderr: bool = False,
    ) -> str:
        tool_class = CLASSES.get(name, TOOLS + name)
        done = subprocess.run(
            [*java, tool_class, *arguments, "--bootstrap-server", bootstrap],
            input=data,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert code is None or done.returncode == code, (
            f"{name} {' '.join(arguments)} ended with {done.returncode}\n"
            f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout + done.stderr if stderr else done.stdout

    return run
