"""`kafkawire doctor`: check an installation, and what a broker would use, before it is started."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from typing import Annotated

import typer

from kafkawire.broker.options import Listener
from kafkawire.cli.shared.data_folder import node_ids
from kafkawire.cli.shared.options import parse_listeners
from kafkawire.cli.shared.outcomes import client_security
from kafkawire.cli.shared.output import fail, print_json, without_password
from kafkawire.cli.shared.parameters import Json, Wide, not_empty
from kafkawire.cli.shared.paths import check_data_folder, check_metadata_url, check_tier_folder
from kafkawire.cli.shared.stopped import broker_home
from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.client.address import parse_servers
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from kafkawire.extras import EXTRAS, MissingExtra, install_line, is_installed
from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.log.io.ports import LogError
from kafkawire.log.recovery.identity import has_log, rebuild_command
from kafkawire.log_lines import address_of, reason_of
from kafkawire.objectstore.url import parse_tier
from kafkawire.plural import count
from kafkawire.server.listeners.addresses import cannot_bind
from kafkawire.units import size

DATA = "kafkawire-data"
"""The data folder of `kafkawire serve` without options."""
LEAST_FREE = 0.05
"""Share of a disk that should be free: a broker refuses produces at disk.refuse.percent."""
LEAST_DESCRIPTORS = 4096
"""Half of them are for connections."""
SLOW_FSYNC_S = 0.05
"""acks=all waits for an fsync; network file systems and worn disks take longer than this."""
SLOW_REQUEST_S = 1.0
"""A PUT or a listing in the region of the bucket takes a tenth of this."""
FSYNCS = 20
OF_USER = "run it as the user of the broker, or give that user the rights to its files"


class Verdict(StrEnum):
    """Whether a broker works with what was found."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check. `todo` is empty if nothing is to be done."""

    check: str
    state: Verdict
    found: str
    todo: str = ""


COLUMNS = (
    "check",
    TableColumn("state", wrong=lambda state: state == Verdict.WRONG, keep=True),
    TableColumn("found", keep=True),
    TableColumn("todo", "what to do", keep=True),
)


def doctor(
    data: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            callback=not_empty,
            help=f"Data folder, or where to make it. [default: {DATA}, if it exists or "
            "nothing else is to be checked]",
            show_default=False,
        ),
    ] = "",
    metadata: Annotated[
        str, typer.Option(metavar="URL", callback=not_empty, help="Metadata database.")
    ] = "",
    tier: Annotated[
        str,
        typer.Option(
            metavar="URL",
            callback=not_empty,
            help="Remote tier, as s3://BUCKET/PREFIX or a folder.",
        ),
    ] = "",
    listen: Annotated[
        str,
        typer.Option(
            metavar="[PROTOCOL://]HOST:PORT", callback=not_empty, help="Address to listen on."
        ),
    ] = "",
    server: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            callback=not_empty,
            help="A running broker, as its clients reach it.",
        ),
    ] = "",
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Check the installation, a data folder, a database, a bucket, a port and a running broker.

    Changes nothing, except that the check of a tier stores one small object in it, as a broker
    does. Exit code 0: a broker can run with them, 1: something is wrong.

    Examples:
      kafkawire doctor
      kafkawire doctor --tier s3://bucket/prefix --metadata postgresql://user@host/database
      kafkawire doctor --listen 0.0.0.0:9092
      kafkawire doctor --server kafka.example.org:9092
    """
    if not data and (metadata or os.path.isdir(DATA) or not (tier or listen or server)):
        data = DATA
    try:
        if data:
            check_data_folder("--data", data)
        check_metadata_url("--metadata", metadata)
        if tier:
            check_tier_folder("--tier", parse_tier(tier))
        listeners = parse_listeners([listen] if listen else [])
        if server:
            parse_servers("--server", server)
    except (OptionError, ValueError, ClientError) as error:
        fail(error, 2)
    findings = [
        *check_installation(),
        *(check_folder(data, metadata) if data else ()),
        *(check_tier(tier) if tier else ()),
        *(check_listener(each) for each in listeners),
        *(check_server(server) if server else ()),
    ]
    if as_json:
        print_json([asdict(each) for each in findings])
    else:
        title = count(len(findings), "check")
        print_table([asdict(each) for each in findings], COLUMNS, title, wide)
    wrong = [each.check for each in findings if each.state is Verdict.WRONG]
    if wrong:
        fail(f"not fine: {', '.join(wrong)}")


def check_installation() -> Iterator[Diagnosis]:
    """Check Python, its packages and the limits of this process."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield Diagnosis("python", Verdict.OK, f"{python} ({sys.executable})")
    if find_spec("uvloop") is None:
        todo = "pip install uvloop: the broker serves with half of the speed without it"
        yield Diagnosis("event loop", Verdict.WARNING, "asyncio's own", todo)
    extras = [name for name, packages in EXTRAS.items() if all(map(is_installed, packages))]
    lacking = [name for name in EXTRAS if name not in extras]
    todo = f"if you need one: {install_line(lacking[0])}" if lacking else ""
    found = f"{', '.join(extras) or 'none'}; not installed: {', '.join(lacking) or 'none'}"
    yield Diagnosis("extras", Verdict.OK, found, todo)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = most == resource.RLIM_INFINITY
    low = not unlimited and most < LEAST_DESCRIPTORS
    todo = "raise it (ulimit -Hn, LimitNOFILE): half of them are for connections" if low else ""
    state = Verdict.WARNING if low else Verdict.OK
    yield Diagnosis("open files", state, "unlimited" if unlimited else f"at most {most}", todo)


def check_folder(data: str, metadata: str) -> Iterator[Diagnosis]:
    """Check a data folder, or the place where it would be made, and its metadata."""
    folder = whole = os.path.abspath(data)
    used = os.path.isdir(os.path.join(whole, "brokers"))
    fs, has_logs, state, todo = DiskFileSystem(), False, Verdict.OK, ""
    found = f"{whole} {'has a broker' if used else 'is new'}"
    try:
        has_logs = used and any(has_log(fs, broker_home(whole, node)) for node in node_ids(whole))
    except LogError:
        found = f"{whole} has no broker yet"
    except OSError as error:
        state, found, todo = Verdict.WRONG, f"{whole} cannot be read: {reason_of(error)}", OF_USER
    yield Diagnosis("data folder", state, found, todo)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    disk = shutil.disk_usage(folder)
    full = disk.free < disk.total * LEAST_FREE
    yield Diagnosis(
        "disk",
        Verdict.WRONG if full else Verdict.OK,
        f"{size(disk.free)} of {size(disk.total)} free",
        "free space: a broker refuses produces on a full disk" if full else "",
    )
    yield _fsync_speed(folder)
    if metadata or used:
        yield check_database(metadata, whole, has_logs)


def _fsync_speed(folder: str) -> Diagnosis:
    """Return how long an fsync takes in a folder, from the median of some."""
    try:
        median = sorted(_fsync_times(folder))[FSYNCS // 2]
    except OSError as error:
        found = f"no file can be written in {folder}: {error.strerror}"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        todo = "free space" if full else "choose a folder that this user can write to"
        return Diagnosis("fsync", Verdict.WRONG, found, todo)
    slow = median > SLOW_FSYNC_S
    todo = "use a local SSD: each acks=all waits for an fsync" if slow else ""
    state = Verdict.WARNING if slow else Verdict.OK
    return Diagnosis("fsync", state, f"{median * 1000:.2f} ms", todo)


def _fsync_times(folder: str) -> list[float]:
    path = os.path.join(folder, f".kafkawire-doctor-{os.getpid()}")
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    times = []
    try:
        for _ in range(FSYNCS):
            os.write(descriptor, b"\0" * 4096)
            begin = time.perf_counter()
            os.fsync(descriptor)
            times.append(time.perf_counter() - begin)
    finally:
        os.close(descriptor)
        os.unlink(path)
    return times


def check_database(url: str, data: str, has_logs: bool) -> Diagnosis:
    """Check the metadata of a URL, or of a data folder: reachable, and of a revision that this
    version knows. `has_logs`: there are records whose metadata it must be."""
    from kafkawire.cli.cluster.metadata_version import (
        MEANING,
        NEWER,
        file_of,
        state_of,
        stored_revision,
    )
    from kafkawire.metadata.store import DamagedMetadata, MetadataError

    path = file_of(data, url)
    name = path or without_password(url)
    rebuild = f"or rebuild it with {rebuild_command(data)}"
    try:
        stored = stored_revision(data, url) if path is None or os.path.isfile(path) else None
    except DamagedMetadata as error:
        todo = f"restore it from a copy, {rebuild}"
        return Diagnosis("metadata", Verdict.WRONG, error.what, todo)
    except (MetadataError, MissingExtra, OSError) as error:
        todo = OF_USER
        if path is None:
            todo = "check host, port, user, password and database, and that PostgreSQL runs"
        return Diagnosis("metadata", Verdict.WRONG, without_password(str(error)), todo)
    if stored is None and has_logs:
        found = f"{name} is missing or empty, but {data} has the log of a broker"
        todo = f"put its metadata back, name it with --metadata, {rebuild}"
        return Diagnosis("metadata", Verdict.WRONG, found, todo)
    if stored is None:
        found = f"{name} is new: the first start makes the tables"
        return Diagnosis("metadata", Verdict.OK, found)
    state = state_of(stored)
    wrong = state == NEWER
    todo = MEANING[state] if wrong else ""
    found = f"{name}: revision {stored}, {state}"
    return Diagnosis("metadata", Verdict.WRONG if wrong else Verdict.OK, found, todo)


def check_listener(listener: Listener) -> Diagnosis:
    """Check that an address can be listened on."""
    address = address_of(listener.host, listener.port)
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(
            listener.host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind(place)
                tried.listen()
    except OSError as error:
        todo = "end the other process (ss -tlnp), or choose another port with --listen"
        if error.errno != errno.EADDRINUSE:
            todo = "choose an address of this machine, and a port that this user may listen on"
        found = str(cannot_bind("--listen", listener.host, listener.port, error))
        return Diagnosis("port", Verdict.WRONG, found, todo)
    return Diagnosis("port", Verdict.OK, f"{address} is free")


def check_tier(url: str) -> Iterator[Diagnosis]:
    """Check that a bucket can be reached, lists by key and has conditional PUTs."""
    from kafkawire.objectstore.errors import StoreError
    from kafkawire.tiering.store.process import StoreProcess
    from kafkawire.tiering.store.storage_check import check_conditional_put, check_listing

    async def check() -> float:
        store = StoreProcess(replace(parse_tier(url), create=False))
        try:
            begin = time.perf_counter()
            await check_listing(store)
            await check_conditional_put(store)
            return (time.perf_counter() - begin) / 2
        finally:
            await store.close()

    try:
        took_s = asyncio.run(check())
    except (StoreError, MissingExtra) as error:
        if isinstance(error, StoreError) and error.code == "NoSuchBucket":
            found, todo = f"{url} does not exist", "check its name, or let the broker create it"
            yield Diagnosis("tier", Verdict.WARNING, found, todo)
            return
        todo = "see docs/tiering.md for its URL, credentials and rights"
        yield Diagnosis("tier", Verdict.WRONG, str(error), todo)
        return
    slow = took_s > SLOW_REQUEST_S
    todo = "use a bucket in a region nearby" if slow else ""
    found = f"{url} lists and stores objects, {took_s * 1000:.0f} ms a request"
    yield Diagnosis("tier", Verdict.WARNING if slow else Verdict.OK, found, todo)


def check_server(server: str) -> Iterator[Diagnosis]:
    """Check that a broker answers, and that its advertised addresses can be reached from here."""
    from kafkawire.client.cluster import Cluster

    try:
        with Cluster(server, security=client_security()) as cluster:
            yield Diagnosis("broker", Verdict.OK, f"{server} answers")
            for row in cluster.metadata([]).brokers:
                address = address_of(row.host, row.port)
                yield _reach(row.node_id, address, partial(cluster.node, row.node_id))
    except ClientError as error:
        todo = "compare the address and the protocol with the start line of the broker"
        yield Diagnosis("broker", Verdict.WRONG, str(error), todo)


def _reach(node: int, address: str, connect: Callable[[], object]) -> Diagnosis:
    name = f"broker {node}"
    try:
        connect()
    except ClientError as error:
        todo = (
            f"clients are sent to {address}: set --advertise of the broker to what they can reach"
        )
        return Diagnosis(name, Verdict.WRONG, str(error), todo)
    return Diagnosis(name, Verdict.OK, f"its advertised address {address} answers")
