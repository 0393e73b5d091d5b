"""The admin APIs as a client sees them, version by version and error by error."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafkawire.broker.overrides import ResourceType
from kafkawire.codec.configs import BROKER_CONFIGS, TOPIC_CONFIGS
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.messages.alter_configs import AlterableConfig as OldConfig
from kafkawire.messages.alter_configs import AlterConfigsRequest
from kafkawire.messages.alter_configs import AlterConfigsResource as OldResource
from kafkawire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.list_config_resources import ListConfigResourcesRequest
from kafkawire.metadata.store import MetadataError
from tests.kit.admin import ME, OTHER, FakeBroker, by_name, call

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


async def make(broker: FakeBroker, name: str, partitions: int = 1, **configs: str) -> bytes:
    rows = [CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items()]
    (outcome,) = await broker.topics.create([CreatableTopic(name, partitions, 1, configs=rows)])
    assert not isinstance(outcome, KafkaError), outcome
    assert outcome.topic is not None
    return outcome.topic.id


# -- CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics(version: int) -> None:
    broker = FakeBroker()
    topics = [
        CreatableTopic("t", 3, 1, configs=[CreatableTopicConfig("retention.ms", "7")]),
        CreatableTopic("no good", 1, 1),
    ]
    answer = by_name((await call(broker, CreateTopicsRequest(topics), version)).topics)
    good, bad = answer["t"], answer["no good"]
    assert (good.error_code, good.error_message) == (0, None)
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "ASCII" in bad.error_message
    if version >= 5:
        assert (good.num_partitions, good.replication_factor) == (3, 1)
        configs = by_name(good.configs)
        assert set(configs) == set(TOPIC_CONFIGS)
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("7", 1)
        assert configs["max.message.bytes"].config_source == 5
        assert bad.configs == []  # never null: Java's admin client fails on it
    if version >= 7:
        assert good.topic_id == broker.topic("t").id
        assert bad.topic_id == bytes(16)


async def test_create_topics_for_validation_only() -> None:
    broker = FakeBroker()
    request = CreateTopicsRequest([CreatableTopic("t", 3, 1)], validate_only=True)
    (row,) = (await call(broker, request, 7)).topics
    assert (row.error_code, row.num_partitions, row.topic_id) == (0, 3, bytes(16))
    assert broker.catalog.by_name == {}


async def test_create_topics_named_twice() -> None:
    request = CreateTopicsRequest([CreatableTopic("t", 1, 1), CreatableTopic("t", 2, 1)])
    answer = await call(FakeBroker(), request, 7)
    assert [row.error_code for row in answer.topics] == [ErrorCode.INVALID_REQUEST] * 2


# -- DeleteTopics


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_topics_by_name(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t")
    await make(broker, "kept")
    if version >= 6:
        request = DeleteTopicsRequest([DeleteTopicState("t"), DeleteTopicState("nope")])
    else:
        request = DeleteTopicsRequest(topic_names=["t", "nope"])
    rows = by_name((await call(broker, request, version)).responses)
    assert rows["t"].error_code == 0
    assert rows["nope"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(broker.catalog.by_name) == ["kept"]
    if version >= 5:
        assert (rows["t"].error_message, bool(rows["nope"].error_message)) == (None, True)


async def test_delete_topics_by_id() -> None:
    broker = FakeBroker()
    topic_id, unknown = await make(broker, "t"), bytes([9]) * 16
    request = DeleteTopicsRequest(
        [DeleteTopicState(topic_id=topic_id), DeleteTopicState(topic_id=unknown)]
    )
    rows = (await call(broker, request, 6)).responses
    assert [(row.name, row.topic_id, row.error_code) for row in rows] == [
        ("t", topic_id, 0),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_delete_topics_that_contradict_themselves() -> None:
    broker = FakeBroker()
    both, id_too, twice = [await make(broker, name) for name in ("both", "idtoo", "twice")]
    request = DeleteTopicsRequest(
        [
            DeleteTopicState(),
            DeleteTopicState("both", both),
            DeleteTopicState("twice"),
            DeleteTopicState("twice"),
            DeleteTopicState(topic_id=id_too),
            DeleteTopicState("idtoo"),
        ]
    )
    rows = (await call(broker, request, 6)).responses
    codes = {(row.name, row.topic_id): row.error_code for row in rows}
    assert codes[None, bytes(16)] == ErrorCode.INVALID_REQUEST
    assert codes["both", both] == ErrorCode.INVALID_REQUEST
    assert codes["twice", bytes(16)] == ErrorCode.INVALID_REQUEST
    messages = {row.error_message for row in rows if row.error_code}
    assert len(messages) == 4
    assert sum(row.error_code == 0 for row in rows) == 1  # the one by id
    assert sorted(broker.catalog.by_name) == ["both", "twice"]
    assert twice


@pytest.mark.parametrize(
    ("version", "code"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)]
)
async def test_delete_topics_switched_off(version: int, code: ErrorCode) -> None:
    broker = FakeBroker(delete_topic_enable="false")
    await make(broker, "t")
    answer = await call(broker, DeleteTopicsRequest(topic_names=["t"]), version)
    assert answer.responses[0].error_code == code
    assert "t" in broker.catalog.by_name


async def test_delete_an_internal_topic() -> None:
    broker = FakeBroker()
    await broker.topics.offsets_partitions()
    answer = await call(broker, DeleteTopicsRequest(topic_names=["__consumer_offsets"]), 5)
    assert answer.responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# -- CreatePartitions


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t", 2)
    await make(broker, "same", 2)
    topics = [
        CreatePartitionsTopic("t", 5, None),
        CreatePartitionsTopic("same", 2, None),
        CreatePartitionsTopic("nope", 2, None),
        CreatePartitionsTopic("twice", 2, None),
        CreatePartitionsTopic("twice", 3, None),
    ]
    rows = by_name((await call(broker, CreatePartitionsRequest(topics), version)).results)
    assert {name: row.error_code for name, row in rows.items()} == {
        "t": 0,
        "same": ErrorCode.INVALID_PARTITIONS,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert len(broker.topic("t").partitions) == 5
    assert rows["same"].error_message == "Topic already has 2 partition(s)."


async def test_create_partitions_when_sql_fails() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    broker.metadata.fails = OSError("full")
    request = CreatePartitionsRequest([CreatePartitionsTopic("t", 5, None)])
    answer = await call(broker, request, 3)
    assert answer.results[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


# -- DeleteRecords


async def delete_records(
    broker: FakeBroker, offset: int, topic: str = "t", index: int = 0, version: int = 2
) -> tuple[int, int]:
    request = DeleteRecordsRequest(
        [DeleteRecordsTopic(topic, [DeleteRecordsPartition(index, offset)])]
    )
    answer = await call(broker, request, version)
    row = answer.topics[0].partitions[0]
    assert (answer.topics[0].name, row.partition_index) == (topic, index)
    return row.error_code, row.low_watermark


@pytest.mark.parametrize("version", range(3))
async def test_delete_records(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t")
    broker.partition("t").next_offset = 10
    assert await delete_records(broker, 4, version=version) == (0, 4)
    assert "commit" in broker.steps  # the client's own writes count
    assert await delete_records(broker, 2, version=version) == (0, 4)
    assert await delete_records(broker, -1, version=version) == (0, 10)


@pytest.mark.parametrize(
    ("offset", "topic", "index", "code"),
    [
        (11, "t", 0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-2, "t", 0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, "t", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, "nope", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, "compacted", 0, ErrorCode.POLICY_VIOLATION),
        (1, "__consumer_offsets", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_delete_records_refused(offset: int, topic: str, index: int, code: ErrorCode) -> None:
    broker = FakeBroker()
    await make(broker, "t")
    await make(broker, "compacted", cleanup_policy="compact")
    await broker.topics.offsets_partitions()
    broker.partition("t").next_offset = 10
    assert await delete_records(broker, offset, topic, index) == (code, -1)


async def test_delete_records_when_the_disk_fails() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    broker.partition("t").next_offset = 10
    broker.log.commit_log.fails = OSError("full")
    assert await delete_records(broker, 3) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


# -- DescribeConfigs


async def describe(
    broker: FakeBroker, kind: int, name: str, *keys: str, version: int = 4, **flags: bool
) -> Any:
    resource = DescribeConfigsResource(kind, name, list(keys) or None)
    request = DescribeConfigsRequest([resource])
    for flag, value in flags.items():
        setattr(request, flag, value)
    (result,) = (await call(broker, request, version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_a_topic(version: int) -> None:
    broker = FakeBroker(log_retention_hours="2")
    await make(broker, "t", cleanup_policy="compact,delete")
    flags = {"include_synonyms": True}
    if version >= 3:
        flags["include_documentation"] = True
    result = await describe(broker, TOPIC, "t", version=version, **flags)
    assert result.error_code == 0
    rows = by_name(result.configs)
    assert set(rows) == set(TOPIC_CONFIGS)
    policy, retention = rows["cleanup.policy"], rows["retention.ms"]
    assert (policy.value, policy.config_source, policy.read_only) == ("compact,delete", 1, False)
    assert [(s.name, s.value, s.source) for s in policy.synonyms] == [
        ("cleanup.policy", "compact,delete", 1),
        ("log.cleanup.policy", "delete", 5),
    ]
    assert (retention.value, retention.config_source) == ("7200000", 4)
    assert [(s.name, s.source) for s in retention.synonyms] == [
        ("log.retention.hours", 4),
        ("log.retention.hours", 5),
    ]
    if version >= 3:
        assert policy.config_type == 7
        assert policy.documentation


async def test_describe_only_what_is_asked() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    result = await describe(broker, TOPIC, "t", "retention.ms", "no.such")
    (row,) = result.configs
    assert (row.name, row.synonyms, row.documentation) == ("retention.ms", [], None)


async def test_describe_many_topics_in_slices() -> None:
    broker = FakeBroker()
    for index in range(20):
        await make(broker, f"t{index}")
    resources = [DescribeConfigsResource(TOPIC, f"t{index}", []) for index in range(20)]
    answer = await call(broker, DescribeConfigsRequest(resources), 4)
    assert [len(result.configs) for result in answer.results] == [len(TOPIC_CONFIGS)] * 20
    assert broker.env.pauses


async def test_describe_this_broker() -> None:
    broker = FakeBroker(num_partitions="6")
    await alter(broker, BROKER, str(ME), ("message.max.bytes", 0, "100"))
    result = await describe(broker, BROKER, str(ME), include_synonyms=True)
    rows = by_name(result.configs)
    assert set(rows) == set(BROKER_CONFIGS)
    assert (rows["num.partitions"].value, rows["num.partitions"].config_source) == ("6", 4)
    assert rows["node.id"].read_only
    size = rows["message.max.bytes"]
    assert (size.value, size.config_source, size.read_only) == ("100", 2, False)
    assert [(s.value, s.source) for s in size.synonyms] == [("100", 2), ("1048588", 5)]
    assert rows["flush"].config_source == 5


async def test_describe_the_default_of_all_brokers() -> None:
    broker = FakeBroker()
    assert (await describe(broker, BROKER, "")).configs == []
    await alter(broker, BROKER, "", ("message.max.bytes", 0, "100"))
    (row,) = (await describe(broker, BROKER, "")).configs
    assert (row.name, row.value, row.config_source) == ("message.max.bytes", "100", 3)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "b@d", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, str(OTHER), ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER, "1" * 5000, ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (METRICS, "", ErrorCode.INVALID_REQUEST),
        (GROUP, "g", ErrorCode.NONE),
        (METRICS, "m", ErrorCode.NONE),
        (5, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_describe_errors(kind: int, name: str, code: ErrorCode) -> None:
    result = await describe(FakeBroker(), kind, name)
    assert (result.error_code, result.configs) == (code, [])
    assert bool(result.error_message) == bool(code)


async def test_loggers() -> None:
    broker, name = FakeBroker(), "kafkawire.test.loggers"
    logging.getLogger(name)
    assert await alter(broker, LOGGER, str(ME), (name, 0, "DEBUG")) == (0, None)
    (row,) = (await describe(broker, LOGGER, str(ME), name)).configs
    assert (row.value, row.config_source) == ("DEBUG", 6)
    assert logging.getLogger(name).level == logging.DEBUG
    assert await alter(broker, LOGGER, str(ME), (name, 1, None)) == (0, None)
    assert logging.getLogger(name).level == logging.NOTSET
    for wish, code in [
        ((name, 0, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("no.such.logger", 0, "INFO"), ErrorCode.INVALID_CONFIG),
        ((name, 2, "INFO"), ErrorCode.INVALID_REQUEST),
        (("root", 1, None), ErrorCode.INVALID_REQUEST),
    ]:
        assert (await alter(broker, LOGGER, str(ME), wish))[0] == code
    assert broker.steps == []  # never stored


# -- IncrementalAlterConfigs, AlterConfigs


Wish = tuple[str, int, str | None]


async def alter(
    broker: FakeBroker,
    kind: int,
    name: str,
    *wishes: Wish,
    version: int = 1,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    resource = AlterConfigsResource(kind, name, [AlterableConfig(*wish) for wish in wishes])
    request = IncrementalAlterConfigsRequest([resource], validate_only)
    (row,) = (await call(broker, request, version)).responses
    assert (row.resource_type, row.resource_name) == (kind, name)
    return row.error_code, row.error_message


@pytest.mark.parametrize("version", [0, 1])
async def test_a_topic_setting_acts_at_once(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t", 2)
    assert await alter(broker, TOPIC, "t", ("max.message.bytes", 0, "500"), version=version) == (
        0,
        None,
    )
    config = broker.partition("t", 1).config
    assert config.max_message_bytes == 500
    assert broker.partition("t").config is config
    assert broker.metadata.stored == {(TOPIC, "t", "max.message.bytes"): "500"}
    assert await alter(broker, TOPIC, "t", ("max.message.bytes", 1, None)) == (0, None)
    assert config.max_message_bytes == 1048588
    assert broker.metadata.stored == {(TOPIC, "t", "max.message.bytes"): None}


async def test_lists_grow_and_shrink() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    assert (await alter(broker, TOPIC, "t", ("cleanup.policy", 2, "compact")))[0] == 0
    assert broker.topic("t").configs == {"cleanup.policy": "delete,compact"}
    config = broker.partition("t").config
    assert (config.cleanup_delete, config.cleanup_compact) == (True, True)
    assert (await alter(broker, TOPIC, "t", ("cleanup.policy", 3, "delete")))[0] == 0
    assert (config.cleanup_delete, config.cleanup_compact) == (False, True)


@pytest.mark.parametrize(
    ("kind", "name", "wish", "code"),
    [
        (TOPIC, "t", ("no.such.setting", 0, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 0, "soon"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 0, "-2"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 2, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("cleanup.policy", 2, "burn"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 0, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "", ("retention.ms", 0, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "b@d", ("retention.ms", 0, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "nope", ("retention.ms", 0, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "1", ("node.id", 0, "3"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("message.max.bytes", 0, "many"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("no.such.setting", 0, "3"), ErrorCode.INVALID_CONFIG),
        (BROKER, "2", ("message.max.bytes", 0, "3"), ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ("message.max.bytes", 0, "3"), ErrorCode.INVALID_REQUEST),
        (GROUP, "g", ("consumer.session.timeout.ms", 0, "3"), ErrorCode.INVALID_CONFIG),
        (METRICS, "m", ("metrics", 0, "*"), ErrorCode.INVALID_CONFIG),
        (77, "m", ("metrics", 0, "*"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_alter_errors(kind: int, name: str, wish: Wish, code: ErrorCode) -> None:
    broker = FakeBroker()
    await make(broker, "t")
    del broker.steps[:]
    error, message = await alter(broker, kind, name, wish)
    assert error == code
    assert message
    assert broker.steps == []


async def test_alter_for_validation_only() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    wish = ("max.message.bytes", 0, "500")
    assert await alter(broker, TOPIC, "t", wish, validate_only=True) == (0, None)
    assert broker.topic("t").configs == {}
    bad = ("max.message.bytes", 0, "x")
    assert (await alter(broker, TOPIC, "t", bad, validate_only=True))[0] == (
        ErrorCode.INVALID_CONFIG
    )


async def test_alter_the_same_setting_or_resource_twice() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    wish = ("max.message.bytes", 0, "500")
    assert (await alter(broker, TOPIC, "t", wish, wish))[0] == ErrorCode.INVALID_REQUEST
    resource = AlterConfigsResource(TOPIC, "t", [AlterableConfig(*wish)])
    answer = await call(broker, IncrementalAlterConfigsRequest([resource, resource]), 1)
    assert [row.error_code for row in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2


async def test_the_good_resources_of_a_request_are_altered_in_one_transaction() -> None:
    broker = FakeBroker()
    for name in ("a", "b"):
        await make(broker, name)
    del broker.steps[:]
    resources = [
        AlterConfigsResource(TOPIC, name, [AlterableConfig("retention.ms", 0, "5")])
        for name in ("a", "nope", "b")
    ]
    answer = await call(broker, IncrementalAlterConfigsRequest(resources), 1)
    assert [row.error_code for row in answer.responses] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        0,
    ]
    assert broker.steps[0] == "sql configs retention.ms retention.ms"
    assert sorted(broker.steps[1:3]) == ["log alter a", "log alter b"]
    assert broker.steps[3:] == ["commit"]


async def test_alter_when_sql_fails() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    broker.metadata.fails = OSError("full")
    code, _ = await alter(broker, TOPIC, "t", ("max.message.bytes", 0, "500"))
    assert code == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.partition("t").config.max_message_bytes == 1048588


async def test_broker_settings_reach_every_topic_that_has_none_of_its_own() -> None:
    broker = FakeBroker(log_retention_ms="1")
    for index in range(45):
        await make(broker, f"t{index}")
    await make(broker, "own", retention_ms="7")
    assert (await alter(broker, BROKER, "", ("log.retention.ms", 0, "2")))[0] == 0
    assert {broker.partition(f"t{i}").config.retention_ms for i in range(45)} == {2}
    assert (await alter(broker, BROKER, "1", ("log.retention.ms", 0, "3")))[0] == 0
    assert broker.partition("t9").config.retention_ms == 3
    assert broker.partition("own").config.retention_ms == 7
    assert broker.env.pauses
    assert (await alter(broker, BROKER, "1", ("log.retention.ms", 1, None)))[0] == 0
    assert broker.partition("t9").config.retention_ms == 2
    assert (await alter(broker, BROKER, "", ("log.retention.ms", 1, None)))[0] == 0
    assert broker.partition("t9").config.retention_ms == 1
    await make(broker, "later")
    assert broker.partition("later").config.retention_ms == 1


async def test_a_dynamic_broker_setting_acts_at_once() -> None:
    broker = FakeBroker()
    assert (await alter(broker, BROKER, "1", ("max.connections", 0, "5")))[0] == 0
    assert broker.config.max_connections == 5
    assert broker.metadata.stored == {(BROKER, "1", "max.connections"): "5"}


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_all(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t", retention_ms="5", max_message_bytes="6")
    resource = OldResource(TOPIC, "t", [OldConfig("retention.ms", "8")])
    (row,) = (await call(broker, AlterConfigsRequest([resource]), version)).responses
    assert (row.error_code, row.error_message) == (0, None)
    assert broker.topic("t").configs == {"retention.ms": "8"}
    assert broker.partition("t").config.max_message_bytes == 1048588


@pytest.mark.parametrize(
    ("kind", "configs", "code"),
    [
        (TOPIC, [OldConfig("retention.ms", None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, [OldConfig("retention.ms", "x")], ErrorCode.INVALID_CONFIG),
        (LOGGER, [OldConfig("root", "INFO")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_alter_configs_errors(kind: int, configs: list[OldConfig], code: ErrorCode) -> None:
    broker = FakeBroker()
    await make(broker, "t")
    answer = await call(broker, AlterConfigsRequest([OldResource(kind, "t", configs)]), 2)
    assert answer.responses[0].error_code == code


# -- ListConfigResources


async def test_list_config_resources() -> None:
    broker = FakeBroker()
    await make(broker, "t")

    async def listed(*kinds: int) -> set[tuple[int, str]]:
        answer = await call(broker, ListConfigResourcesRequest(list(kinds)), 1)
        assert answer.error_code == 0
        return {(row.resource_type, row.resource_name) for row in answer.config_resources}

    brokers = {(kind, node) for kind in (BROKER, LOGGER) for node in ("1", "2")}
    assert await listed() == {(TOPIC, "t")} | brokers
    assert await listed(TOPIC) == {(TOPIC, "t")}
    assert await listed(GROUP, METRICS) == set()
    answer = await call(broker, ListConfigResourcesRequest([1]), 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (await call(broker, ListConfigResourcesRequest(), 0)).config_resources == []
    assert {kind.value for kind in ResourceType} == {TOPIC, BROKER, LOGGER, METRICS, GROUP}


# -- DescribeLogDirs


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_log_dirs(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "a", 2)
    await make(broker, "b", 1)
    broker.partition("a", 1).size_bytes = 123
    answer = await call(broker, DescribeLogDirsRequest(None), version)
    (row,) = answer.results
    assert (row.log_dir, row.error_code) == (broker.folder, 0)
    topics = by_name(row.topics)
    assert [(p.partition_index, p.partition_size) for p in topics["a"].partitions] == [
        (0, 0),
        (1, 123),
    ]
    assert set(topics) == {"a", "b"}
    if version >= 4:
        assert (row.total_bytes, row.usable_bytes) == (1000, 400)
    wanted = [DescribableLogDirTopic("a", [1, 1, 7, -1]), DescribableLogDirTopic("nope", [0])]
    (row,) = (await call(broker, DescribeLogDirsRequest(wanted), version)).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in row.topics] == [("a", [1])]


async def test_describe_log_dirs_asks_sql_for_what_is_not_in_memory() -> None:
    broker = FakeBroker()
    await make(broker, "a", 2)
    await make(broker, "b", 1)
    numbers = [row.number for row in broker.topic("a").partitions]
    for number in numbers:
        del broker.log.partitions[number]
    broker.log.loader.fresh_from = numbers[1] + 1
    broker.storage.sizes = {numbers[0]: 55, numbers[1]: 0}
    (row,) = (await call(broker, DescribeLogDirsRequest(None), 4)).results
    sizes = {t.name: [p.partition_size for p in t.partitions] for t in row.topics}
    assert sizes == {"a": [55, 0], "b": [0]}
    assert broker.storage.asked == [numbers]
    broker.storage.fails = MetadataError("gone")
    (row,) = (await call(broker, DescribeLogDirsRequest(None), 4)).results
    assert (row.error_code, row.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


async def test_describe_log_dirs_when_the_disk_fails() -> None:
    broker = FakeBroker()
    await make(broker, "a")
    broker.env.fs.fails = OSError("gone")
    (row,) = (await call(broker, DescribeLogDirsRequest(None), 4)).results
    assert (row.error_code, row.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


# -- InitProducerId


@pytest.mark.parametrize("version", range(6))
async def test_init_producer_id(version: int) -> None:
    broker = FakeBroker()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    first = await call(broker, request, version)
    second = await call(broker, request, version)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert second.producer_id == first.producer_id + 1


@pytest.mark.parametrize(
    ("transactional_id", "producer_id", "epoch", "code"),
    [
        ("tx", -1, -1, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("", -1, -1, ErrorCode.INVALID_REQUEST),
        (None, 7, -1, ErrorCode.INVALID_REQUEST),
        (None, -1, 7, ErrorCode.INVALID_REQUEST),
        (None, 7, 7, ErrorCode.NONE),
    ],
)
async def test_init_producer_id_errors(
    transactional_id: str | None, producer_id: int, epoch: int, code: ErrorCode
) -> None:
    request = InitProducerIdRequest(transactional_id, 1000, producer_id, epoch)
    answer = await call(FakeBroker(), request, 4)
    assert answer.error_code == code
    assert (answer.producer_id == -1) == bool(code)
    assert answer.producer_epoch == (-1 if code else 0)  # a fresh id, whatever it had
