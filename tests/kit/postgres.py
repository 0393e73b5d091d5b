"""A PostgreSQL server of the tests' own: a fresh cluster in a folder, on a free port.

The server refuses to run as root, so for root it runs as Debian's user `postgres`. Absence is a
skip on a developer's machine and a failure where CI is set.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.kit.ports import free_port
from tests.kit.waiting import wait_until

_databases = itertools.count()


def _programs() -> Path | None:
    found = shutil.which("pg_ctl")
    if found:
        return Path(found).parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return debian[-1].parent if debian else None


def dump(url: str) -> str:
    """The SQL of a whole database, of one moment."""
    return _client("pg_dump", url, "")


def restore(url: str, sql: str) -> None:
    """Replace what is in a database, in one transaction, while others use it."""
    replaced = f"DROP SCHEMA public CASCADE; CREATE SCHEMA public;\n{sql}"
    _client("psql", url, replaced, "--single-transaction", "--quiet", "-v", "ON_ERROR_STOP=1")


def _client(program: str, url: str, text: str, *arguments: str) -> str:
    programs = _programs()
    assert programs is not None, "a server runs"
    command = [shutil.which(program) or str(programs / program), *arguments, url]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _as_server(command: list[str]) -> None:
    if os.geteuid() == 0:
        command = ["runuser", "-u", "postgres", "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a running server, without the name of a database."""
    programs = _programs()
    if programs is None:
        message = "PostgreSQL's pg_ctl is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    folder = tempfile.mkdtemp(prefix="kafkawire-pg-")
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    data, port = f"{folder}/data", free_port()
    ctl = [str(programs / "pg_ctl"), "-D", data, "-w"]
    # fsync=off: these tests check statements, not the server's durability.
    options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c fsync=off"
    try:
        _as_server([str(programs / "initdb"), "-D", data, "-U", "kafkawire", "-A", "trust", "-N"])
        _as_server([*ctl, "-o", options, "-l", f"{folder}/log", "start"])
        try:
            yield f"postgresql://kafkawire@127.0.0.1:{port}"
        finally:
            _as_server([*ctl, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """One server for a worker of the run, started when the first test asks for it."""
    with postgres() as url:
        yield url


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def transaction_pooler(url: str, sessions: int = 1) -> Iterator[str]:
    """The URL of a database through a PgBouncer of its own in mode `transaction`: its clients share
    so many sessions of the server at `url`, without any knowledge of prepared statements."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        message = "pgbouncer is not installed (Debian: apt-get install pgbouncer)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    server = urlsplit(url)
    database = server.path.lstrip("/")
    folder = Path(tempfile.mkdtemp(prefix="kafkawire-pgbouncer-"))
    port = free_port()
    (folder / "ini").write_text(
        f"[databases]\n{database} = host={server.hostname} port={server.port} "
        f"user={server.username}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"unix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
        f"default_pool_size = {sessions}\n"
    )
    command = [program, "-q", str(folder / "ini")]
    if os.geteuid() == 0:  # it refuses to run as root, too
        command = [program, "-q", "-u", "postgres", str(folder / "ini")]
        shutil.chown(folder, "postgres")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: process.poll() is not None or _listens(port), "pgbouncer")
            yield f"postgresql://{server.username}@127.0.0.1:{port}/{database}"
        finally:
            process.kill()
            shutil.rmtree(folder, ignore_errors=True)


async def new_database(url: str) -> str:
    """The URL of an empty database on the server at `url`."""
    import asyncpg  # type: ignore[import-untyped]  # here: tests/conftest.py imports this module

    name = f"test{next(_databases)}"
    connection = await asyncpg.connect(f"{url}/postgres")
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return f"{url}/{name}"
