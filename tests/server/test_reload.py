"""SIGHUP, or a changed file: it is read again; dynamic settings change, others are reported.

Covers: kafkawire.server.reload, kafkawire.changed_content.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafkawire.broker.options import ServeOptions
from kafkawire.cli.serving.options import Given
from kafkawire.cli.serving.run import read, serve_options
from kafkawire.cli.serving.sources import read_file
from kafkawire.codec.configs.settings import ConfigError
from kafkawire.server.reload import ConfigFile, Reloader
from tests.kit.admin import FakeBroker
from tests.kit.configs import BROKER, alter, make
from tests.kit.waiting import ticks

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


def lines(caplog: pytest.LogCaptureFixture, file: Path) -> list[str]:
    said = [record.getMessage() for record in caplog.records if str(file) in record.getMessage()]
    caplog.clear()
    return said


async def test_a_changed_file_takes_effect_once_it_is_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "k.toml"
    start = "[settings]\nlog.retention.ms = 5\nnum.partitions = 2\n"
    file.write_text(start)
    given = Given({"data": [str(tmp_path / "d")], "listen": ["127.0.0.1:0"]}, [], str(file), False)

    def reread() -> ServeOptions:
        return serve_options(read(given, {}))

    broker = broker_before()
    watched = ConfigFile(str(file), lambda: read_file(str(file)))
    reloader = Reloader(reread(), reread, watched)
    running = asyncio.create_task(reloader.run(broker))  # type: ignore[arg-type]

    async def polled(times: int = 2) -> list[str]:
        for _ in range(times):
            await reloader.check(broker, watched)  # type: ignore[arg-type]
            await ticks(50)
        return lines(caplog, file)

    assert await polled() == []
    file.write_text(start.replace("= 5", "= 7").replace("= 2", "= 3"))
    assert await polled(1) == [], "it may be half-written"
    assert await polled(1) == [
        f"{file}: log.retention.ms is now '7'",
        f"{file}: changed, but needs a restart: num.partitions",
    ]
    assert broker.config.texts["log.retention.ms"] == "7"
    file.write_text(start[:-5])  # the last line is cut off
    (said,) = await polled(4)
    assert said.startswith(f"{file}: nothing was changed: config={file}: it must be a valid TOML")
    file.write_text("")
    assert await polled(4) == [f"{file}: nothing was changed: the file is empty"]
    file.unlink()
    (said,) = await polled(4)
    assert "a readable file" in said
    assert broker.config.texts["log.retention.ms"] == "7"
    file.write_text(start)
    assert f"{file}: log.retention.ms is now '5'" in await polled()
    running.cancel()


def test_a_pipe_is_read_only_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_file(str(tmp_path / "pipe")) is None
