"""UpdateFeatures: levels of transaction.version change, survive a restart and are obeyed.

Covers: kafkawire.handlers.update_features, kafkawire.broker.features,
kafkawire.codec.configs.features, kafkawire.handlers.api_versions.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.configs.features import FeatureUpdate, FinalizedFeatures, check_update
from kafkawire.codec.errors import ErrorCode as E
from kafkawire.log.io.disk import real_env
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.end_txn import EndTxnRequest
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kafkawire.metadata.store import MetadataError
from kafkawire.server.run import Server
from tests.kit.admin import ME, FakeBroker, call
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.server import options, port_of, running

TV, GV, SV = "transaction.version", "group.version", "share.version"
STREAMS = "streams.version"
UP, SAFE, UNSAFE = 1, 2, 3
REFUSED = "The update failed for all features since the following feature had an error: "
NEEDS_TYPE = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe "
    "or unsafe downgrade."
)

Row = tuple[str, int, int]


def update(*rows: Row, validate_only: bool = False) -> UpdateFeaturesRequest:
    keys = [FeatureUpdateKey(name, level, upgrade_type=kind) for name, level, kind in rows]
    return UpdateFeaturesRequest(feature_updates=keys, validate_only=validate_only)


async def levels(broker: FakeBroker, version: int = 4) -> tuple[int, dict[str, int]]:
    """(epoch, finalized levels) as clients read them."""
    answer = await call(broker, ApiVersionsRequest("test", "1"), version)
    found = {each.name: each.max_version_level for each in answer.finalized_features}
    assert (found.pop(GV), found.pop(SV), found.pop(STREAMS)) == (1, 2, 1)
    return answer.finalized_features_epoch, found


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", [SAFE, UNSAFE])
async def test_level_is_lowered_and_raised(version: int, kind: int) -> None:
    broker = FakeBroker()
    for epoch, (level, how) in enumerate([(1, kind), (0, kind), (1, UP), (2, UP)]):
        before = await levels(broker)
        dry = await call(broker, update((TV, level, how), validate_only=True), version)
        assert await levels(broker) == before
        answer = await call(broker, update((TV, level, how)), version)
        assert answer == dry
        assert (answer.error_code, answer.error_message) == (0, None)
        rows = [(each.feature, each.error_code, each.error_message) for each in answer.results]
        assert rows == ([(TV, 0, "NONE")] if version == 1 else [])
        assert await levels(broker) == (epoch + 1, {TV: level} if level else {})
        assert broker.steps[epoch:] == [f"sql features {TV}={level}"]


@pytest.mark.parametrize(
    ("version", "validate_only"), [(0, False), (1, False), (1, True), (2, False), (2, True)]
)
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((TV, 1, UP), f"Invalid update version 1 for feature {TV}. {NEEDS_TYPE}"),
        (
            (TV, 3, UP),
            f"Invalid update version 3 for feature {TV}. "
            f"Local controller {ME} only supports versions 0-2",
        ),
        (
            (TV, -1, UP),
            f"Invalid update version -1 for feature {TV}. A feature version cannot be less than 0.",
        ),
        (
            ("kraft.version", 1, UP),
            "Invalid update version 1 for feature kraft.version. "
            f"Local controller {ME} does not support this feature.",
        ),
        (("x", 0, UP), "Invalid update version 0 for feature x. Feature x not found."),
        (("", 0, UP), "Invalid update version 0 for feature . Feature  not found."),
    ],
)
async def test_refused_update_changes_nothing(
    version: int, validate_only: bool, row: Row, message: str
) -> None:
    broker = FakeBroker()
    for rows in ([row], [(TV, 2, UP), row] if row[0] != TV else [row, row]):
        answer = await call(broker, update(*rows, validate_only=validate_only), version)
        assert answer.error_code == E.INVALID_UPDATE_VERSION
        assert answer.error_message == REFUSED + message
        assert answer.results == []
    assert await levels(broker) == (0, {TV: 2})


@pytest.mark.parametrize("kind", [0, 4, -1, 127])
async def test_unknown_upgrade_type_is_refused(kind: int) -> None:
    answer = await call(FakeBroker(), update((TV, 2, kind)), 1)
    assert answer.error_code == E.INVALID_UPDATE_VERSION
    assert answer.error_message.endswith("The controller does not support the given upgrade type.")


def test_downgrade_cannot_raise_a_level() -> None:
    features = FinalizedFeatures()
    features.finalize({TV: 1}, 1)
    for kind in (SAFE, UNSAFE):
        refused = check_update(features, FeatureUpdate(TV, 2, kind), ME)
        assert refused == (
            f"Invalid update version 2 for feature {TV}. Can't downgrade to a newer version."
        )
        assert check_update(features, FeatureUpdate(TV, 1, kind), ME) is None


async def test_first_version_cannot_lower_a_level() -> None:
    broker = FakeBroker()
    keys = [FeatureUpdateKey(TV, 0, allow_downgrade=True)]
    answer = await call(broker, UpdateFeaturesRequest(feature_updates=keys), 0)
    assert answer.error_message.endswith(NEEDS_TYPE)
    assert await levels(broker) == (0, {TV: 2})


async def test_last_of_two_levels_is_finalized_and_each_has_a_result() -> None:
    broker = FakeBroker()
    answer = await call(broker, update((TV, 1, SAFE), (TV, 0, SAFE)), 1)
    assert [each.feature for each in answer.results] == [TV, TV]
    assert await levels(broker) == (1, {})
    assert (await call(broker, update(), 1)).error_code == 0


async def test_level_that_is_finalized_already_is_not_stored() -> None:
    broker = FakeBroker()
    for kind in (UP, SAFE):
        assert (await call(broker, update((TV, 2, kind)), 2)).error_code == 0
    assert broker.steps == []


async def test_long_names_and_many_features_are_refused() -> None:
    broker = FakeBroker()
    answer = await call(broker, update(("x" * 30_000, 1, UP)), 2)
    assert answer.error_code == E.INVALID_UPDATE_VERSION
    assert len(answer.error_message) < 1000
    answer = await call(broker, update(*[(TV, 2, UP)] * 101), 2)
    assert answer.error_code == E.INVALID_REQUEST
    assert (await call(broker, update(*[(TV, 2, UP)] * 100), 2)).error_code == 0


async def test_failing_metadata_leaves_the_level() -> None:
    broker = FakeBroker()
    broker.metadata.fails = MetadataError("the disk is full")
    answer = await call(broker, update((TV, 0, SAFE)), 2)
    assert (answer.error_code, answer.error_message) == (
        E.KAFKA_STORAGE_ERROR,
        "the disk is full",
    )
    assert await levels(broker) == (0, {TV: 2})


async def features_of(client: Client) -> tuple[int, dict[str, int]]:
    answer = await client.call(ApiVersionsRequest("test", "1"), 4)
    assert [(row.name, row.min_version, row.max_version) for row in answer.supported_features] == [
        (TV, 0, 2),
        (GV, 0, 1),
        (SV, 0, 2),
        (STREAMS, 0, 1),
    ]
    found = {each.name: each.max_version_level for each in answer.finalized_features}
    assert (found.pop(GV), found.pop(SV), found.pop(STREAMS)) == (1, 2, 1)
    return answer.finalized_features_epoch, found


async def init(client: Client, name: str, pid: int = -1, epoch: int = -1) -> Any:
    """InitProducerId with the timeout of a minute."""
    return await client.call(InitProducerIdRequest(name, 60_000, pid, epoch), 5)


async def after_fencing(client: Client, name: str) -> E:
    """Open a transaction, fence it, and claim the id with the fenced epoch."""
    await client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
    owner = await init(client, name)
    topics = [AddPartitionsToTxnTopic("t", [0])]
    request = AddPartitionsToTxnRequest([], name, owner.producer_id, 0, topics)
    await client.call(request, 3)
    assert (await init(client, name)).error_code == E.CONCURRENT_TRANSACTIONS
    while (found := await init(client, name, owner.producer_id, 0)).error_code == 51:
        pass
    return E(found.error_code)


async def second_protocol(client: Client, name: str) -> list[tuple[int, int]]:
    """Commit two transactions as a client does that has not seen the level fall; return code and
    next epoch of each."""
    await client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
    pid = (await init(client, name)).producer_id
    ends = []
    for epoch in (0, 1):
        topics = [AddPartitionsToTxnTopic("t", [0])]
        one = AddPartitionsToTxnTransaction(name, pid, epoch, False, topics)
        end = EndTxnRequest(name, pid, epoch, True)
        while (
            (await client.call(AddPartitionsToTxnRequest([one]), 5))
            .results_by_transaction[0]
            .topic_results[0]
            .results_by_partition[0]
            .partition_error_code
        ):
            pass
        answer = await client.call(end, 5)
        ends.append((answer.error_code, answer.producer_epoch))
    return ends


async def test_level_is_obeyed_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as started:
        client = await Client.connect(port_of(started))
        await make(client, "t", 1)
        assert await features_of(client) == (0, {TV: 2})
        assert await after_fencing(client, "a") is E.NONE
        assert (await client.call(update((TV, 0, SAFE)), 2)).error_code == 0
        epoch, found = await features_of(client)
        assert (epoch > 0, found) == (True, {})
        assert await after_fencing(client, "b") is E.PRODUCER_FENCED
        assert await second_protocol(client, "v") == [(0, 1), (0, 2)]
        await client.close()
    async with running(tmp_path / "data") as started:
        client = await Client.connect(port_of(started))
        assert await features_of(client) == (epoch, {})
        assert started.broker.config.transaction_version == 0
        await client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["c"]), 4)
        while (await init(client, "loaded")).error_code == E.COORDINATOR_LOAD_IN_PROGRESS:
            pass
        assert await after_fencing(client, "c") is E.PRODUCER_FENCED
        assert (await client.call(update((TV, 2, UP)), 2)).error_code == 0
        last, found = await features_of(client)
        assert (last > epoch, found) == (True, {TV: 2})
        assert await after_fencing(client, "d") is E.NONE
        await client.close()


@pytest.mark.parametrize(("name", "level"), [(TV, 3), (TV, -1), ("kraft.version", 1)])
async def test_stored_level_of_a_newer_program_stops_the_start(
    name: str, level: int, tmp_path: Path
) -> None:
    async with running(tmp_path / "data"):
        pass
    with sqlite3.connect(tmp_path / "data" / "metadata.db") as stored:
        stored.execute(f"INSERT INTO features VALUES ('{name}', {level}, 1)")
    with pytest.raises(MetadataError, match=f"feature {name} is finalized at level {level}"):
        await Server.start(options(tmp_path / "data"), real_env())
