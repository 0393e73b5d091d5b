"""`kafkawire users`: create, list, delete, password; of a running cluster, or of a data folder.

The password is read from a file, from standard input or from the terminal; never from the command
line, which other users of the machine can read.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Protocol, TypeVar

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, print_results
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import LOCAL, Json, Metadata, Server, Wide, not_empty
from kafkawire.cli.shared.stopped import stopped_brokers
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.notation import OptionError
from kafkawire.client.users import list_scram_users
from kafkawire.log.io.ports import LogError
from kafkawire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kafkawire.metadata.store import MetadataError
from kafkawire.plural import count
from kafkawire.security.principals import check_name
from kafkawire.security.sasl.credentials import CredentialChange, Credentials, new_salt
from kafkawire.security.sasl.scram import (
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    Hash,
    derive,
    salted_password,
)

# The users of a running cluster, by its API, or those in the metadata of a stopped broker.


ALTER = 51
T = TypeVar("T")
Iterations = Mapping[Hash, int]


class UserStore(Protocol):
    """Where users are."""

    def users(self) -> dict[str, Iterations]:
        """Return the iterations of each mechanism by user."""

    def put(self, user: str, kind: Hash, password: str, salt: bytes, iterations: int) -> None:
        """Store a password for a mechanism."""

    def delete(self, user: str, kinds: Sequence[Hash]) -> None:
        """Delete a user's credentials."""


class ClusterUsers:
    """Users of a running cluster; ClientError. The broker never gets the password."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def users(self) -> dict[str, Iterations]:
        return {
            user: {Hash(kind): iterations for kind, iterations in kinds.items()}
            for user, kinds in list_scram_users(self._cluster).items()
        }

    def put(self, user: str, kind: Hash, password: str, salt: bytes, iterations: int) -> None:
        salted = salted_password(kind, password, salt, iterations)
        row = ScramCredentialUpsertion(user, int(kind), iterations, salt, salted)
        self._alter(AlterUserScramCredentialsRequest([], [row]))

    def delete(self, user: str, kinds: Sequence[Hash]) -> None:
        for kind in kinds:  # a user may be there once in a request
            row = ScramCredentialDeletion(user, int(kind))
            self._alter(AlterUserScramCredentialsRequest([row], []))

    def _alter(self, request: AlterUserScramCredentialsRequest) -> None:
        for row in self._cluster.request(ALTER, request).results:
            if row.error_code:
                raise BrokerError(f"user {row.user}", row.error_code, row.error_message)


class FolderUsers:
    """Users in the metadata of a data folder, whose brokers are stopped. LogError or
    MetadataError."""

    def __init__(self, data: str, metadata_url: str) -> None:
        self._folder = os.path.abspath(data)
        self._url = metadata_url

    def users(self) -> dict[str, Iterations]:
        def list_users(users: Credentials) -> Iterable[CredentialChange]:
            listed.update(
                {
                    name: {kind: each.iterations for kind, each in kinds.items()}
                    for name, kinds in users.users.items()
                }
            )
            return ()

        listed: dict[str, Iterations] = {}
        asyncio.run(self._change_users(list_users))
        return listed

    def put(self, user: str, kind: Hash, password: str, salt: bytes, iterations: int) -> None:
        made = derive(kind, password, salt, iterations)
        asyncio.run(self._change_users(lambda _: [CredentialChange(user, kind, made)]))

    def delete(self, user: str, kinds: Sequence[Hash]) -> None:
        changes = [CredentialChange(user, kind, None) for kind in kinds]
        asyncio.run(self._change_users(lambda _: changes))

    async def _change_users(
        self, make: Callable[[Credentials], Iterable[CredentialChange]]
    ) -> None:
        async with stopped_brokers(self._folder, self._url) as (env, metadata):
            await metadata.open()
            users = Credentials(metadata, env.random.randbytes, env.slices.give_way)
            await users.load()
            changes = list(make(users))
            if changes:
                await users.alter(changes)


MAX_PASSWORD = 4096
"""Bytes of a password file: more is another file."""

User = Annotated[str, typer.Argument(metavar="USER", callback=not_empty)]
Users = Annotated[list[str], typer.Argument(metavar="USER...", callback=not_empty)]
Folder = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="DIR",
        callback=not_empty,
        help="Data folder of a stopped broker, to change it.",
    ),
]
Mechanisms = Annotated[
    list[str],
    typer.Option(
        "--mechanism", metavar="NAME",
        help="SCRAM-SHA-256 or SCRAM-SHA-512; may be repeated. [default: both]",
    ),
]  # fmt: skip
PasswordFile = Annotated[
    str,
    typer.Option(
        "--password-file", metavar="FILE", callback=not_empty,
        help="File whose first line is the password. [default: standard input]",
    ),
]  # fmt: skip
Rounds = Annotated[
    int,
    typer.Option(
        "--iterations", min=MIN_ITERATIONS, max=MAX_ITERATIONS, help="Cost of guessing a password."
    ),
]


def create(
    user: User,
    password_file: PasswordFile = "",
    mechanism: Mechanisms = [],  # noqa: B006
    iterations: Rounds = MIN_ITERATIONS,
    server: Server = LOCAL,
    data: Folder = "",
    metadata: Metadata = "",
) -> None:
    """Create a user of SCRAM, who can log in with PLAIN, too.

    Examples:
      kafkawire users create alice
      kafkawire users create alice --password-file alice.password --data kafkawire-data
    """
    try:
        check_name(user)
    except ValueError as wrong:
        fail(f"{user!r}: {wrong}", 2)
    kinds = _kinds(mechanism)
    secret = _password(password_file)
    with _store(server, data, metadata) as store:
        if user in store.users():
            fail(
                f"user {user} exists already: `kafkawire users password` changes the password, or "
                "adds a mechanism with --mechanism"
            )
        _put(store, user, kinds, secret, iterations)
    print(f"created user {user} for {' and '.join(kind.mechanism for kind in kinds)}")


def password(
    user: User,
    password_file: PasswordFile = "",
    mechanism: Annotated[
        list[str],
        typer.Option(
            "--mechanism",
            metavar="NAME",
            help="SCRAM-SHA-256 or SCRAM-SHA-512, which is added if the user does not have it; may "
            "be repeated. [default: those that the user has]",
        ),
    ] = [],  # noqa: B006
    iterations: Rounds = MIN_ITERATIONS,
    server: Server = LOCAL,
    data: Folder = "",
    metadata: Metadata = "",
) -> None:
    """Change the password of a user, or add a mechanism. Open connections stay.

    Examples:
      kafkawire users password alice --password-file new.password
      kafkawire users password alice --mechanism SCRAM-SHA-512
    """
    chosen = _kinds(mechanism) if mechanism else []
    secret = _password(password_file)
    with _store(server, data, metadata) as store:
        kinds = store.users().get(user)
        if not kinds:
            fail(f"user {user} does not exist: `kafkawire users create` creates it")
        _put(store, user, chosen or sorted(kinds), secret, iterations)
    names = f" for {' and '.join(kind.mechanism for kind in chosen)}" if chosen else ""
    print(f"changed the password of user {user}{names}")


def delete(
    users: Users, server: Server = LOCAL, data: Folder = "", metadata: Metadata = ""
) -> None:
    """Delete users. Their open connections stay until they log in again, unless the broker has
    sasl.deleted.users.disconnect.

    Examples:
      kafkawire users delete alice bob
    """
    with _store(server, data, metadata) as store:
        known = store.users()
        absent = [user for user in users if user not in known]
        if absent:
            fail(f"user {absent[0]} does not exist: nothing is deleted")
        for user in dict.fromkeys(users):
            store.delete(user, sorted(known[user]))
            print(f"deleted user {user}")


def list_users(
    server: Server = LOCAL,
    data: Folder = "",
    metadata: Metadata = "",
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """List the users of SCRAM with mechanisms and iterations. Those of sasl.plain.users.file are
    not among them.

    Examples:
      kafkawire users list --json
    """
    with _store(server, data, metadata) as store:
        rows = [
            {"user": user, "mechanism": kind.mechanism, "iterations": rounds}
            for user, kinds in sorted(store.users().items())
            for kind, rounds in sorted(kinds.items())
        ]
    print_results(rows, ("user", "mechanism", "iterations"), count(len(rows), "credential"),
                  as_json, wide)  # fmt: skip


@contextmanager
def _store(server: str, data: str, metadata: str) -> Iterator[UserStore]:
    """Open the users of the cluster, or of the folder if one is named."""
    if not data:
        with connect_cluster(server) as cluster:
            yield ClusterUsers(cluster)
        return
    try:
        yield FolderUsers(data, metadata)
    except (LogError, MetadataError, ClientError) as failure:
        fail(failure)
    except OSError as failure:
        fail(f"{failure.filename or data} cannot be used: {failure.strerror or failure}")


def _kinds(names: Sequence[str]) -> list[Hash]:
    for name in names:
        if name not in MECHANISMS:
            fail(OptionError("--mechanism", name, " or ".join(MECHANISMS)), 2)
    return sorted({MECHANISMS[name] for name in names} or set(Hash))


def _put(store: UserStore, user: str, kinds: Sequence[Hash], secret: str, iterations: int) -> None:
    for kind in kinds:
        store.put(user, kind, secret, new_salt(random.SystemRandom().getrandbits), iterations)


def _password(path: str) -> str:
    """Return the password; ends the command with exit code 2 if it is empty."""
    try:
        if path:
            with open(path, encoding="utf-8") as file:
                found = file.readline(MAX_PASSWORD)
        elif sys.stdin.isatty():
            found = getpass.getpass("Password: ")
            if found != getpass.getpass("Password again: "):
                fail("the two passwords differ", 2)
        else:
            found = sys.stdin.readline(MAX_PASSWORD)
    except OSError as wrong:
        fail(f"--password-file={path}: it cannot be read ({wrong.strerror})", 2)
    except UnicodeDecodeError:
        fail("the password is not UTF-8", 2)
    found = found.rstrip("\r\n")
    if not found:
        fail("the password is empty", 2)
    return found
