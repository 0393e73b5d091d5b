"""The options of the data source: those of Spark's Kafka connector, with the same refusals."""

from __future__ import annotations

import pickle

import pytest

from kafkawire.reading.limits import (
    EARLIEST,
    LATEST,
    AtTime,
    EachAtTime,
    EachOffset,
    Everywhere,
    SourceOptionError,
)
from kafkawire.reading.model.columns import DEFAULT, DEFAULT_HEADERS
from kafkawire.reading.model.source import Source, SourceError
from kafkawire_spark.source.options import SourceOptions, parse_options

BUCKET = "s3://bucket/cluster"


def batch(**given: str) -> SourceOptions:
    """Options of a batch; underscores for dots, source and topic have defaults."""
    return parse(given, streaming=False)


def stream(**given: str) -> SourceOptions:
    return parse(given, streaming=True)


def parse(given: dict[str, str], *, streaming: bool) -> SourceOptions:
    said = {name.replace("_", "."): value for name, value in given.items()}
    if not {"source", "path", "kafka.bootstrap.servers"} & said.keys():
        said["source"] = BUCKET
    if not {"subscribe", "subscribepattern", "assign"} & {name.lower() for name in said}:
        said["subscribe"] = "orders"
    return parse_options(said, streaming=streaming)


def test_defaults_match_connector() -> None:
    options = batch()
    assert options.source == Source(BUCKET)
    assert options.subscription.names == ("orders",)
    assert (options.starting, options.ending) == (Everywhere(EARLIEST), Everywhere(LATEST))
    assert stream().starting == Everywhere(LATEST)
    assert options.selection == DEFAULT
    assert options.source.fail_on_data_loss
    assert options.source.isolation == "read_committed"
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_are_case_insensitive_and_values_trimmed() -> None:
    options = batch(SUBSCRIBE=" a, b ,,a", StartingOffsets="EARLIEST", INCLUDEHEADERS="True")
    assert options.subscription.names == ("a", "b")
    assert options.selection == DEFAULT_HEADERS


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({"source": "/data"}, Source("/data")),
        ({"path": "file:///data"}, Source("file:///data")),
        ({"source": "/data", "path": "/data"}, Source("/data")),
        ({"source": "broker:9092"}, Source("", "broker:9092")),
        ({"source": "a:1,[::1]:2"}, Source("", "a:1,[::1]:2")),
        ({"kafka_bootstrap_servers": "b:9092"}, Source("", "b:9092")),
        ({"source": BUCKET, "kafka_bootstrap_servers": "b:1"}, Source(BUCKET, "b:1")),
        ({"source": BUCKET, "failOnDataLoss": "false"}, Source(BUCKET, fail_on_data_loss=False)),
        ({"source": BUCKET, "requestsAtOnce": "16"}, Source(BUCKET, requests_at_once=16)),
        *(
            (
                {"source": BUCKET, name: "read_uncommitted"},
                Source(BUCKET, isolation="read_uncommitted"),
            )
            for name in ("isolation_level", "kafka_isolation_level", "isolation")
        ),
    ],
)
def test_source_options(given: dict[str, str], source: Source) -> None:
    assert batch(**given).source == source


def test_offset_options_match_connectors_json_and_precedence() -> None:
    offsets = batch(
        startingOffsets='{"a": {"0": 23, "1": -2}}', endingOffsets='{"a":{"0":-1,"1":9}}'
    )
    assert offsets.starting == EachOffset((("a", 0, 23), ("a", 1, -2)))
    assert offsets.ending == EachOffset((("a", 0, -1), ("a", 1, 9)))
    by_time = batch(startingOffsetsByTimestamp='{"a": {"1": 5}}', startingOffsets="earliest")
    assert by_time.starting == EachAtTime((("a", 1, 5),))
    everywhere = batch(
        startingTimestamp="1700000000000",
        startingOffsetsByTimestamp='{"a": {"1": 5}}',
        startingOffsetsByTimestampStrategy="LATEST",
    )
    assert everywhere.starting == AtTime(1_700_000_000_000)
    assert everywhere.no_match_latest


def test_partitions_may_be_assigned() -> None:
    assert batch(assign='{"b": [2, 0], "a": [1]}').subscription.partitions == (
        ("a", 1), ("b", 0), ("b", 2),
    )  # fmt: skip


def test_irrelevant_connector_options_are_accepted() -> None:
    options = batch(
        kafka_fetch_min_bytes="1", groupIdPrefix="x", kafka_security_protocol="PLAINTEXT"
    )
    assert options.unused == ("groupIdPrefix", "kafka.fetch.min.bytes", "kafka.security.protocol")


def test_numbers_and_times() -> None:
    options = stream(
        maxOffsetsPerTrigger="1000", minOffsetsPerTrigger="10", maxTriggerDelay="2m",
        minPartitions="4", maxRecordsPerPartition="50", taskBytes="1000000",
    )  # fmt: skip
    assert (options.max_offsets, options.min_offsets) == (1000, 10)
    assert options.max_trigger_delay_ms == 120_000
    assert (options.min_partitions, options.max_records) == (4, 50)
    assert options.task_bytes == 1_000_000


def test_column_options() -> None:
    assert batch(columns="offset, _value").selection.names == ("offset", "_value")
    assert "_headers" not in batch(columns="native").selection.names
    assert batch(columns="native", includeHeaders="true").selection.names[-1] == "_headers"


REFUSED = [
    ({"startingOfsets": "latest"}, "no option 'startingOfsets': did you mean startingOffsets?"),
    ({"zzz": "1"}, "no option 'zzz': known are source"),
    ({"kafka_auto_offset_reset": "latest"}, "say where to begin with startingOffsets"),
    ({"kafka_security_protocol": "SASL_SSL"}, "SASL_SSL is not supported: only PLAINTEXT"),
    ({"source": "data/folder"}, "a folder by its whole path"),
    ({"requestsAtOnce": "65"}, "requestsAtOnce=65 is more than 64"),
    ({"requestsAtOnce": "0"}, "is no whole number above 0"),
    ({"source": ""}, "give the option source"),
    ({"source": "/a", "path": "/b"}, "source=/a and path=/b, which load() takes too, differ"),
    ({"provider": "kafkawire"}, "CREATE TEMPORARY VIEW"),
    ({"source": "a:1", "kafka_bootstrap_servers": "b:1"}, "two brokers' addresses"),
    ({"kafka_bootstrap_servers": "nowhere"}, "'nowhere' is not HOST:PORT"),
    ({"subscribe": "a", "assign": "{}"}, "one of subscribe, subscribePattern, assign"),
    ({"subscribe": " , "}, "names no topic"),
    ({"subscribePattern": "a("}, "no regular expression of Python's"),
    ({"subscribePattern": ""}, "is empty"),
    ({"assign": '{"a": 1}'}, "assign has 1 for a"),
    ({"assign": '{"a": [-1]}'}, "the partition -1 of a"),
    ({"assign": "[]"}, "is not JSON like"),
    ({"assign": "{}"}, "names no partition"),
    ({"startingOffsets": "latest"}, "must not be latest"),
    ({"startingOffsets": '{"a": {"0": -1}}'}, "must not be latest"),
    ({"startingOffsets": '{"a": {"0": -3}}'}, "startingOffsets has -3 for a-0"),
    ({"startingOffsets": '{"a": {"x": 1}}'}, "the partition 'x' of a"),
    ({"startingOffsets": '{"a": {"0": "1"}}'}, "has '1' for a-0"),
    ({"startingOffsets": '{"a": {"0": true}}'}, "has True for a-0"),
    ({"startingOffsets": "middle"}, "is not earliest, latest, or JSON"),
    ({"endingOffsets": "earliest"}, "endingOffsets must not be earliest"),
    ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "has -1 for a-0"),
    ({"startingTimestamp": "today"}, "'today' is not a time in milliseconds"),
    ({"startingTimestamp": "9", "endingTimestamp": "8"}, "is after endingTimestamp=8"),
    (
        {"startingOffsets": '{"a": {"0": 1}}', "endingOffsets": '{"a": {"1": 1}}'},
        "must name the same partitions",
    ),
    (
        {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"0": 4}}'},
        "of a-0 is 5, after endingOffsets, which is 4",
    ),
    ({"startingOffsetsByTimestampStrategy": "guess"}, "neither error nor latest"),
    ({"includeHeaders": "yes"}, "includeHeaders='yes' is neither true nor false"),
    ({"isolation_level": "dirty"}, "isolation.level='dirty' is neither read_committed nor"),
    ({"isolation": "read_committed", "isolation_level": "read_uncommitted"}, "differ"),
    ({"isolation": "dirty"}, "neither read_committed nor read_uncommitted"),
    ({"isolation": "read_committed", "kafka_isolation_level": "read_uncommitted"}, "differ"),
    ({"minPartitions": "0"}, "minPartitions='0' is no whole number above 0"),
    ({"taskBytes": "64MB"}, "taskBytes='64MB' is no whole number"),
    ({"columns": "ofset"}, "no column 'ofset'"),
    ({"columns": "offset,offset"}, "asked for twice"),
    ({"maxTriggerDelay": "soon"}, "no time like"),
    ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is more than maxOffsets"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_invalid_options_are_refused_with_a_sentence(given: dict[str, str], words: str) -> None:
    with pytest.raises(SourceError) as refused:
        batch(**given)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_exactly_one_subscription_is_required() -> None:
    with pytest.raises(SourceOptionError, match="none is given"):
        parse_options({"source": BUCKET}, streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_ending_offsets_are_refused_for_stream(name: str) -> None:
    with pytest.raises(SourceOptionError, match=f"a stream has no end: {name}"):
        stream(**{name: "latest"})
    assert stream(startingOffsets="latest").starting == Everywhere(LATEST)
