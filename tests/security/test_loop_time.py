"""The tables of security are loaded and changed without holding the event loop for over 5 ms of
CPU time: with 100,000 users, in SQLite and in PostgreSQL.

Each case is measured as in tests/broker/test_event_loop_time.py. Frees the loaded state in slices,
too: a case replaces what the one before it has loaded.

Covers: kafkawire.metadata.session, kafkawire.security.sasl.credentials.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import Env
from kafkawire.log.io.slices import MAX_STRETCH_S
from kafkawire.metadata.open import open_metadata
from kafkawire.metadata.session import Session, insert
from kafkawire.metadata.store import SqlStore
from kafkawire.security import versions
from kafkawire.security.sasl.credentials import CredentialChange, Credentials
from kafkawire.security.sasl.scram import Hash, ScramCredential
from tests.kit.loop_time import MeasuredRun, measured_run
from tests.kit.postgres import new_database
from tests.kit.slowness import least_cpu_time

USERS = 100_000
CHANGES = 20_000

pytestmark = pytest.mark.slow


class Stored(NamedTuple):
    """A database on a measured event loop."""

    loop: MeasuredRun
    store: SqlStore
    env: Env

    def check(self, work: Callable[[], Awaitable[object]]) -> None:
        """Check how long some work holds the event loop."""
        took_s = least_cpu_time(lambda: self.loop.longest_s(work()), MAX_STRETCH_S)
        assert took_s <= MAX_STRETCH_S, f"{took_s * 1000:.1f} ms"

    def change(self, work: Callable[[Session], None]) -> None:
        """Change the database as another broker does."""
        self.loop.run(self.store.transact(work))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    with measured_run() as loop:
        url = ""
        if request.param == "postgres":
            url = loop.run(new_database(request.getfixturevalue("postgres_url")))
        store = open_metadata(url, str(tmp_path))
        loop.run(store.open())
        yield Stored(loop, store, real_env())
        loop.run(store.close())


def test_users_are_loaded_and_changed_in_slices(stored: Stored) -> None:
    columns = "user_name, mechanism, salt, stored_key, server_key, iterations"

    def fill(session: Session) -> None:
        versions.changed(session, versions.SCRAM_CREDENTIALS)
        keys = b"salt", b"s" * 32, b"k" * 32, 4096
        rows = [(f"user-{number}", int(Hash.SHA256), *keys) for number in range(USERS)]
        insert(session, f"INSERT INTO scram_credentials ({columns})", rows)

    stored.change(fill)
    users = Credentials(stored.store, os.urandom, stored.env.slices.give_way)
    stored.check(users.load)
    stored.check(users.load)  # frees those that were there
    stored.check(users.names)
    assert len(users.users) == USERS
    made = ScramCredential(b"salt", b"s" * 32, b"k" * 32, 4096)
    stored.check(
        lambda: users.alter(
            CredentialChange(f"new-{number}", Hash.SHA512, made) for number in range(CHANGES)
        )
    )
    assert len(users.users) == USERS + CHANGES
    stored.check(
        lambda: users.alter(
            CredentialChange(f"new-{number}", Hash.SHA512, None) for number in range(CHANGES)
        )
    )
    assert len(users.users) == USERS
