"""`kafkawire serve`: start the server, print the ready line, wait, and stop in order.

Order of the stop: stop accepting, answer parked requests, commit, close. Called by the command
line; `kafkawire.testing` runs a broker in tests of other programs.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kafkawire.broker.broker import Broker
from kafkawire.broker.followers.install import NoCopy
from kafkawire.broker.following.removal import OwnRemoval
from kafkawire.broker.liveness.starting import BrokerReturns
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.table import load_hot
from kafkawire.hooks import open_hooks
from kafkawire.log.followers.source import LogBehindCopies
from kafkawire.log.io.disk import keep_freed_memory, real_env
from kafkawire.log.io.ports import LogError, Superseded
from kafkawire.log.recovery.identity import IdentityError, rebuild_command
from kafkawire.log_lines import address_of, reason_of
from kafkawire.metadata.sql import open_metadata
from kafkawire.metadata.store import (
    BrokerSuperseded,
    DamagedMetadata,
    MetadataError,
    sqlite_file,
)
from kafkawire.plugins import PluginError
from kafkawire.server.console_process import ConsoleProcess
from kafkawire.server.descriptors import DescriptorCheck, for_connections, raise_limit
from kafkawire.server.host import SWEEP_S, Host
from kafkawire.server.listener import (
    ClientProtocol,
    listen,
    listen_for_monitors,
    monitor_protocol,
    networks_of,
)
from kafkawire.server.listeners.addresses import AddressError, ready_line
from kafkawire.server.listeners.limits import ListenerLimits
from kafkawire.server.listeners.security import ListenerError, ListenerSecurity
from kafkawire.server.metadata_check import MetadataCheck, warn_of_common_loss
from kafkawire.server.reload import ConfigFile, Reloader
from kafkawire.server.service_manager import READY, STOPPING, SUPERSEDED_CODE, notify

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from kafkawire.broker.options import Listener, ServeOptions, WorkerRole
    from kafkawire.log.io.ports import Env
    from kafkawire.server.backups import ScheduledBackups
    from kafkawire.server.worker.link import SupervisorLink

logger = logging.getLogger(__name__)

COLLECT_AFTER = 10_000
"""Objects allocated between collections of the youngest generation; Python's default of 700 is a
few dozen requests."""

MONITORS_BACKLOG = 32
"""Connections of monitors to a worker that wait to be accepted; a monitor has one at a time."""

LINGER_S = 5.0
"""How long clients get to read their last responses, as in Kafka."""

END_WITHIN_S = 2 * LINGER_S
"""Limit for the end of a process that cannot serve any more: clients wait at its connections."""
CLOSE_WITHIN_S = 60.0
"""Limit for any other end. Only a disk, a database or a bucket that does not respond takes longer,
and nothing that was acknowledged depends on it; a supervisor kills workers after 30 s."""


@dataclass(frozen=True, slots=True)
class ServeHooks:
    """Changes to `serve`: of `kafkawire dev`, and in the processes that tests fork
    (kafkawire.forkserver). `env`: makes the
    Env; `loop`: makes the event loop, None: that of uvloop; `started`: called with the server and
    its options before the ready line, may raise what a start does; `stopping`: called before the
    server is closed."""

    env: Callable[[], Env] = real_env
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    started: Callable[[Server, ServeOptions], Coroutine[Any, Any, None]] | None = None
    stopping: Callable[[], Coroutine[Any, Any, None]] | None = None


_hooks = ServeHooks()


def use_hooks(hooks: ServeHooks) -> None:
    """Change `serve` in this process."""
    global _hooks
    _hooks = hooks


class Server:
    """A broker and its sockets. `monitors`: the address of /metrics and /health."""

    def __init__(
        self,
        broker: Broker,
        descriptors: int,
        listener_settings: Mapping[str, str] | None = None,
        worker: WorkerRole | None = None,
    ) -> None:
        """`descriptors`: maximum number of file descriptors of this process; `worker`: its role if
        it is one of several."""
        self.broker = broker
        self._worker = worker
        self.host = Host(broker, for_connections(descriptors))
        self._descriptors = DescriptorCheck(descriptors)
        self.sockets: list[asyncio.Server] = []
        self._shared: list[tuple[Sequence[int], Callable[[], ClientProtocol]]] = []
        self._bound: dict[str, tuple[str, int]] = {}  # by listener, the address that it has
        self.monitors: tuple[str, int] | None = None
        self.backups: ScheduledBackups | None = None
        self._backing_up: asyncio.Task[None] | None = None
        self.metadata_check: MetadataCheck | None = None
        self.security = ListenerSecurity(broker, listener_settings or {})
        self._sweep_due = 0.0
        self._ended = False

    @classmethod
    async def start(cls, options: ServeOptions, env: Env) -> Server:
        """Open the hooks, the broker, then its listeners. Raises the errors of all."""
        hooks = open_hooks(BrokerConfig(options.settings).plugin_hooks)
        if hooks is not None:
            env = replace(env, hooks=hooks)
        try:
            return await cls._start(options, env)
        except BaseException:
            if hooks is not None:
                hooks.close()
            raise

    @classmethod
    async def _start(cls, options: ServeOptions, env: Env) -> Server:
        try:
            broker = await _start_broker(options, env)
        except LogBehindCopies as why:
            logger.critical("%s. This start uses the copy of a follower instead", why)
            broker = await _start_broker(options, env)
        except NoCopy as why:  # the broker is another machine's now if that has a folder of it
            logger.warning("%s: this start begins again", why)
            broker = await _start_broker(options, env)
        server = cls(broker, raise_limit(), options.listener_settings, options.worker)
        try:
            await server._open_listeners(options)
        except (OSError, AddressError):
            await server.close()
            raise
        except ListenerError as wrong:
            await server.close()
            raise AddressError(str(wrong)) from None
        server._sweep()
        env.spawn(server._prepare(), "prepare")
        if options.worker is None or options.worker.first:  # of several one does it for all
            server._start_backups(options)
            server._start_metadata_check(options)
        return server

    async def _open_listeners(self, options: ServeOptions) -> None:
        """Listen on all addresses. Raises OSError, AddressError or ListenerError."""
        prepared = [(each, await self._protocol(each)) for each in options.listeners]
        for at, (listener, protocol) in enumerate(prepared):
            if self._worker is None:
                await self._listen(listener, protocol)
            else:
                await self._accept(self._worker, at, listener.name, protocol)
        await self._watch_users()
        await self._register()
        await self._listen_for_monitors()

    async def _prepare(self) -> None:
        """Import what is needed soon in the background, to keep the start short: later, an import
        of tens of milliseconds would compete with requests for the interpreter lock."""
        offload = self.broker.env.offload
        await offload.submit("files", keep_freed_memory)
        await offload.submit("files", load_hot, self.host.apis)
        if self.broker.manifest is not None:
            await self.broker.manifest.prepare()

    async def _watch_users(self) -> None:
        """Follow changes of users that log in."""
        broker, logins = self.broker, self.security.logins
        if logins is None:
            return
        if broker.config.sasl_deleted_users_disconnect:
            (await broker.load_users()).when_deleted(self.host.disconnect_users)

    async def _listen(self, listener: Listener, protocol: Callable[[], ClientProtocol]) -> None:
        sockets = await listen(listener, protocol, self.broker.config.socket_listen_backlog_size)
        self.sockets.append(sockets)
        name = listener.name
        advertised = self.broker.listeners.get(name)
        self._bound[name] = sockets.sockets[0].getsockname()[:2]
        bound = self._bound[name][1]
        if advertised is None:
            self.broker.listeners[name] = (listener.host, bound)
        elif not advertised[1]:  # port 0: chosen by the kernel
            self.broker.listeners[name] = (advertised[0], bound)

    async def _accept(
        self, worker: WorkerRole, at: int, name: str, protocol: Callable[[], ClientProtocol]
    ) -> None:
        """Accept connections of the listener number `at` on the own sockets of a worker; on the
        shared ones when `open_shared` is called."""
        from kafkawire.server.worker.link import accept_on

        inherited, backlog = worker.sockets[at], self.broker.config.socket_listen_backlog_size
        own = await accept_on(inherited.own, protocol, backlog)
        self.sockets += own
        self._shared.append((inherited.shared, protocol))
        self._bound[name] = own[0].sockets[0].getsockname()[:2]

    async def open_shared(self) -> None:
        """Accept connections at the addresses of all workers."""
        from kafkawire.server.worker.link import accept_on

        backlog = self.broker.config.socket_listen_backlog_size
        shared, self._shared = self._shared, []
        for inherited, protocol in shared if not self._ended else ():
            self.sockets += await accept_on(inherited, protocol, backlog)

    async def _protocol(self, listener: Listener) -> Callable[[], ClientProtocol]:
        """Return what makes the protocol of a new connection. Raises AddressError."""
        host, security = self.host, self.security
        logins = await security.logins_of(listener) if listener.sasl else None
        own = security.config_of(listener.name)
        limits = ListenerLimits.for_listener(listener.name, own, host.counts, host.now)
        if not listener.tls:
            allowed = (
                [] if listener.sasl else networks_of(self.broker.config.plaintext_allowed_addresses)
            )
            return lambda: ClientProtocol(host, listener.name, logins, allowed, limits)
        from kafkawire.server.tls_wire import TlsProtocol  # most brokers do without

        tls = await security.tls(listener)
        asks = security.asks_clients(listener)
        return lambda: TlsProtocol(tls, host, listener.name, logins, limits, asks_clients=asks)

    async def _listen_for_monitors(self) -> None:
        text = self.broker.config.metrics_listener.strip()
        if text:
            host, _, port = text.rpartition(":")
            encrypted = self.broker.config.metrics_tls
            tls = await self.security.tls_of_broker() if encrypted else None
            if self._worker is None:
                opened = [await listen_for_monitors(self, host.strip("[]"), int(port), tls)]
            else:
                from kafkawire.server.worker.link import accept_on

                protocol = await monitor_protocol(self, tls)
                opened = await accept_on(self._worker.metrics, protocol, MONITORS_BACKLOG)
            self.sockets += opened
            host, bound = opened[0].sockets[0].getsockname()[:2]
            self.monitors = host, bound
            scheme = "http" if tls is None else "https"
            logger.info("metrics on %s://%s:%d/metrics", scheme, host, bound)

    def _start_backups(self, options: ServeOptions) -> None:
        """Start scheduled backups if `backup.url` is set."""
        broker = self.broker
        url = broker.config.backup_url.strip()
        if not url:
            return
        from kafkawire.objectstore.url import parse_tier
        from kafkawire.server.backups import ScheduledBackups, make_backup
        from kafkawire.tiering.store.process import StoreProcess

        names = [listener.name for listener in options.listeners]
        wanted = broker.config.inter_broker_listener_name
        host, port = self._bound[wanted if wanted in names else names[0]]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        address = address_of(host, port)
        self.backups = ScheduledBackups(
            broker.env, broker.config, broker.cluster_id, f"{broker.folder}/backup",
            StoreProcess(parse_tier(url)),
            lambda dest: make_backup(
                address, options.data, options.metadata_url, dest,
                broker.config.inter_broker_client_config,
            ),
            lambda: broker.node_id == broker.liveness.may_lead()[0],
        )  # fmt: skip
        self._backing_up = broker.env.spawn(self.backups.run(), "backups")

    def _start_metadata_check(self, options: ServeOptions) -> None:
        """Start the metadata check if the metadata is an SQLite file."""
        path = sqlite_file(options.metadata_url, options.data)
        if path is not None:
            warn_of_common_loss(path, options.data, self.broker.catalog, self.broker.config)
            self.metadata_check = MetadataCheck(self.broker.env, path, options.data)
            self.metadata_check.start()

    async def _stop_backups(self) -> None:
        if self.backups is not None and self._backing_up is not None:
            self._backing_up.cancel()
            await asyncio.gather(self._backing_up, return_exceptions=True)
            await self.backups.close()

    async def _register(self) -> None:
        """Register listener ports chosen by the kernel for the other brokers."""
        broker = self.broker
        folder = broker.catalog.brokers[broker.node_id].folder
        await broker.metadata.register_broker(
            broker.node_id, broker.listeners, broker.config.broker_rack, folder
        )

    def _sweep(self) -> None:
        if self._ended:
            return
        env, counts = self.broker.env, self.broker.counts
        now = env.clock.monotonic()
        if self._sweep_due:
            counts.loop_lag.add(max(0.0, now - self._sweep_due))
        self._sweep_due = now + SWEEP_S
        env.call_later(SWEEP_S, self._sweep)
        self.host.sweep()
        if self.security.logins is not None:
            self.security.logins.sweep()
        self._descriptors.check(now)

    async def close(self) -> None:
        """Stop accepting, answer waiting requests, commit, close."""
        if self._ended:
            return
        self._ended = True
        await self._stop_backups()
        if self.metadata_check is not None:
            await self.metadata_check.close()
        for sockets in self.sockets:
            sockets.close()
        self.security.close()
        for api in self.host.apis.values():
            if api.hot is not None:
                api.hot.close()
        await self.broker.close()
        hooks = self.broker.env.hooks
        if hooks is not None:
            await self.broker.env.offload.submit("files", hooks.close)
        await self.host.drain(LINGER_S)


def serve(
    options: ServeOptions, reread: Callable[[], ServeOptions], config_file: ConfigFile | None
) -> int:
    """Run until SIGINT or SIGTERM; SIGHUP, or a change of `config_file`, reads the options again
    with `reread`.

    Returns the exit code: 0; 1 if it could not start, 2 if an option is invalid, or data folder,
    metadata and tier do not belong together; 3 if the broker was started elsewhere.
    """
    try:
        console = ConsoleProcess.bind_address(options)  # before a start, which may take long
    except AddressError as wrong:
        print(f"kafkawire: {wrong}", file=sys.stderr)
        return 2
    return _run(_serve(options, Reloader(options, reread, config_file), console))


def _run(main: Coroutine[object, object, int]) -> int:
    if _hooks.loop is not None:
        with asyncio.Runner(loop_factory=_hooks.loop) as runner:
            return runner.run(main)
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: use asyncio's own loop
        return asyncio.run(main)
    return uvloop.run(main)


async def _start_broker(options: ServeOptions, env: Env) -> Broker:
    metadata = open_metadata(options.metadata_url, options.data)
    return await Broker.start(
        env, metadata, options.data, {**options.settings, **options.listener_settings},
        dict(options.advertised), -1 if options.worker is None else options.worker.after,
    )  # fmt: skip


async def _serve(options: ServeOptions, reloader: Reloader, console: ConsoleProcess) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(report_unretrieved)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reloader.request_reload)
    link = None if options.worker is None else _link(options.worker, stop)
    server = await _start_unless(stop, options)
    if isinstance(server, int):
        return server
    end = End(stop)
    server.broker.when_superseded(end.stop_superseded)
    server.broker.older_metadata.when_found(end.stop_mismatched)

    def on_removed(why: str) -> None:
        end.stop_removed(why)
        if link is not None:
            link.send_removed()

    OwnRemoval(server.broker, server.broker.removal, on_removed).start()
    _spare_collector()
    if name := server.broker.config.cluster_name:
        logger.info("broker %d of cluster %s", server.broker.node_id, name)
    if options.worker is None or link is None:
        print(ready_line(options, server.broker.listeners, console.url), flush=True)
    else:
        link.send_ready(server.broker, server.open_shared)
        await _begin_role(server.broker, options.worker, link, end)
    notify(READY, os.environ)
    console.start(server.broker.listeners)
    env = server.broker.env
    reloading = env.spawn(reloader.run(server.broker), "reload")
    watching = env.spawn(reloader.watch_file(server.broker), "watch the configuration file")
    await stop.wait()
    reloading.cancel()
    watching.cancel()
    logger.info("stopping")
    notify(STOPPING, os.environ)
    console.stop()
    if end.hands_over:
        await server.broker.controlled_shutdown.hand_over()
    if _hooks.stopping is not None:
        await _hooks.stopping()
    await close_for(end, server)
    server.broker.env.offload.close()
    console.close()
    if link is not None:
        link.close()
    return end.code()


def report_unretrieved(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log the failure of a task, or of another callback, that has no caller to report it."""
    failure, task = context.get("exception"), context.get("task") or context.get("future")
    if not isinstance(failure, Exception):
        loop.default_exception_handler(context)
        return
    what = task.get_name() if isinstance(task, asyncio.Task) else context["message"]
    if isinstance(failure, BrokerSuperseded):  # the process ends, and says so
        logger.info("%s: ended: %s", what, failure)
    elif isinstance(failure, KafkaError | OSError | MetadataError | LogError):
        logger.error("%s: failed, and is not repeated: %s", what, sentence_of(failure))
    else:
        logger.error("%s: failed because of a defect, and is not repeated", what, exc_info=failure)


async def _start_unless(stop: asyncio.Event, options: ServeOptions) -> Server | int:
    """Start the server; return the exit code if it cannot start, or is stopped before it serves: it
    may wait for the remote tier, or for a process of this broker on another machine."""
    env = _hooks.env()
    # Not watched: the event loop may be held while no client is served.
    starting = env.spawn(_start(options, env), "start", watched=False)
    stopped = env.spawn(stop.wait(), "wait for a signal")
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        logger.info("stopping before the start is complete")
        starting.cancel()
        await asyncio.wait([starting])
    stopped.cancel()
    return 0 if starting.cancelled() else starting.result()


async def _start(options: ServeOptions, env: Env) -> Server | int:
    """Return the started server, or the exit code after printing why it cannot start."""
    try:
        server = await Server.start(options, env)
        if _hooks.started is not None:
            await _hooks.started(server, options)
        return server
    except BrokerReturns as why:
        logger.warning("%s", why)
        return 0
    except (AddressError, IdentityError, PluginError) as wrong:
        code, sentence = 2, str(wrong)
    except DamagedMetadata as wrong:
        command = rebuild_command(options.data)
        code, sentence = 2, f"{wrong.what}: restore it from a copy, or rebuild it with {command}"
    except (Superseded, BrokerSuperseded) as wrong:
        code, sentence = SUPERSEDED_CODE, str(wrong)
    except KafkaError as wrong:  # of SQL: another start has ended the terms of this one
        ended = wrong.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        code, sentence = SUPERSEDED_CODE if ended else 1, str(wrong)
    except (OSError, ValueError, RuntimeError) as wrong:
        code, sentence = 1, sentence_of(wrong)
    print(f"kafkawire: {sentence}", file=sys.stderr)
    return code


class End:
    """Stops the process for a reason, which is printed in the end."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._why = ""
        self._code = 0
        self._returns = self._removed = False

    def stop(self) -> None:
        """Stop, as after SIGTERM."""
        self._stop.set()

    def hand_back(self) -> None:
        """Stop, since the machine of the broker is to run it with all that it leads."""
        self._returns = True
        self._stop.set()

    @property
    def hands_over(self) -> bool:
        """Whether other brokers are to lead its partitions before it stops."""
        return not self._why and not self._returns

    def stop_superseded(self, why: str) -> None:
        """Stop, since the broker was started elsewhere."""
        if not self._removed:  # then its heartbeats find no row, too
            self._why, self._code = why, SUPERSEDED_CODE
        self._stop.set()

    def stop_removed(self, why: str) -> None:
        """Stop, since the broker has removed itself from the cluster."""
        logger.warning("%s", why)
        self._why, self._code, self._removed = why, 0, True
        self._stop.set()

    def stop_mismatched(self, why: str) -> None:
        """Stop, since the metadata does not fit the data folder any more: as a start would."""
        if not self._code and not self._removed:
            self._why, self._code = why, 2
        self._stop.set()

    def give_up(self, why: str) -> None:
        """Stop, since the broker cannot serve from here."""
        logger.error("%s", why)
        if not self._code and not self._removed:
            self._why, self._code = why, 1
        self._stop.set()

    @property
    def has_reason(self) -> bool:
        """Whether it stops for a reason of its own, and not for a signal."""
        return bool(self._why)

    def code(self) -> int:
        """Return the exit code; print the reason."""
        if self._why:
            print(f"kafkawire: {self._why}", file=sys.stderr)
        return self._code


async def close_for(end: End, server: Server, leave: Callable[[int], object] = os._exit) -> None:
    """Close a server. The process leaves after CLOSE_WITHIN_S, because its storage may not answer.
    One that ends for a reason of its own may have to end because of that: it leaves after
    END_WITHIN_S, so that its clients reconnect."""
    closing = server.broker.env.spawn(server.close(), "close")
    within_s = END_WITHIN_S if end.has_reason else CLOSE_WITHIN_S
    await asyncio.wait([closing], timeout=within_s)
    if closing.done():
        await closing
        return
    logger.warning(
        "closing takes longer than %g s: the process ends as by SIGKILL, and nothing that it "
        "acknowledged is lost",
        within_s,
    )
    code = end.code()
    sys.stderr.flush()
    leave(code)


def _link(worker: WorkerRole, stop: asyncio.Event) -> SupervisorLink:
    """Connect to the supervisor, whose end is like SIGTERM."""
    from kafkawire.server.worker.link import SupervisorLink

    return SupervisorLink(worker.control, stop.set)


async def _begin_role(broker: Broker, worker: WorkerRole, link: SupervisorLink, end: End) -> None:
    """Begin what a worker does besides serving. One of another machine does not do it for all."""
    from kafkawire.server.worker.ends import store_role, watch_return, watch_storage

    if broker.config.cluster_takeover_enable:
        watch_storage(broker, end.give_up)
    if worker.after >= 0:
        watch_return(broker, end.hand_back)
        return
    if broker.config.cluster_takeover_enable:
        broker.liveness.when_absent(link.send_absent)
    if worker.drain or not worker.restarted:  # a crash does not end a drain by an operator
        await store_role(broker, worker.drain, end.stop)


def sentence_of(failure: Exception) -> str:
    """Return a failure without its errno."""
    if isinstance(failure, OSError) and failure.strerror and failure.filename:
        return f"{failure.filename} cannot be used ({failure.strerror})"
    return reason_of(failure)


def _spare_collector() -> None:
    """Exclude permanent objects from cycle collection: partitions, modules, tables.

    Requests make no cycles, and a full collection over 10,000 partitions blocks the event loop for
    tens of milliseconds. Later objects are still collected, a little less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 50)
    gc.enable()
