"""Brokers in this process: on an event loop of their own in a thread, or on the caller's.

    with kafkawire.testing.broker() as b:
        print(b.bootstrap)

They start in a few milliseconds once the broker is imported. They share this process's interpreter
with the test, so a busy test slows the broker; to kill one, take a BrokerProcess. At their end they
leave no threads, sockets or files. This is the only module of kafkawire.testing that imports the
broker.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

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
from kafkawire.metadata.store import DamagedMetadata
from kafkawire.server.listeners.addresses import AddressError
from kafkawire.server.run import Server, sentence_of
from kafkawire.testing.process import TEST_SETTINGS, BrokerFailed, setting_text

HOST = "127.0.0.1"
MAIN_LISTENER = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class InProcessBroker:
    """A running broker: `bootstrap` is the address for clients, `data` its folder."""

    port: int
    data: Path

    @property
    def bootstrap(self) -> str:
        """Value for the bootstrap servers of clients."""
        return f"{HOST}:{self.port}"


@contextmanager
def broker(
    data: str | os.PathLike[str] | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    port: int = 0,
    listeners: Sequence[str] = (),
) -> Iterator[InProcessBroker]:
    """Run a broker in a thread of this process during a `with` statement.

    `data`: its folder, which is kept; None: a temporary one, which is deleted. `settings`: broker
    settings by Kafka's names, in addition to TEST_SETTINGS. `port`: port of 127.0.0.1, 0 for any
    free one. `listeners`: more addresses as [NAME=]PROTOCOL://HOST:PORT. Raises BrokerFailed with
    one sentence if it cannot start.
    """
    started: Future[InProcessBroker] = Future()
    stop: Future[None] = Future()

    async def run() -> None:
        async with async_broker(data, settings=settings, port=port, listeners=listeners) as made:
            started.set_result(made)
            await asyncio.wrap_future(stop)

    failures: list[BaseException] = []

    def thread() -> None:
        try:
            asyncio.run(run())
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
    settings: Mapping[str, object] | None = None,
    port: int = 0,
    listeners: Sequence[str] = (),
) -> AsyncIterator[InProcessBroker]:
    """Run a broker on the current event loop during an `async with` statement; see `broker`.

    Clients that block must run in other threads, for example by asyncio.to_thread.
    """
    options = _options(settings or {}, port, listeners)
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = _folder(data)
    env = real_env()
    try:
        server = await _start(options(folder), env)
        try:
            yield InProcessBroker(server.broker.listeners[MAIN_LISTENER][1], Path(folder))
        finally:
            await server.close()
    finally:
        left = list(env.tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        env.offload.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)  # a broker raises it
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)


def _options(
    settings: Mapping[str, object], port: int, listeners: Sequence[str]
) -> Callable[[str], ServeOptions]:
    """Return a function from the data folder to the options. Raises BrokerFailed."""
    texts = {name: setting_text(value) for name, value in {**TEST_SETTINGS, **settings}.items()}
    addresses = [_listener(text) for text in (f"{MAIN_LISTENER}://{HOST}:{port}", *listeners)]
    names = [each.name for each in addresses]
    for name, text in zip(names[1:], listeners, strict=True):
        if names.count(name) > 1:
            raise BrokerFailed(f"listeners={text}: each listener must have another name")
    texts, own = split_listeners(texts)
    try:
        check_broker(texts)
        check_listeners(own, names)
        for name, text in own.items():
            validate(find_listener_row(name), text)
    except ConfigError as error:
        raise BrokerFailed(str(error)) from None
    advertised = {each.name: (each.host, each.port) for each in addresses}
    return lambda folder: ServeOptions(addresses, advertised, folder, "", texts, own)


def _folder(data: str | os.PathLike[str] | None) -> str:
    return tempfile.mkdtemp(prefix="kafkawire-") if data is None else os.path.abspath(data)


def _listener(text: str) -> Listener:
    found = parse_listener(text)
    if found is None or "://" not in text or not found.host:
        raise BrokerFailed(f"listeners={text}: it must be [NAME=]PROTOCOL://HOST:PORT")
    return found


async def _start(options: ServeOptions, env: Env) -> Server:
    """Start the server. Raises BrokerFailed with one sentence."""
    try:
        return await Server.start(options, env)
    except (AddressError, IdentityError, OSError, ValueError, RuntimeError) as failure:
        raise BrokerFailed(sentence_of(failure)) from failure
    except DamagedMetadata as failure:
        raise BrokerFailed(failure.what) from failure
