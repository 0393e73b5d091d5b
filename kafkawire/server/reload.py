"""SIGHUP: read the configuration file again and apply dynamic settings.

Dynamic settings and the log level are applied. Changes that need a restart, or are overridden by
IncrementalAlterConfigs, are logged; a file with an error changes nothing. Options of the command
line and of the environment take precedence over the file and are unchanged. Created by
`server.run`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.codec.configs.settings import BROKER_CONFIGS

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.broker.options import ServeOptions

logger = logging.getLogger(__name__)

NEED_A_RESTART = (
    "listeners", "advertised", "data", "metadata_url", "log_format", "workers", "worker_ports",
)  # fmt: skip
"""Options that are read only at start. The log level is not one of them."""


class Reloader:
    """Reloads the configuration. `reread` collects the options again in a thread; it raises
    ValueError with a sentence for invalid ones."""

    def __init__(self, options: ServeOptions, reread: Callable[[], ServeOptions]) -> None:
        self._options = options
        self._reread = reread
        self._requested = asyncio.Event()

    def request_reload(self) -> None:
        """Handle the signal. Signals during a reload cause one more reload."""
        self._requested.set()

    async def run(self, broker: Broker) -> None:
        """Reload at every request until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            try:
                await self._reload(broker)
            except Exception:  # the broker keeps its configuration
                logger.exception("SIGHUP: reloading failed, the configuration is unchanged")

    async def _reload(self, broker: Broker) -> None:
        try:
            fresh = await broker.env.offload.submit("files", self._reread)
            changes = _changes(self._options.settings, fresh.settings)
            dynamic = {name: text for name, text in changes.items() if BROKER_CONFIGS[name].dynamic}
            overridden = await broker.topics.configs.replace_static(dynamic)
        except (ValueError, OSError) as wrong:
            logger.error("SIGHUP: nothing was changed: %s", wrong)
            return
        restart = [name for name in NEED_A_RESTART if _differs(self._options, fresh, name)]
        restart += changes.keys() - dynamic.keys()
        restart += _changes(self._options.listener_settings, fresh.listener_settings)
        for name, text in dynamic.items():
            _log_setting(name, text, overridden.get(name))
        if fresh.log_level != self._options.log_level:
            logging.getLogger().setLevel(fresh.log_level.upper())
            logger.warning("SIGHUP: the log level is now %s", fresh.log_level)
        if restart:
            logger.warning("SIGHUP: changed, but needs a restart: %s", ", ".join(sorted(restart)))
        if fresh == self._options:
            logger.info("SIGHUP: nothing has changed")
        self._options = fresh


def _changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    """Return the changed settings; None: back to the default."""
    names = sorted(before.keys() | after.keys())
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


def _differs(before: ServeOptions, after: ServeOptions, name: str) -> bool:
    return bool(getattr(before, name) != getattr(after, name))


def _log_setting(name: str, text: str | None, stored: str | None) -> None:
    value = "its default" if text is None else repr(text)
    if stored is None:
        logger.info("SIGHUP: %s is now %s", name, value)
    else:
        logger.warning(
            "SIGHUP: %s is %s in the configuration, but %r was set by IncrementalAlterConfigs and "
            "stays in force",
            name,
            value,
            stored,
        )
