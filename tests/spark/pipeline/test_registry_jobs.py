"""Jobs with a schema registry, without Spark: checks before the start, logins, dead letters.

Covers: kafkawire_spark.pipeline.preflight, kafkawire_spark.pipeline.values.registry.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from kafkawire.codec.batches import build
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import SourceError, Unreachable
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import Job, parse
from kafkawire_spark.pipeline.preflight import check_job
from kafkawire_spark.pipeline.tables.port import open_table
from kafkawire_spark.pipeline.values import registry as client
from tests.kit.spark.files import START_MS, Files, Share
from tests.kit.spark.inline import Inline
from tests.kit.spark.pipeline_topics import job_text
from tests.kit.spark.pipelines import Killed
from tests.kit.spark.registry import FakeRegistry, running

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECRET = "c0rrect"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.0)
    monkeypatch.delenv(client.USER_INFO, raising=False)
    client.registry.cache_clear()
    with running() as registry:
        yield registry


@pytest.fixture
def tier(tmp_path: Path) -> Files:
    """The topics `orders`, with Avro of schema 1, garbage and a null, and `empty`."""
    files = Files(open_place(str(tmp_path / "tier")))
    [number] = files.topic("orders")
    files.topic("empty")
    payloads = [*(framed(1, number) for number in range(5)), None, framed(9, 6), b"garbage"]
    pairs = [(b"k", payload) for payload in payloads]
    files.put(1, Share(number, [bytes(build(pairs, base_offset=0, timestamp_ms=START_MS))]))
    files.publish()
    return files


def framed(schema: int, number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, ORDER, {"id": number})
    return b"\0" + schema.to_bytes(4, "big") + out.getvalue()


def avro_job(tier: Files, tmp_path: Path, registry: str, **source: Any) -> Job:
    text = job_text(
        tier.place.url,
        tmp_path / "table",
        source=source,
        value={"format": "avro", "registry": registry},
        dead_letter={"path": str(tmp_path / "dead")},
    )
    return parse(text)


def test_job_with_its_schema_passes(fake: FakeRegistry, tier: Files, tmp_path: Path) -> None:
    fake.register("orders-value", json.dumps(ORDER))
    check_job(avro_job(tier, tmp_path, fake.url))
    assert not (tmp_path / "table").exists()


def test_missing_subject_is_named(fake: FakeRegistry, tier: Files, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no subject 'orders-value'") as raised:
        check_job(avro_job(tier, tmp_path, fake.url))
    assert not isinstance(raised.value, Unreachable)


def test_topic_without_records_needs_no_schema(
    fake: FakeRegistry, tier: Files, tmp_path: Path
) -> None:
    check_job(avro_job(tier, tmp_path, fake.url, subscribe="empty"))
    assert fake.requests == []


def test_wrong_password_is_reported(fake: FakeRegistry, tier: Files, tmp_path: Path) -> None:
    fake.password = f"me:{SECRET}"
    with pytest.raises(SourceError, match=r"answers 401: the user or the password .* is wrong"):
        check_job(avro_job(tier, tmp_path, fake.url.replace("//", "//me:other@")))


def test_unavailable_registry_can_be_tried_again(
    fake: FakeRegistry, tier: Files, tmp_path: Path
) -> None:
    fake.failures = [503] * client.TRIES
    with pytest.raises(Unreachable, match="/subjects/orders-value/versions/latest answers 503"):
        check_job(avro_job(tier, tmp_path, fake.url))


def test_unreachable_registry_is_named(tier: Files, tmp_path: Path) -> None:
    with running() as gone:
        address = gone.url.removeprefix("http://")
    with pytest.raises(Unreachable, match=f"the schema registry at {address}: Connection refused"):
        check_job(avro_job(tier, tmp_path, f"http://{address}"))


def test_reserved_columns_are_found(fake: FakeRegistry, tier: Files, tmp_path: Path) -> None:
    fields = [{"name": "_offset", "type": "long"}]
    fake.register("orders-value", json.dumps({**ORDER, "fields": fields}))
    with pytest.raises(SourceError, match="has a field '_offset': that is reserved"):
        check_job(avro_job(tier, tmp_path, fake.url))


class Ends(Inline):
    """Tasks of which none is run, as in a driver that is killed."""

    def run(self, *_: Any) -> Any:
        raise Killed


@pytest.mark.slow
def test_password_of_the_url_is_used_and_not_stored(
    fake: FakeRegistry, tier: Files, tmp_path: Path
) -> None:
    fake.register("orders-value", json.dumps(ORDER))
    fake.password = f"me:{SECRET}"
    job = avro_job(tier, tmp_path, fake.url.replace("//", f"//me:{SECRET}@"))
    with pytest.raises(Killed):
        Engine(job, Ends()).run()
    outcome = Engine(job, Inline()).run()
    assert outcome.resumed
    assert outcome.record is not None
    found = [pq.read_table(tmp_path / "table" / file.path) for file in open_table(job).files()]
    assert [one["id"].to_pylist() for one in found] == [[*range(5), None]]
    [dead] = outcome.record.dead
    reasons = pq.read_table(tmp_path / "dead" / dead.path)["_reason"].to_pylist()
    assert reasons == [
        "value: the registry has no schema 9",
        "value: begins with byte 103, not with 0 and the number of a schema",
    ]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_kafkawire" in path.parts for path in files)
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.slow
def test_without_dead_letters_the_first_bad_value_ends_the_run(
    fake: FakeRegistry, tier: Files, tmp_path: Path
) -> None:
    fake.register("orders-value", json.dumps(ORDER))
    job = replace(avro_job(tier, tmp_path, fake.url), dead_letters="")
    with pytest.raises(SourceError, match=r"offset 6 of orders-0 .* no schema 9; .*dead_letter"):
        Engine(job, Inline()).run()


def grown(tier: Files, tmp_path: Path, fake: FakeRegistry, schema: object) -> Job:
    """A job whose table has the first version, before a run with the second."""
    fake.register("orders-value", json.dumps(ORDER))
    job = avro_job(tier, tmp_path, fake.url)
    Engine(job, Inline()).run()
    fake.register("orders-value", json.dumps(schema))
    pairs = [(b"k", framed(1, 10))]
    batch = bytes(build(pairs, base_offset=8, timestamp_ms=START_MS))
    tier.put(2, Share(1, [batch]))
    tier.publish()
    return job


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            [{"name": "no", "type": ["null", "long"], "default": None}],
            "the table has a column id .*, which the job does not",
        ),
        ([{"name": "id", "type": "string"}], "column id is int64, the job makes it string"),
    ],
)
def test_version_that_the_table_cannot_have_is_reported(
    fields: list[Any], sentence: str, fake: FakeRegistry, tier: Files, tmp_path: Path
) -> None:
    job = grown(tier, tmp_path, fake, {**ORDER, "fields": fields})
    with pytest.raises(SourceError, match=sentence):
        Engine(job, Inline()).run()


@pytest.mark.slow
def test_first_version_is_read_with_the_second(
    fake: FakeRegistry, tier: Files, tmp_path: Path
) -> None:
    fields = [*ORDER["fields"], {"name": "note", "type": "string", "default": "none"}]
    job = grown(tier, tmp_path, fake, {**ORDER, "fields": fields})
    record = Engine(job, Inline()).run().record
    assert record is not None
    [file] = record.files
    row = pq.read_table(tmp_path / "table" / file.path).to_pylist()[0]
    assert (row["id"], row["note"]) == (10, "none")
