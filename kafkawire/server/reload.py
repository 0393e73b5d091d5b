"""Read the configuration file again when it has changed or at SIGHUP, and apply dynamic settings.

Dynamic settings and the log level are applied. Changes that need a restart, or are overridden by
IncrementalAlterConfigs, are logged; a file with an error changes nothing. Options of the command
line and of the environment take precedence over the file and are unchanged. Created by
`server.run`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.changed_content import POLL_S, SettledContent
from kafkawire.codec.configs.settings import BROKER_CONFIGS

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.broker.options import ServeOptions

logger = logging.getLogger(__name__)

SIGHUP = "SIGHUP"
NEED_A_RESTART = (
    "listeners", "advertised", "data", "metadata_url", "log_format", "workers", "worker_ports",
    "console",
)  # fmt: skip
"""Options that are read only at start. The log level is not one of them."""


class ConfigFile(NamedTuple):
    """The configuration file. `read` returns its content in any thread; None: that never changes,
    since it is no regular file. Raises OSError."""

    path: str
    read: Callable[[], bytes | None]


class Reloader:
    """Reloads the configuration. `reread` collects the options again in a thread; it raises
    ValueError with a sentence for invalid ones. `file`: the configuration file, None without."""

    def __init__(
        self,
        options: ServeOptions,
        reread: Callable[[], ServeOptions],
        file: ConfigFile | None = None,
    ) -> None:
        self._options = options
        self._reread = reread
        self._file = file
        self._content = SettledContent()
        self._requested = asyncio.Event()
        self._why = ""

    def request_reload(self, why: str = SIGHUP) -> None:
        """Handle the signal, or a change. Requests during a reload cause one more reload."""
        self._why = why
        self._requested.set()

    async def watch_file(self, broker: Broker) -> None:
        """Request a reload when the file has changed, until cancelled; the first time when it was
        read twice, since it may have changed before."""
        while self._file is not None:
            await broker.env.sleep(POLL_S)
            await self.check(broker, self._file)

    async def check(self, broker: Broker, file: ConfigFile) -> None:
        """Request a reload if the file has changed, and is the same as at the last call."""
        try:
            content = await broker.env.offload.submit("files", file.read)
        except OSError:
            content = b"cannot be read"  # which the reload reports
        if content is None or not self._content.is_new(sha256(content).digest()):
            return
        if content:
            self.request_reload(file.path)
        else:  # what a crash or a full disk leaves; it would reset all settings
            logger.error("%s: nothing was changed: the file is empty", file.path)

    async def run(self, broker: Broker) -> None:
        """Reload at every request until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            try:
                await self._reload(broker, self._why)
            except Exception:  # the broker keeps its configuration
                logger.exception("%s: reloading failed, the configuration is unchanged", self._why)

    async def _reload(self, broker: Broker, why: str) -> None:
        try:
            fresh = await broker.env.offload.submit("files", self._reread)
            changes = _changes(self._options.settings, fresh.settings)
            dynamic = {name: text for name, text in changes.items() if BROKER_CONFIGS[name].dynamic}
            overridden = await broker.topics.configs.replace_static(dynamic)
        except (ValueError, OSError) as wrong:
            logger.error("%s: nothing was changed: %s", why, wrong)
            return
        restart = [name for name in NEED_A_RESTART if _differs(self._options, fresh, name)]
        restart += changes.keys() - dynamic.keys()
        restart += _changes(self._options.listener_settings, fresh.listener_settings)
        for name, text in dynamic.items():
            _log_setting(why, name, text, overridden.get(name))
        if fresh.log_level != self._options.log_level:
            logging.getLogger().setLevel(fresh.log_level.upper())
            logger.warning("%s: the log level is now %s", why, fresh.log_level)
        if restart:
            names = ", ".join(sorted(restart))
            logger.warning("%s: changed, but needs a restart: %s", why, names)
        if fresh == self._options and why == SIGHUP:
            logger.info("%s: nothing has changed", why)
        self._options = fresh


def _changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    """Return the changed settings; None: back to the default."""
    names = sorted(before.keys() | after.keys())
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


def _differs(before: ServeOptions, after: ServeOptions, name: str) -> bool:
    return bool(getattr(before, name) != getattr(after, name))


def _log_setting(why: str, name: str, text: str | None, stored: str | None) -> None:
    value = "its default" if text is None else repr(text)
    if stored is None:
        logger.info("%s: %s is now %s", why, name, value)
    else:
        logger.warning(
            "%s: %s is %s in the configuration, but %r was set by IncrementalAlterConfigs and "
            "stays in force",
            why,
            name,
            value,
            stored,
        )
