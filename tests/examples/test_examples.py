"""Every example is run as its first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from kafkawire.testing.process import BrokerProcess
from tests.kit import example_plugins
from tests.kit.ports import free_port
from tests.kit.spark.session import need_java
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


def run(folder: str, *words: str, cwd: Path | None = None) -> str:
    """Run a command in the folder of an example, with this environment's programs on the path."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        words,
        cwd=cwd or EXAMPLES / folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_example_is_listed_and_tested() -> None:
    listed = re.findall(r"^\| \[(\w+)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(each.name for each in EXAMPLES.iterdir() if each.is_dir())
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in text for name in listed)


@pytest.mark.parametrize("folder", ["pytest_orders", "fastapi_orders"])
def test_examples_with_tests_pass(folder: str, tmp_path: Path) -> None:
    pytest_words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    printed = run(folder, *pytest_words, "--rootdir", str(EXAMPLES / folder), "-c", os.devnull)
    assert re.search(r"\d passed", printed)
    assert "failed" not in printed


def test_orders_that_are_not_paid_time_out(kafkawire_broker: BrokerProcess) -> None:
    printed = run("order_timeout", sys.executable, "order_timeout.py", kafkawire_broker.bootstrap)
    assert printed.splitlines() == ["order-1 not paid in time", "order-3 not paid in time"]


def test_records_come_back_from_the_bucket(tier_url: str) -> None:
    printed = run("s3_log", "sh", "s3_log.sh", tier_url, str(free_port()))
    assert printed.splitlines()[-1].split() == ["1000", "records", "after", "the", "restore"]


@pytest.mark.slow
def test_topic_becomes_a_table(kafkawire_broker: BrokerProcess, tmp_path: Path) -> None:
    need_java()
    text = (EXAMPLES / "spark_job" / "orders.toml").read_text(encoding="utf-8")
    job = tmp_path / "orders.toml"
    job.write_text(text.replace("127.0.0.1:9092", kafkawire_broker.bootstrap), encoding="utf-8")
    commands = re.findall(r"^#   (.+)$", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        here = f"export KAFKAWIRE_SERVER={kafkawire_broker.bootstrap}; {command}"
        run("spark_job", "sh", "-c", here, cwd=tmp_path)
    from deltalake import DeltaTable

    rows = DeltaTable(str(tmp_path / "lake" / "orders")).to_pyarrow_table().to_pylist()
    assert [(row["id"], row["customer"], row["amount"]) for row in rows] == [(1, "anna", 4.5)]


def test_plugins_pass_their_contracts_and_a_broker_uses_them(tmp_path: Path) -> None:
    """With a real client, over a restart."""
    installed = example_plugins.install(tmp_path)  # the folder "plugins"
    monitored = {"PYTHONPATH": f"{installed}:{os.environ.get('PYTHONPATH', '')}"}
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_plugins.py")
    done = subprocess.run(
        [*words, "--rootdir", str(tmp_path / "source"), "-c", os.devnull],
        cwd=tmp_path / "source", env={**os.environ, **monitored}, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    port, data, printed = free_port(), tmp_path / "data", tmp_path / "printed"
    settings = [
        "journal.roll.ms=200", "tiering.max.lag.ms=5000", "log.retention.check.interval.ms=200",
        "plugin.hooks=log", "offset.storage=sqlite",
    ]  # fmt: skip
    serve = [sys.executable, "-P", "-m", "kafkawire", "serve", "--listen", f"127.0.0.1:{port}",
             "--data", str(data), "--tier", f"shelf://books/tier?root={tmp_path}"]  # fmt: skip
    for each in settings:
        serve += ["--set", each]

    @contextmanager
    def serving() -> Iterator[None]:
        with (
            printed.open("a") as output,
            subprocess.Popen(
                serve, env={**os.environ, **monitored}, stdout=output, stderr=output
            ) as broker,
        ):
            begun = len(printed.read_text())
            try:
                wait_until(lambda: "kafkawire listens" in printed.read_text()[begun:],
                           printed.read_text)  # fmt: skip
                yield
            finally:
                broker.terminate()

    server = {"bootstrap.servers": f"127.0.0.1:{port}"}
    with serving():
        producer = Producer(server)
        for number in range(100):
            producer.produce("t", b"%d" % number)
        assert producer.flush(60) == 0
        wait_until(lambda: "uploaded" in printed.read_text(), printed.read_text)
    with serving():
        consumer = Consumer({**server, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        found: list[bytes] = []

        def all_read() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
            return len(found) == 100

        wait_until(all_read, printed.read_text)
        consumer.close()
        admin = AdminClient(server)
        admin.delete_topics(["t"])["t"].result(60)
        wait_until(lambda: "removed segment" in printed.read_text(), printed.read_text)
    assert found == [b"%d" % number for number in range(100)]
    lines = printed.read_text()
    for line in ("created t with 1 partitions", "cut t-0: offsets 0 to ", "rebalanced g: 1 member",
                 "deleted t"):  # fmt: skip
        assert f"example_plugins: {line}" in lines or line in lines, line
    assert list((tmp_path / "books/tier").rglob("manifest/*"))
    # With another storage than the one that has the offsets it does not start.
    refused = subprocess.run(
        [*serve, "--set", "offset.storage=sql"],
        env={**os.environ, **monitored},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert refused.returncode in (1, 2)
    assert "the offsets of broker 1 are in sqlite" in refused.stderr
