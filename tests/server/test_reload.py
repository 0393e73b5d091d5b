"""SIGHUP: the configuration file is read again; dynamic settings change, others are reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafkawire.broker.options import ServeOptions
from kafkawire.cli.serving.options import Given
from kafkawire.cli.serving.run import read, serve_options
from kafkawire.codec.configs.settings import ConfigError
from kafkawire.server.reload import Reloader
from tests.kit.admin import FakeBroker
from tests.kit.configs import BROKER, alter, make

BEFORE = ServeOptions([], {}, "/data", "", {"log.retention.ms": "5", "num.partitions": "2"})


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    before = logging.getLogger().level
    caplog.set_level(logging.INFO)
    yield
    logging.getLogger().setLevel(before)


async def reloaded(
    broker: FakeBroker, *files: ServeOptions | Exception, caplog: pytest.LogCaptureFixture
) -> list[str]:
    """The log lines of reading the file again, once for each of `files`."""
    found = iter(files)

    def reread() -> ServeOptions:
        file = next(found)
        if isinstance(file, Exception):
            raise file
        return file

    reloader = Reloader(BEFORE, reread)
    running = asyncio.create_task(reloader.run(broker))  # type: ignore[arg-type]
    for _ in files:
        reloader.request_reload()
        for _ in range(20):
            await asyncio.sleep(0)
    running.cancel()
    return [record.getMessage() for record in caplog.records if "SIGHUP" in record.getMessage()]


def broker_before() -> FakeBroker:
    return FakeBroker(log_retention_ms="5", num_partitions="2")


async def test_dynamic_settings_take_effect_at_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = broker_before()
    await make(broker, "t")
    after = replace(BEFORE, settings={"log.retention.ms": "7", "max.connections": "9",
                                      "num.partitions": "2"})  # fmt: skip
    assert await reloaded(broker, after, after, caplog=caplog) == [
        "SIGHUP: log.retention.ms is now '7'",
        "SIGHUP: max.connections is now '9'",
        "SIGHUP: nothing has changed",
    ]
    assert broker.config.max_connections == 9
    assert broker.partition("t").config.retention_ms == 7


async def test_removed_setting_returns_to_default(caplog: pytest.LogCaptureFixture) -> None:
    broker = broker_before()
    await make(broker, "t")
    after = replace(BEFORE, settings={"num.partitions": "2"})
    assert await reloaded(broker, after, caplog=caplog) == [
        "SIGHUP: log.retention.ms is now its default"
    ]
    assert broker.partition("t").config.retention_ms == 604_800_000


async def test_settings_that_need_restart_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    broker = broker_before()
    after = replace(
        BEFORE, data="/elsewhere", settings={"log.retention.ms": "5", "num.partitions": "3"}
    )
    assert await reloaded(broker, after, caplog=caplog) == [
        "SIGHUP: changed, but needs a restart: data, num.partitions"
    ]
    assert broker.config.num_partitions == 2


async def test_log_level_is_reloaded(caplog: pytest.LogCaptureFixture) -> None:
    after = replace(BEFORE, log_level="error")
    assert (
        await reloaded(broker_before(), after, caplog=caplog)
        == ["SIGHUP: the log level is now error"]
        or logging.getLogger().level == logging.ERROR
    )
    assert logging.getLogger().level == logging.ERROR


async def test_stored_settings_override_file(caplog: pytest.LogCaptureFixture) -> None:
    broker = broker_before()
    await make(broker, "t")
    await alter(broker, BROKER, "", ("log.retention.ms", 0, "6"))
    after = replace(BEFORE, settings={"log.retention.ms": "7", "num.partitions": "2"})
    (said,) = await reloaded(broker, after, caplog=caplog)
    assert "'7' in the configuration, but '6' was set by IncrementalAlterConfigs" in said
    assert broker.partition("t").config.retention_ms == 6


async def test_invalid_file_changes_nothing_and_next_one_applies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = broker_before()
    lag = "log.cleaner.{}.compaction.lag.ms"
    contradiction = {lag.format("min"): "9", lag.format("max"): "8"}
    after = replace(BEFORE, settings={**BEFORE.settings, "max.connections": "9"})
    said = await reloaded(
        broker,
        ConfigError("max.connections", "many", "it must be a whole number"),
        replace(BEFORE, settings=contradiction),
        RuntimeError("a bug"),
        after,
        caplog=caplog,
    )
    assert said[0].startswith("SIGHUP: nothing was changed: max.connections=many")
    assert "reloading failed" in said[-2]
    assert said[-1] == "SIGHUP: max.connections is now '9'"
    assert broker.config.max_connections == 9


def test_command_line_overrides_reloaded_file(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    data = {"data": [str(tmp_path / "d")], "listen": ["127.0.0.1:0"]}
    given = Given(data, ["num.partitions=2"], str(file), False)
    for count in ("5", "6"):
        file.write_text(f"[settings]\nnum.partitions = 9\nmax.connections = {count}\n")
        options = serve_options(read(given, {}))
        assert options.settings == {"num.partitions": "2", "max.connections": count}
