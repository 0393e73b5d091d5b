"""Encryption, users and access rules of a broker for tests, by one argument each.

The broker gets a listener of its own for them, `SECURED`, for the programs under test. The listener
PLAINTEXT is for the test, which may do everything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import check
from kafkawire.security.acls.model import (
    ANYTHING,
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)
from kafkawire.security.sasl.scram import MIN_ITERATIONS, Hash, salted_password
from kafkawire.testing.control import BrokerFailed
from kafkawire.testing.forks import ForkServer, Start

SECURED = "SECURED"
SALT_BYTES = 16
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CREATE_ACLS, ALTER_USERS = 30, 51
_PROTOCOLS = {
    (True, True): ("SASL_TLS", "SASL_SSL"),
    (True, False): ("SASL_PLAINTEXT", "SASL_PLAINTEXT"),
    (False, True): ("TLS", "SSL"),
}
"""By users and encryption: names for --listen, and for clients."""

AccessRule = tuple[str, str, str]
"""User, operation and resource: ("alice", "Write", "topic:orders"). A resource that ends with `*`
stands for all that begin with what is before it; "cluster" has no name."""


@dataclass(frozen=True, slots=True)
class Secured:
    """Encryption, users and rules of a broker. `acls` None: users may do everything; else only what
    these rules allow."""

    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: bool = False
    acls: Sequence[AccessRule] | None = None

    def __post_init__(self) -> None:
        """Check the rules. Raises ValueError."""
        if self.acls is not None and not self.users:
            raise ValueError("acls: users must be given, too")
        list(self._rules())

    @property
    def listeners(self) -> list[str]:
        """The listener, unless nothing is secured."""
        return [f"{SECURED}={self._protocol[0]}://127.0.0.1:0"] if self.users or self.tls else []

    @property
    def _protocol(self) -> tuple[str, str]:
        return _PROTOCOLS[bool(self.users), self.tls]

    def settings(self, certificates: Path) -> dict[str, str]:
        """Return settings of the broker; `certificates`: the folder of `kafkawire certs make`."""
        made: dict[str, str] = {}
        if self.users:
            made["sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
        if self.tls:
            made["ssl.keystore.location"] = str(certificates / "server.pem")
            made["ssl.key.location"] = str(certificates / "server.key")
        if self.acls is not None:
            made |= {"authorizer": "acl", "super.users": "User:ANONYMOUS"}
        return made

    def make_certificates(
        self, folder: Path, server: ForkServer, environ: Mapping[str, str]
    ) -> None:
        """Make certificates if they are needed, and not made yet. BrokerFailed,
        ForkServerFailed."""
        if not self.tls or folder.exists():
            return
        made = server.start(Start(["certs", "make", str(folder)], environ, os.getcwd()))
        with made.output, made.control:
            output = made.output.read()
            if made.wait():
                raise BrokerFailed(f"no certificates were made: {output}")

    def create_users_and_rules(self, bootstrap: str) -> None:
        """Create users and rules on a running broker; those that exist stay. BrokerError."""
        if not self.users:
            return
        from kafkawire.messages.alter_user_scram_credentials import (
            AlterUserScramCredentialsRequest,
            ScramCredentialUpsertion,
        )
        from kafkawire.messages.create_acls import AclCreation, CreateAclsRequest

        salt = os.urandom(SALT_BYTES)
        rules = [
            AclCreation(kind, name, pattern, f"User:{user}", ANYTHING, operation, Permission.ALLOW)
            for user, operation, kind, pattern, name in self._rules()
        ]
        with Cluster(bootstrap, "bootstrap") as cluster:
            for kind in Hash:  # a request may have each user once
                made = [
                    ScramCredentialUpsertion(
                        name, kind, MIN_ITERATIONS, salt,
                        salted_password(kind, password, salt, MIN_ITERATIONS),
                    )
                    for name, password in self.users.items()
                ]  # fmt: skip
                asked = AlterUserScramCredentialsRequest(upsertions=made)
                for row in cluster.request(ALTER_USERS, asked).results:
                    check(f"user {row.user}", row.error_code, row.error_message)
            if rules:
                answer = cluster.request(CREATE_ACLS, CreateAclsRequest(rules))
                for rule, result in zip(self.acls or (), answer.results, strict=True):
                    check(f"acls {rule}", result.error_code, result.error_message)

    def client_settings(
        self, addresses: Mapping[str, str], certificates: Path, user: str | None
    ) -> dict[str, str]:
        """Return settings of a client by the names of librdkafka. ValueError if there is no such
        user; None: the first."""
        made = {"bootstrap.servers": addresses[SECURED], "security.protocol": self._protocol[1]}
        if self.tls:
            made["ssl.ca.location"] = str(certificates / "ca.pem")
        if self.users:
            name = next(iter(self.users)) if user is None else user
            if name not in self.users:
                raise ValueError(f"user={name}: it must be one of {', '.join(self.users)}")
            made |= {
                "sasl.mechanism": MECHANISMS[-1],
                "sasl.username": name,
                "sasl.password": self.users[name],
            }
        return made

    def _rules(self) -> Iterator[tuple[str, Operation, ResourceKind, PatternType, str]]:
        """Yield user, operation, and the resource's type, pattern and name of each rule. Raises
        ValueError."""
        for user, operation, resource in self.acls or ():
            kind, _, name = resource.partition(":")
            if user not in self.users:
                raise ValueError(f"acls: user {user} is not one of {', '.join(self.users)}")
            try:
                found = Operation[_constant(operation)], ResourceKind[_constant(kind)]
            except KeyError:
                raise ValueError(
                    f"acls: {operation} {resource}: it must be an operation and a resource, such "
                    "as Read topic:NAME"
                ) from None
            pattern = PatternType.LITERAL
            if name.endswith(ANYTHING) and name != ANYTHING:
                pattern, name = PatternType.PREFIXED, name.removesuffix(ANYTHING)
            yield user, *found, pattern, name or CLUSTER_NAME


def _constant(name: str) -> str:
    """Return the name of a constant: DESCRIBE_CONFIGS for DescribeConfigs."""
    words = "".join(f"_{each}" if each.isupper() else each for each in name)
    return (name if name.isupper() else words.lstrip("_")).upper()
