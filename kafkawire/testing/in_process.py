"""Brokers in this process: on an event loop of their own in a thread, or on the caller's.

    with kafkawire.testing.broker() as b:
        print(b.bootstrap)

They start in a few milliseconds once the broker is imported. They share this process's interpreter
with the test, so a busy test slows the broker; to kill one, take a BrokerProcess. At their end they
leave no threads, sockets or files.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypedDict, Unpack

from kafkawire.broker.options import Listener, ServeOptions, parse_listener
from kafkawire.codec.configs.listeners import (
    check_listeners,
    find_listener_row,
    split_listeners,
)
from kafkawire.codec.configs.settings import (
    ConfigError,
    check_broker,
    validate,
)
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import Env
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.log_lines import address_of
from kafkawire.metadata.store import DamagedMetadata
from kafkawire.server.listeners.addresses import AddressError
from kafkawire.server.run import Server, sentence_of
from kafkawire.testing.brokers import Brokers, close_env
from kafkawire.testing.commands import BrokerCommands, MovableClock
from kafkawire.testing.control import (
    MANUAL_CLOCK,
    SYSTEM_CLOCK,
    TEST_SETTINGS,
    BrokerControl,
    BrokerFailed,
    settings_for,
)
from kafkawire.testing.forks import ForkServer, inherited_environ
from kafkawire.testing.process import MAIN_LISTENER, copy_snapshot, joined_addresses
from kafkawire.testing.secured import AccessRule, Secured

HOST = "127.0.0.1"
CERTIFICATES = "certs"


@dataclass(frozen=True)
class InProcessBroker(BrokerControl):
    """A running broker: `bootstrap` is the address for clients, `data` its folder, `addresses` has
    HOST:PORT of each listener by its name (of all `brokers`, separated by commas). Its commands may
    be used from any thread."""

    port: int
    data: Path
    addresses: Mapping[str, str]
    _secured: Secured = field(repr=False)
    _commands: BrokerCommands = field(repr=False)
    _loop: asyncio.AbstractEventLoop = field(repr=False)
    _thread: int = field(default_factory=threading.get_ident, repr=False)

    @property
    def bootstrap(self) -> str:
        """Value for the bootstrap servers of clients."""
        return self.addresses[MAIN_LISTENER]

    def client_settings(self, user: str | None = None) -> dict[str, str]:
        """Return settings of a client; see BrokerProcess.client_settings."""
        return self._secured.client_settings(self.addresses, self.data / CERTIFICATES, user)

    def snapshot(self, folder: str | os.PathLike[str]) -> Path:
        """Raise ValueError: the data is complete when the broker has stopped."""
        raise ValueError(
            f"snapshot({folder}): a broker in the test's process cannot be stopped for a copy, "
            "start it with data=FOLDER, and after its end others with snapshot=FOLDER"
        )

    def _command(self, name: str, *arguments: object) -> Any:
        method = getattr(self._commands, name)
        if threading.get_ident() == self._thread:
            return method(*arguments)

        async def call() -> Any:
            result = method(*arguments)
            return await result if isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


class InProcessOptions(TypedDict, total=False):
    """Options of brokers in this process: those of BrokerProcess with the same names. `settings`
    are added to TEST_SETTINGS."""

    settings: Mapping[str, object]
    port: int
    listeners: Sequence[str]
    brokers: int
    snapshot: str | os.PathLike[str]
    users: Mapping[str, str]
    tls: bool
    acls: Sequence[AccessRule]


@contextmanager
def broker(
    data: str | os.PathLike[str] | None = None,
    *,
    clock: str = SYSTEM_CLOCK,
    **options: Unpack[InProcessOptions],
) -> Iterator[InProcessBroker]:
    """Run a broker in a thread of this process during a `with` statement.

    `data`: its folder, which is kept; None: a temporary one, which is deleted. `clock`: "system",
    or "manual" for one that `advance` moves. Raises BrokerFailed with one sentence if it cannot
    start.
    """
    settings_for(clock, {})  # checked before a thread is made
    movable = MovableClock() if clock == MANUAL_CLOCK else None
    started: Future[InProcessBroker] = Future()
    stop: Future[None] = Future()

    async def run() -> None:
        env = real_env() if movable is None else movable.env()
        async with _running(env, data, clock, **options) as made:
            started.set_result(made)
            await asyncio.wrap_future(stop)

    failures: list[BaseException] = []

    def thread() -> None:
        try:
            with asyncio.Runner(loop_factory=None if movable is None else movable.loop) as runner:
                runner.run(run())
        except BaseException as failure:
            if started.done():
                failures.append(failure)
            else:
                started.set_exception(failure)

    running = threading.Thread(target=thread, name="kafkawire-broker", daemon=True)
    running.start()
    try:
        yield started.result()
    finally:
        if not stop.cancelled():
            stop.set_result(None)
        running.join()
    if failures:
        raise failures[0]


@asynccontextmanager
async def async_broker(
    data: str | os.PathLike[str] | None = None,
    *,
    clock: str = SYSTEM_CLOCK,
    **options: Unpack[InProcessOptions],
) -> AsyncIterator[InProcessBroker]:
    """Run a broker on the current event loop during an `async with` statement; see `broker`.

    Clients that block must run in other threads, for example by asyncio.to_thread. The clock is
    that of the event loop.
    """
    if clock != SYSTEM_CLOCK:
        raise ValueError(f"clock={clock}: the clock is that of your event loop, use broker()")
    async with _running(real_env(), data, clock, **options) as made:
        yield made


@asynccontextmanager
async def _running(
    env: Env,
    data: str | os.PathLike[str] | None,
    clock: str,
    *,
    settings: Mapping[str, object] | None = None,
    port: int = 0,
    listeners: Sequence[str] = (),
    brokers: int = 1,
    snapshot: str | os.PathLike[str] | None = None,
    users: Mapping[str, str] | None = None,
    tls: bool = False,
    acls: Sequence[AccessRule] | None = None,
) -> AsyncIterator[InProcessBroker]:
    secured, several = Secured(users or {}, tls, acls), Brokers(brokers)
    own = settings_for(clock, {**TEST_SETTINGS, **(settings or {})})
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = _folder(data)
    try:
        certificates = folder / CERTIFICATES
        texts = {**secured.settings(certificates), **own}
        options = _options(texts, port, [*listeners, *secured.listeners], str(folder))
        if snapshot is not None:
            copy_snapshot(snapshot, folder, brokers)
        if secured.tls:
            await asyncio.to_thread(_make_certificates, secured, certificates)
        try:
            await _start(options, env, several)
            addresses = _addresses(options, several)
            if secured.users:
                await asyncio.to_thread(secured.create_users_and_rules, addresses[MAIN_LISTENER])
            yield InProcessBroker(
                min(several.ports.items())[1][MAIN_LISTENER],
                folder,
                addresses,
                secured,
                BrokerCommands(several),
                asyncio.get_running_loop(),
            )
        finally:
            await several.close()
    finally:
        await close_env(env)
        resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)  # a broker raises it
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)


def _folder(data: str | os.PathLike[str] | None) -> Path:
    return Path(os.path.abspath(data or tempfile.mkdtemp(prefix="kafkawire-")))


def _make_certificates(secured: Secured, folder: Path) -> None:
    with closing(ForkServer(inherited_environ())) as server:
        secured.make_certificates(folder, server, inherited_environ())


def _addresses(options: ServeOptions, brokers: Brokers) -> dict[str, str]:
    """Return the addresses of all brokers by listener."""
    hosts = {name: address_of(host, 0) for name, (host, _) in options.advertised.items()}
    return joined_addresses(hosts, brokers.ports)


def _options(
    settings: Mapping[str, str], port: int, listeners: Sequence[str], folder: str
) -> ServeOptions:
    """Return the options of the first broker. Raises BrokerFailed."""
    addresses = [_listener(text) for text in (f"{MAIN_LISTENER}://{HOST}:{port}", *listeners)]
    names = [each.name for each in addresses]
    for name, text in zip(names[1:], listeners, strict=True):
        if names.count(name) > 1:
            raise BrokerFailed(f"listeners={text}: each listener must have another name")
    texts, own = split_listeners(settings)
    try:
        check_broker(texts)
        check_listeners(own, names)
        for name, text in own.items():
            validate(find_listener_row(name), text)
    except ConfigError as error:
        raise BrokerFailed(str(error)) from None
    advertised = {each.name: (each.host, each.port) for each in addresses}
    return ServeOptions(addresses, advertised, folder, "", texts, own)


def _listener(text: str) -> Listener:
    found = parse_listener(text)
    if found is None or "://" not in text or not found.host:
        raise BrokerFailed(f"listeners={text}: it must be [NAME=]PROTOCOL://HOST:PORT")
    return found


async def _start(options: ServeOptions, env: Env, brokers: Brokers) -> None:
    """Start the brokers. Raises BrokerFailed with one sentence."""
    try:
        await brokers.start_others(await Server.start(options, env), options)
    except (AddressError, IdentityError, OSError, ValueError, RuntimeError) as failure:
        raise BrokerFailed(sentence_of(failure)) from failure
    except DamagedMetadata as failure:
        raise BrokerFailed(failure.what) from failure
