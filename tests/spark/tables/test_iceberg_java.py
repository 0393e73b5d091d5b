"""Jobs into an Iceberg table of a real REST catalog, Apache Iceberg's own: runs, kills and lost
responses around each commit, conflicts, compaction; read by pyiceberg and by the Java library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from kafkawire.objectstore.url import parse_tier
from kafkawire.reading.files.open import open_place
from kafkawire_spark.audit.job import audit, through_spark
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.executors import Executor, OnSpark
from kafkawire_spark.pipeline.jobs.job import Job, parse
from kafkawire_spark.pipeline.tables.iceberg import IcebergTable
from tests.kit.minio import Minio
from tests.kit.spark.inline import Inline, in_process
from tests.kit.spark.java_catalog import IO, java_library, rest_catalog, rows, s3_properties
from tests.kit.spark.pipeline_topics import Tier, job_text
from tests.kit.spark.rest_catalog import FAULTS, LOST, UNDONE, Front, forward
from tests.kit.spark.session import environment, need_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.java]

NAME = "shop.orders"
WITHIN_S = 600.0
DRIVER = """
import sys
from kafkawire_spark.pipeline.engine import Engine
from tests.kit.spark.inline import Inline
from kafkawire_spark.pipeline.submitted import read_job
engine = Engine(read_job(sys.argv[1]), Inline())
engine.compact() if sys.argv[2:] else engine.run()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, minio: Minio) -> Iterator[str]:
    need_java()
    with rest_catalog(tmp_path_factory.mktemp("rest"), minio.endpoint) as uri:
        yield uri


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    need_java()
    with java_library() as library:
        yield library


class World:
    """A topic's tier, the table of it in a folder or bucket, and the catalog reached through its
    front."""

    def __init__(self, server: str, folder: Path, url: str, endpoint: str) -> None:
        self.server, self.folder, self.url, self.endpoint = server, folder, url, endpoint
        self.name = f"shop{folder.name.replace('-', '_')}.eu.orders"
        self.front = Front(forward(server)).start()
        self.tier = Tier(open_place(str(folder / "tier")))
        catalog = {"type": "rest", "uri": self.front.uri, "name": self.name}
        text = job_text(
            f"{folder}/tier",
            url,
            table={"format": "iceberg", "partition_by": "date(timestamp)", "file_bytes": 1 << 16},
            **{"table.catalog": catalog},
        )
        (folder / "job.toml").write_text(text)
        self.job: Job = parse(text)

    def engine(self, executor: Executor | None = None) -> Engine:
        return Engine(self.job, executor or Inline())

    def driver(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a run, or with a word a compaction, in a process of its own."""
        command = [sys.executable, "-c", DRIVER, str(self.folder / "job.toml"), *words]
        return subprocess.Popen(command, cwd=Path(__file__).parent.parent.parent.parent)

    def loaded(self) -> Any:
        """The table as an independent reader opens it, without the front."""
        s3 = {key: value for key, value in s3_properties(self.endpoint).items() if key[:3] == "s3."}
        said = {"type": "rest", "uri": self.server, "s3.region": "us-east-1", **s3}
        return load_catalog("else", **said).load_table(self.name)

    def runs(self) -> list[str]:
        """The runs that have snapshots."""
        said = [one.summary.additional_properties for one in self.loaded().snapshots()]
        return [one["kafkawire.run"] for one in said if "kafkawire.run" in one]

    def check(self, jvm: Any | None = None) -> None:
        """Check that each offset is there once, for independent readers and the audit."""
        expected = sorted(("orders", *one) for one in self.tier.offsets())
        names = ("_topic", "_partition", "_offset")
        found = self.loaded().scan(selected_fields=names).to_arrow().select(names).to_pylist()
        assert sorted(tuple(row.values()) for row in found) == expected
        report, _ = audit(self.url, in_process, self.job.reading.source)
        assert list(report.sentences()) == []
        assert report.clean
        assert report.rows == len(expected)
        if jvm is not None:
            properties = {"uri": self.server, "io-impl": IO, **s3_properties(self.endpoint)}
            assert rows(jvm, properties, self.name) == expected


@pytest.fixture(params=["folder", "bucket"])
def world(
    request: pytest.FixtureRequest, server: str, minio: Minio, tier_url: str, tmp_path: Path
) -> Iterator[World]:
    url = str(tmp_path / "table")
    if request.param == "bucket":
        minio.client().create_bucket(Bucket=parse_tier(tier_url).bucket)
        url = f"{tier_url}/table"
    made = World(server, tmp_path, url, minio.endpoint)
    yield made
    made.front.stop()


def test_a_job_on_spark(spark: SparkSession, minio: Minio, jvm: Any, world: World) -> None:
    with environment(spark, minio.environ):
        job_on_spark(spark, jvm, world)


def job_on_spark(spark: SparkSession, jvm: Any, world: World) -> None:
    executor = OnSpark(spark)
    world.tier.grow(1000)
    record = world.engine(executor).run().record
    assert record is not None
    assert record.rows == 1500
    world.check(jvm)
    before = world.loaded().metadata_location
    assert world.engine(executor).run().record is None
    assert world.loaded().metadata_location == before  # nothing is written twice
    for _ in range(3):
        world.tier.grow(100)
        world.engine(executor).run()
    merged, into = world.engine(executor).compact()
    assert merged > into
    world.check(jvm)
    report, _ = audit(world.url, through_spark(spark), world.job.reading.source)
    assert report.clean
    assert world.runs() == ["1", "2", "3", "4"]


def test_commits_with_lost_responses(jvm: Any, world: World) -> None:
    """In each way, of the creation and of each run; then of a compaction and an expiry."""
    for fault in FAULTS:
        world.tier.grow(50)
        world.front.faults = [fault]
        assert world.engine().run().record is not None
        assert not world.front.faults
    assert world.runs() == [str(run) for run in range(1, len(FAULTS) + 1)]
    world.check()
    world.front.faults = [LOST]
    merged, into = world.engine().compact()
    assert merged > into
    table = world.engine().table
    assert isinstance(table, IcebergTable)
    table._history_s = 0
    world.front.faults = [LOST]
    assert table.tidy() > merged
    assert len(world.loaded().snapshots()) == 1
    world.check(jvm)
    world.tier.grow(50)
    assert world.engine().run().record is not None
    world.check(jvm)


def test_driver_killed_at_commit(jvm: Any, world: World) -> None:
    """By SIGKILL, when the catalog has the request: before it is done, and after."""
    for fault in (UNDONE, LOST):
        for words in ((), ("compact",)):
            world.tier.grow(50)
            if words:
                assert world.engine().run().record is not None
            driver, killed = world.driver(*words), threading.Event()
            world.front.faults = [fault]

            def kill() -> None:
                world.front.before = None
                os.kill(driver.pid, signal.SIGKILL)  # noqa: B023  (it is this one's)
                killed.set()  # noqa: B023

            world.front.before = kill
            assert driver.wait(WITHIN_S) == -signal.SIGKILL
            assert killed.wait(WITHIN_S)
            world.front.faults = []
            world.engine().run()
            world.check()
    world.engine().compact()
    assert world.runs() == sorted(set(world.runs()), key=int)  # each once, in order
    world.check(jvm)


def test_concurrent_second_driver(jvm: Any, world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It does the same run, and commits it while the first one's commit is in flight. The server
    deletes old metadata files, and no other process tries to."""
    for run in range(3):
        world.tier.grow(50)
        if run == 1:
            with world.loaded().transaction() as change:
                change.set_properties({"write.metadata.previous-versions-max": "1"})
            caplog.clear()  # pyiceberg by default does try
        other = world.engine()

        def first() -> None:
            world.front.before = None
            other.run()  # noqa: B023  (it is this one's)

        world.front.before = first
        world.engine().run()
        assert world.front.before is None
    assert world.runs() == ["1", "2", "3"]
    assert len(world.loaded().metadata.metadata_log) == 1
    assert not [one for one in caplog.messages if "Failed to delete" in one]
    world.check(jvm)
