"""A real broker with its tier in MinIO, read in all three ways, and `kafkawire find` over each."""

from __future__ import annotations

import pytest

from kafkawire.reading import TopicReader, open_broker, open_bucket, open_folder
from kafkawire.testing.plugin import Factory
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.minio import Minio
from tests.kit.spark.topics import QUICK, Row, Topics

pytestmark = pytest.mark.real

LARGE = b"L" * 900_000


def keys_of(reader: TopicReader, topic: str, key: bytes) -> list[tuple[int, int, bytes | None]]:
    return [(each.partition, each.offset, each.value) for each in reader.find(topic, key)]


def test_bucket_folder_and_broker_agree(
    kafkawire_broker_factory: Factory, minio: Minio, tier_url: str
) -> None:
    made = Topics(kafkawire_broker_factory(settings={**QUICK, "tier.url": tier_url}))
    made.make("t", 3)
    made.make("table", 1, cleanup_policy="compact")
    made.fill("t", 900, "zstd")
    stamp = 1_700_000_500_000
    made.produce("t", [Row("t", 1, 0, stamp, LARGE, b"large", (("a", b"1"), ("a", None)))])
    made.produce("t", [Row("t", 2, 0, stamp, None, b"null", None)])
    updates = [Row("table", 0, 0, stamp + n, b"k%d" % (n % 5), b"%d" % n, None) for n in range(50)]
    made.produce("table", updates)
    made.until_cut(tier_url)
    made.until_cut(str(made.broker.data))
    wanted = made.of("t")
    key = wanted[500].key
    assert key is not None
    same_key = [(row.partition, row.offset, row.value) for row in wanted if row.key == key]
    found = Typed(made.bootstrap, "find", "t", "--key", key.decode(), "--json").lines
    assert [(line["partition"], line["offset"]) for line in found] == [one[:2] for one in same_key]
    with open_broker(made.bootstrap) as broker:
        compare(broker, wanted, same_key, key, stamp)
        bounds = broker.partitions("t")
    made.broker.stop()
    for reader in (open_bucket(tier_url), open_folder(str(made.broker.data))):
        with reader:
            compare(reader, wanted, same_key, key, stamp)
            assert reader.partitions("t") == bounds
            assert reader.unread("t") == []
    for source in (tier_url, str(made.broker.data)):
        found = Typed(
            made.bootstrap, "find", "table", "--key", "k3", "--latest", "--json", "--source", source
        ).lines
        assert [line["value"] for line in found] == ["48"]


def compare(
    reader: TopicReader,
    wanted: list[Row],
    same_key: list[tuple[int, int, bytes | None]],
    key: bytes,
    stamp: int,
) -> None:
    """Check a source with the rows of topic t, and the value now in the compacted topic."""
    assert [each[:3] for each in reader.read("t")] == [
        (r.topic, r.partition, r.offset) for r in wanted
    ]
    assert keys_of(reader, "t", key) == same_key
    [large] = reader.find("t", LARGE)
    assert (large.value, large.headers) == (b"large", (("a", b"1"), ("a", None)))
    assert [each.value for each in reader.find("t", [None], since=stamp)] == [b"null"]
    last = reader.latest("table", b"k3")
    assert last is not None
    assert last.value == b"48"
