"""Check, before topics with durability=s3 are created, that the tier can have their log objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kafkawire.codec.configs.durability_rules import DURABILITY, REPLICATED, S3
from kafkawire.codec.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafkawire.broker.parts import BrokerParts
    from kafkawire.messages.create_topics import CreatableTopic


async def check_storage(broker: BrokerParts, topics: Iterable[CreatableTopic]) -> None:
    """Have the storage checked if one of these topics may need log objects; the first check of a
    process makes a request. Called before the catalog is locked."""
    logs = broker.log.object_logs
    if logs is None:
        return
    needed = broker.config.durability == S3
    for topic in topics:
        needed = needed or any(each.name == DURABILITY for each in topic.configs)
        await broker.env.slices.give_way()
    if needed:
        await logs.check()


def refuse_unusable(broker: BrokerParts, configs: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG if a topic with these settings needs log objects, which the storage
    cannot have according to the last check, or followers, of which this machine has none."""
    logs = broker.log.object_logs
    if logs is not None and logs.unusable and configs.get(DURABILITY) == S3:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{DURABILITY}={S3}: {logs.unusable}")
    if configs.get(DURABILITY) == REPLICATED and not broker.config.replication_listener.strip():
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{DURABILITY}={REPLICATED}: this broker's machine has no follower: start all brokers "
            "of the cluster with replication.listener",
        )
