"""The persister in memory does what the port asks for. Covers: kafkawire.share.states."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.share.persister import UNKNOWN_COUNT, SharePartitionKey, ShareState, StateBatch
from kafkawire.share.states import TERMINAL, RecordState
from tests.kit.share.persister import MemoryPersister

KEY = SharePartitionKey("g", bytes(16), 0)


async def test_newer_batches_replace_and_the_start_never_goes_back() -> None:
    persister = MemoryPersister()
    persister.initialize(KEY)
    old = StateBatch(0, 9, RecordState.ACKNOWLEDGED, 1)
    await persister.write(KEY, 1, 0, 0, 10, (old,))
    await persister.write(
        KEY, 1, 0, 5, UNKNOWN_COUNT, (StateBatch(8, 11, RecordState.ARCHIVED, 2),)
    )
    await persister.write(KEY, 1, 0, 2, 3, ())
    assert await persister.read(KEY, 0) == ShareState(
        1, 5, (StateBatch(5, 7, 2, 1), StateBatch(8, 11, 4, 2)), 3
    )
    assert {RecordState.ACKNOWLEDGED, RecordState.ARCHIVED} == TERMINAL


async def test_an_earlier_leader_and_an_unknown_partition_are_refused() -> None:
    persister = MemoryPersister()
    with pytest.raises(KafkaError) as unknown:
        await persister.read(KEY, 0)
    assert unknown.value.code is ErrorCode.INVALID_REQUEST
    persister.initialize(KEY, state_epoch=2)
    await persister.read(KEY, 7)
    with pytest.raises(KafkaError) as fenced:
        await persister.write(KEY, 2, 6, 0, 0, ())
    assert fenced.value.code is ErrorCode.FENCED_LEADER_EPOCH
    with pytest.raises(KafkaError) as initialized_again:
        await persister.write(KEY, 1, 7, 0, 0, ())
    assert initialized_again.value.code is ErrorCode.FENCED_STATE_EPOCH
