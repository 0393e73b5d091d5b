"""Access rules made by the admin clients of confluent-kafka and kafka-python, and what a client
without rights gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
)
from kafka.admin import ResourcePattern as Pattern
from kafka.admin import ResourcePatternFilter as PatternFilter
from kafka.admin import ResourceType as Kind

from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_port

LOG_IN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
ALICE = {**LOG_IN, "sasl.username": "alice", "sasl.password": "pw"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(address of the administrator, address of users)"""
    folder = tmp_path_factory.mktemp("acls")
    users = folder / "users"
    users.write_text("alice:pw\n")
    users.chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "authorizer": "acl",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.plain.users.file": users,
        "group.initial.rebalance.delay.ms": 0,
        "audit.log": folder / "audit.jsonl",
    }
    with BrokerProcess(
        folder / "data", settings=settings, listeners=[f"SASL_PLAINTEXT://{address}"]
    ) as process:
        yield process.bootstrap, address
        assert "Traceback" not in process.output
    assert '"event": "acl created"' in (folder / "audit.jsonl").read_text()


def binding(
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> AclBinding:
    allow = AclPermissionType.ALLOW
    return AclBinding(kind, name, pattern, "User:alice", "*", operation, allow)


def every() -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, "User:alice", None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip


def code_of(call: Any) -> int:
    with pytest.raises(KafkaException) as caught:
        call()
    return int(caught.value.args[0].code())


def produced(address: str, topic: str, **more: Any) -> KafkaError | None:
    """The error of one record."""
    errors: list[KafkaError | None] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": address, **ALICE, **more})
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    return errors[0]


def test_client_without_rights_and_with_them(broker: tuple[str, str]) -> None:
    admin_address, address = broker
    admin = AdminClient({"bootstrap.servers": admin_address})
    for future in admin.create_topics([NewTopic("orders", 1), NewTopic("hidden", 1)]).values():
        future.result(30)
    alice = AdminClient({"bootstrap.servers": address, **ALICE})
    assert alice.list_topics(timeout=30).topics == {}
    assert code_of(lambda: next(iter(alice.create_topics([NewTopic("new", 1)]).values())).result())\
        == KafkaError.TOPIC_AUTHORIZATION_FAILED  # fmt: skip
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    described = next(iter(alice.describe_configs([resource]).values()))
    assert code_of(described.result) == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    refused = produced(address, "orders")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    rules = [
        binding(ResourceType.TOPIC, "ord", AclOperation.WRITE, ResourcePatternType.PREFIXED),
        binding(ResourceType.TOPIC, "orders", AclOperation.READ),
        binding(ResourceType.GROUP, "billing", AclOperation.READ),
    ]
    for future in admin.create_acls(rules).values():
        future.result(30)
    assert sorted(admin.describe_acls(every()).result(30)) == sorted(rules)
    assert produced(address, "orders") is None
    assert produced(address, "orders", **{"enable.idempotence": True}) is None
    assert list(alice.list_topics(timeout=30).topics) == ["orders"]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, **ALICE, "group.id": "billing",
         "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.subscribe(["orders"])
    messages = consumer.consume(2, 30)
    assert [message.value() for message in messages] == [b"v", b"v"]
    consumer.commit(asynchronous=False)
    consumer.close()

    other = confluent_kafka.Consumer({"bootstrap.servers": address, **ALICE, "group.id": "other"})
    other.subscribe(["orders"])
    message = other.poll(30)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    other.close()
    (deleted,) = admin.delete_acls([every()]).values()
    assert len(deleted.result(30)) == 3
    refused = produced(address, "orders")
    assert refused is not None


def test_rules_of_kafka_python(broker: tuple[str, str]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker[0])
    rule = ACL("User:bob", "*", ACLOperation.READ, ACLPermissionType.ALLOW,
               Pattern(Kind.TOPIC, "t"))  # fmt: skip
    wanted = ACLFilter("User:bob", "*", ACLOperation.ANY, ACLPermissionType.ANY,
                       PatternFilter(Kind.ANY, None, ACLResourcePatternType.ANY))  # fmt: skip
    created = admin.create_acls([rule])
    assert (len(created["succeeded"]), created["failed"]) == (1, [])
    found, error = admin.describe_acls(wanted)
    assert (found, error) == ([rule], kafka.errors.NoError)
    ((_, gone, failure),) = admin.delete_acls([wanted])
    assert (gone, failure) == ([rule], kafka.errors.NoError)
    assert admin.describe_acls(wanted)[0] == []
    admin.close()
