"""The address with which the follower on the machine of a broker is registered.

Covers: kafkawire.broker.followers.opening.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.broker.followers.opening import advertised_address, own_follower
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.offsets.catalog import replica_sets
from kafkawire.offsets.catalog.replica_sets import FollowerRow
from kafkawire.replication.options import FOLLOWER_FOLDER
from tests.kit.env import memory_env
from tests.kit.followers import RunningFollower
from tests.kit.server import running

LISTENERS = {"PLAINTEXT": ("clients.example", 9092), "TLS": ("public.example", 9093)}


@pytest.mark.parametrize(
    ("listener", "advertised", "expected"),
    [
        ("", "", None),
        ("", "node-1.example:19099", None),
        ("10.0.0.1:9099", "", ("10.0.0.1", 9099)),
        ("[fe80::1]:9099", "", ("fe80::1", 9099)),
        ("0.0.0.0:9099", "", ("clients.example", 9099)),
        ("[::]:9099", "", ("clients.example", 9099)),
        (":9099", "", ("clients.example", 9099)),
        ("0.0.0.0:9099", "node-1.example:19099", ("node-1.example", 19099)),
        ("10.0.0.1:9099", "[fe80::1]:19099", ("fe80::1", 19099)),
    ],
)
def test_address_that_other_brokers_connect_to(
    listener: str, advertised: str, expected: tuple[str, int] | None
) -> None:
    config = BrokerConfig(
        {"replication.listener": listener, "replication.advertised.listener": advertised}
    )
    assert advertised_address(config, LISTENERS) == expected


async def registered(url: str) -> list[FollowerRow]:
    metadata = SqlMetadata(url)
    await metadata.open()
    try:
        return await metadata.transact(replica_sets.load_followers)
    finally:
        await metadata.close()


async def test_each_start_registers_the_present_address(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/shared.db"
    data = tmp_path / "data"
    data.mkdir()
    follower = RunningFollower(data / FOLLOWER_FOLDER, 1)
    identity = follower.row
    follower.stop()
    for advertised, expected in (
        ("", ("127.0.0.1", 9099)),
        ("node-1.example:19099", ("node-1.example", 19099)),
    ):
        settings = {
            "replication_listener": "127.0.0.1:9099",
            "replication_advertised_listener": advertised,
        }
        async with running(data, metadata=url, node_id="1", **settings):
            (row,) = await registered(url)
        assert row == FollowerRow(identity.replica_id, 1, *expected, identity.secret)


async def test_broker_starts_without_a_follower_whose_identity_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own follower, which may be repaired meanwhile, does not count as another machine."""
    url = f"sqlite+aiosqlite:///{tmp_path}/shared.db"
    data = tmp_path / "data"
    data.mkdir()
    follower = RunningFollower(data / FOLLOWER_FOLDER, 1)
    follower.stop()
    listener = {"replication_listener": f"127.0.0.1:{follower.port}"}
    async with running(data, metadata=url, node_id="1", **listener):
        pass
    (row,) = await registered(url)
    (data / FOLLOWER_FOLDER / "identity").write_bytes(b"damaged")
    async with running(data, metadata=url, node_id="1", **listener):
        pass
    assert "the follower of this machine is not registered: " in caplog.text
    assert "Broker 1 starts without it" in caplog.text
    config = BrokerConfig({"replication.listener": listener["replication_listener"]})
    found = await own_follower(memory_env(), config, LISTENERS, str(data), [row])
    assert found == row.replica_id
    assert await own_follower(memory_env(), config, LISTENERS, str(data), []) == ""
