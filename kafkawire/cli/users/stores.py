"""The users of a running cluster, by its API, or those in the metadata of a stopped broker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from kafkawire.cli.shared.stopped import stopped_brokers
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, check
from kafkawire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kafkawire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from kafkawire.security.sasl.credentials import CredentialChange, Credentials
from kafkawire.security.sasl.scram import Hash, derive, salted_password

DESCRIBE, ALTER = 50, 51
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
        answer = self._cluster.request(DESCRIBE, DescribeUserScramCredentialsRequest(None))
        check("users", answer.error_code, answer.error_message)
        return {
            row.user: {Hash(each.mechanism): each.iterations for each in row.credential_infos}
            for row in answer.results
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
        def found(users: Credentials) -> Iterable[CredentialChange]:
            listed.update(
                {
                    name: {kind: each.iterations for kind, each in kinds.items()}
                    for name, kinds in users.users.items()
                }
            )
            return ()

        listed: dict[str, Iterations] = {}
        asyncio.run(self._changed(found))
        return listed

    def put(self, user: str, kind: Hash, password: str, salt: bytes, iterations: int) -> None:
        made = derive(kind, password, salt, iterations)
        asyncio.run(self._changed(lambda _: [CredentialChange(user, kind, made)]))

    def delete(self, user: str, kinds: Sequence[Hash]) -> None:
        changes = [CredentialChange(user, kind, None) for kind in kinds]
        asyncio.run(self._changed(lambda _: changes))

    async def _changed(self, make: Callable[[Credentials], Iterable[CredentialChange]]) -> None:
        async with stopped_brokers(self._folder, self._url) as (env, metadata):
            await metadata.open()
            users = Credentials(metadata, env.random.randbytes, env.slices.give_way)
            await users.load()
            changes = list(make(users))
            if changes:
                await users.alter(changes)
