"""The options of the sink: those of Spark's Kafka sink, and a sentence for each mistake."""

from __future__ import annotations

import pytest

from kafkawire.codec.compression import ZSTD
from kafkawire_spark.sink.options import SinkError, parse_options

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def test_options_of_sparks_sink_are_accepted() -> None:
    found = parse_options(
        {
            "Kafka.Bootstrap.Servers": "a:1, b:2", "TOPIC": "out", "includeHeaders": "true",
            "kafka.compression.type": "zstd", "kafka.linger.ms": "5", "kafka.acks": "all",
            "kafka.transaction.timeout.ms": "60000",
        },
        streaming=True,
    )  # fmt: skip
    assert (found.topic, found.codec, found.timeout_ms) == ("out", ZSTD, 60000)
    assert found.unused == ("kafka.linger.ms",)


@pytest.mark.parametrize(
    ("given", "streaming", "sentence"),
    [
        ({"kafka.bootstrap.servers": ""}, True, "give the option kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "nowhere"}, True, "'nowhere' is not HOST:PORT"),
        ({"topics": "out"}, True, "no option 'topics' for writing: did you mean topic?"),
        ({"path": "out"}, True, "path is not supported: the topic is the option topic"),
        ({"kafka.acks": "1"}, True, "kafka.acks=1 is not possible in a transaction"),
        ({"kafka.enable.idempotence": "false"}, True, "not possible in a transaction"),
        ({"kafka.transactional.id": "a"}, True, "use transactionalId"),
        ({"kafka.security.protocol": "SSL"}, True, "only PLAINTEXT is spoken"),
        ({"transactionalId": "a b"}, True, "transactionalId='a b' is not 1 to 200"),
        ({"transactionalId": ""}, True, "transactionalId='' is not 1 to 200"),
        ({"batchId": "3"}, True, "batchId is an option of a batch"),
        ({"initialBatchId": "3"}, False, "initialBatchId is an option of a stream"),
        ({"batchId": "3"}, False, "batchId=3 needs transactionalId"),
        ({"batchId": "-3", "transactionalId": "a"}, False, "batchId='-3' is not a whole number"),
        ({"batchBytes": "0"}, False, "batchBytes='0' is not a whole number from 1 to"),
        ({"kafka.compression.type": "lzma"}, False, "'lzma' is not one of none, gzip"),
        ({"stagingLocation": "here"}, False, "stagingLocation='here' is neither"),
    ],
)
def test_mistake_is_named(given: dict[str, str], streaming: bool, sentence: str) -> None:
    with pytest.raises(SinkError) as refused:
        parse_options({**SERVERS, **given}, streaming=streaming)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("checkpoint", "staging"),
    [
        ("/a/b/", "/a/b/kafkawire"),
        ("file:///a/b", "/a/b/kafkawire"),
        ("file:/a/b", "/a/b/kafkawire"),
        ("hdfs://host/a", ""),
        ("s3a://bucket/a", ""),
    ],
)
def test_files_are_staged_in_the_checkpoint(checkpoint: str, staging: str) -> None:
    found = parse_options({**SERVERS, "checkpointLocation": checkpoint}, streaming=True)
    assert found.staging == staging
    elsewhere = {**SERVERS, "checkpointLocation": checkpoint, "stagingLocation": "s3://b/c"}
    assert parse_options(elsewhere, streaming=True).staging == "s3://b/c"
