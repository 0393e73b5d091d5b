"""Share states whose coordinator is another broker.

Covers: kafkawire.broker.other_brokers.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.share.persister import SharePartitionKey, StateBatch
from kafkawire.share.state.machine import DeleteState, InitializeState, ReadSummary
from tests.kit.two_brokers import create, two_brokers


@pytest.mark.slow
async def test_the_persister_asks_the_broker_that_leads_the_partition(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as two:
        for broker in (two.first, two.second):
            server: Any = SimpleNamespace(broker=broker)
            await create(server, "__share_group_state", [2, 2])
        await two.second.share_states.open()  # as when the topic of another broker is found
        topic_id = two.second.catalog.by_name["t"].id
        key = SharePartitionKey("g", topic_id, 3)
        persister = two.first.share_persister
        (made,) = await persister.execute_all([InitializeState(key, 1, 0)])
        assert made.code is E.NONE
        await persister.write(key, 1, 0, 0, 2, (StateBatch(0, 1, 2, 1),))
        assert (await persister.read(key, 4)).batches == (StateBatch(0, 1, 2, 1),)
        (found,) = await two.second.share_persister.execute_all([ReadSummary(key)])
        assert found.state is not None
        assert (found.state.leader_epoch, found.state.delivery_complete_count) == (4, 2)
        (gone,) = await persister.execute_all([DeleteState(key)])
        assert gone.code is E.NONE
        assert not any(each.shard.partitions for each in two.second.share_states.list_led())
        assert not two.first.share_states.list_led()
