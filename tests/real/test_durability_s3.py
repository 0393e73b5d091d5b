"""One broker with durability=s3, internal topics included, that is killed or stopped under load and
starts again, with its data folder or without it.

Covers: kafkawire.log.object_logs, kafkawire.log.adoption, kafkawire.log.earlier_logs,
kafkawire.log.fresh_folder, kafkawire.log.maintenance.object_release,
kafkawire.restore.lost_files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.cluster import Cluster, metadata_url
from tests.kit.history.clients import RecordedLoad
from tests.kit.minio import Minio
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.slow]

TOPIC, PARTITIONS = "load", 4
ROUNDS = 3
UPLOADING = {"journal.roll.ms": 1000, "cut.interval.ms": 100}
"""Journals become segments soon, so that some records are in objects of both kinds."""
SOON = {"tiering_max_lag_ms": "5000", "tiering_min_object_bytes": "1"}


@pytest.fixture(params=["sqlite", "postgresql"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest, tier_url: str) -> Iterator[Cluster]:
    url = metadata_url(request.param, tmp_path, request)
    settings = {**UPLOADING, "tier.url": tier_url, "durability": "s3"}
    with Cluster(tmp_path, url, [1], settings) as made:
        yield made


def create(cluster: Cluster, **configs: str) -> None:
    cluster.create(1, TOPIC, [1] * PARTITIONS, **configs)


def check(cluster: Cluster, load: RecordedLoad, folder: Path) -> None:
    assert load.findings(cluster.bootstrap(1), folder / "history") == []
    for name in (TOPIC, "__consumer_offsets"):
        assert cluster.setting(1, name, "durability") == "s3"


class Bucket:
    """The objects of a tier."""

    def __init__(self, minio: Minio, tier_url: str) -> None:
        self._client = minio.client()
        self._name = tier_url.removeprefix("s3://").partition("/")[0]

    def keys(self, word: str) -> set[str]:
        """The keys with this word."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name)
        found = (each["Key"] for page in pages for each in page.get("Contents", []))
        return {key for key in found if word in key}

    def wait_for_release(self) -> None:
        """Wait until a log object that is there now is deleted, because segments have it."""
        before = self.keys("/log/")
        wait_until(lambda: before - self.keys("/log/"), "the release of a log object")


@pytest.fixture
def bucket(minio: Minio, tier_url: str) -> Bucket:
    return Bucket(minio, tier_url)


@pytest.mark.parametrize(
    ("cluster", "uploaded"),
    [("sqlite", False), ("postgresql", False), ("sqlite", True)],
    indirect=["cluster"],
    ids=["sqlite", "postgresql", "uploaded-soon"],
)
def test_killed_broker_without_its_folder_has_everything_acknowledged(
    cluster: Cluster, bucket: Bucket, tmp_path: Path, uploaded: bool
) -> None:
    create(cluster, **(SOON if uploaded else {}))
    with RecordedLoad(cluster.bootstrap(1), TOPIC, PARTITIONS) as load:
        for _ in range(ROUNDS):
            load.wait_for_progress()
            if uploaded:
                bucket.wait_for_release()
            load.history.fault("kill the broker, delete its folder")
            cluster.kill(1)
            cluster.wipe(1)
            cluster.start(1)
            load.heal()
    check(cluster, load, tmp_path)
    assert cluster.brokers[1].output.count("appended what") == ROUNDS


def test_broker_that_starts_again_has_everything_acknowledged(
    cluster: Cluster, tmp_path: Path
) -> None:
    create(cluster, **SOON)
    with RecordedLoad(cluster.bootstrap(1), TOPIC, PARTITIONS) as load:
        for end, wiped in [("kill", False), ("stop", False), ("stop", True), ("kill", True)]:
            load.wait_for_progress()
            load.history.fault(f"{end} the broker{', delete its folder' if wiped else ''}")
            cluster.kill(1) if end == "kill" else cluster.stop(1)
            if wiped:
                cluster.wipe(1)
            lines = len(cluster.brokers[1].output.splitlines())
            cluster.start(1)
            load.heal()
            output = "".join(cluster.brokers[1].output.splitlines(True)[lines:])
            assert ("unclean shutdown" in output) == (end == "kill" or wiped)
    check(cluster, load, tmp_path)
