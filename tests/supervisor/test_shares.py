"""Settings of a machine, divided among its workers."""

from __future__ import annotations

import pytest

from kafkawire.codec.configs.settings import BROKER_CONFIGS, BrokerConfig, check_broker
from kafkawire.supervisor.shares import DIVIDED, divide_settings


def test_each_worker_gets_an_equal_part() -> None:
    whole, part = BrokerConfig({}), BrokerConfig(divide_settings({}, 4))
    assert part.hot_bytes * 4 == whole.hot_bytes
    assert part.recycle_bytes * 4 == whole.recycle_bytes
    assert part.inflight_bytes * 4 == whole.inflight_bytes
    assert part.tier_cache_bytes * 4 == whole.tier_cache_bytes


def test_settings_that_were_given_are_divided_too() -> None:
    found = divide_settings({"hot.bytes": "1073741824", "log.dirs": "x", "recycle.bytes": "0"}, 2)
    assert found["hot.bytes"] == str(512 << 20)
    assert found["recycle.bytes"] == "0"
    assert found["log.dirs"] == "x"


def test_what_has_no_limit_is_not_divided() -> None:
    found = divide_settings({"worker.bytes.per.second": "-1"}, 3)
    assert found["worker.bytes.per.second"] == "-1"
    assert "remote.log.manager.copy.max.bytes.per.second" not in found
    assert "log.cleaner.io.max.bytes.per.second" not in found
    rates = divide_settings({"log.cleaner.io.max.bytes.per.second": "1e6"}, 4)
    assert rates["log.cleaner.io.max.bytes.per.second"] == "250000.0"


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("small", [False, True])
def test_shares_are_allowed_values(workers: int, small: bool) -> None:
    """Also those of the smallest values that one broker may have."""
    given = {}
    if small:
        given = {name: str(int(BROKER_CONFIGS[name].at_least or 1)) for name in DIVIDED}
        given["connection.inflight.bytes"] = given["inflight.bytes"]
    found = divide_settings(given, workers)
    check_broker(found)
    config = BrokerConfig(found)
    assert config.connection_inflight_bytes <= config.inflight_bytes


def test_divided_settings_exist_and_are_read_at_start_or_dynamic() -> None:
    assert set(DIVIDED) <= set(BROKER_CONFIGS)
    assert all(DIVIDED.values())
