"""The access rules of a broker: loaded from SQL at start, changed by CreateAcls and DeleteAcls.

A change is stored in one SQL transaction and then applied to the index, deny rules first, and every
cached decision is dropped. Other brokers of the same PostgreSQL see a new version of the table and
load the rules again (`refresh`). Created by the broker if there is an authorizer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from kafkawire.codec.configs.access_rules import super_users
from kafkawire.log.io import slices
from kafkawire.metadata.session import Row
from kafkawire.metadata.store import Transactions
from kafkawire.plural import count
from kafkawire.security.acls import stored
from kafkawire.security.acls.index import AclDecision, AclIndex
from kafkawire.security.acls.model import Acl, AclFilter, Permission
from kafkawire.security.acls.rights import Rights, java_address
from kafkawire.security.principals import Principal

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env

logger = logging.getLogger(__name__)

ACLS_MAX = 100_000
"""Rules of a cluster: some 60 MB in memory. Clusters with one rule for each of 10,000 clients are
large."""
CHANGES_MAX = 10_000
"""Rules added or removed by one request, as in Kafka."""
DECISIONS_MAX = 200_000
"""Cached decisions of all clients, some 30 MB; then all are dropped."""
TEXT_MAX = 4_096
"""Characters of a name, principal or host. The longest distinguished names have a few hundred."""


class TooManyAcls(Exception):
    """A change exceeds a limit; the text is the answer."""


class AclService:
    """Keeps the rules and the rights of connected clients. `open` creates one."""

    def __init__(self, env: Env, store: Transactions, config: BrokerConfig) -> None:
        self._env = env
        self._store = store
        self._index = AclIndex(
            (),
            super_users(config.super_users),
            default_allow=config.allow_everyone_if_no_acl_found,
        )
        self._version = 0
        self._changing = asyncio.Lock()
        self._rights: WeakValueDictionary[tuple[str, str], Rights] = WeakValueDictionary()
        self._decisions = 0

    def __len__(self) -> int:
        return len(self._index)

    async def open(self) -> None:
        """Load the rules. Raises MetadataError."""
        await self.refresh()
        logger.info("access rules are enforced: %s", count(len(self._index), "rule"))

    def rights(self, principal: Principal, host: str) -> Rights:
        """Return what a principal may do at an address."""
        key = str(principal), host
        found = self._rights.get(key)
        if found is None:
            found = self._rights[key] = Rights(*key, self._index, self._kept)
        return found

    def explain(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> AclDecision:
        """Decide, and say by which rule."""
        return self._index.decide(principal, java_address(host), operation, resource_type, name)

    async def find(self, wanted: AclFilter) -> list[Acl]:
        """Return the rules that a filter means, in slices."""
        return (await self._find([wanted]))[0]

    async def _find(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        found: list[list[Acl]] = []
        give_way = self._env.slices.give_way
        every = list(self._index)
        for wanted in filters:
            matches: list[Acl] = []
            for acl in every:
                if wanted.matches(acl):
                    matches.append(acl)
                await give_way()
            found.append(matches)
        return found

    async def create(self, acls: Iterable[Acl]) -> list[Acl]:
        """Store and apply rules, all or none; return those that are new. Raises TooManyAcls,
        MetadataError."""
        async with self._changing:
            new: dict[Acl, None] = {}
            for acl in acls:
                if acl not in self._index:
                    new[acl] = None
                await self._env.slices.give_way()
            if len(new) > CHANGES_MAX:
                raise TooManyAcls(f"Unable to create more than {CHANGES_MAX} ACLs at once.")
            if len(self._index) + len(new) > ACLS_MAX:
                raise TooManyAcls(f"There may be {ACLS_MAX} ACLs; {len(self._index)} exist.")
            added = list(new)
            await self._change(added, [])
            return added

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        """Remove the rules that filters mean; return those of each. Raises TooManyAcls,
        MetadataError."""
        async with self._changing:
            found = await self._find(filters)
            removed = list(dict.fromkeys(acl for matches in found for acl in matches))
            if len(removed) > CHANGES_MAX:
                raise TooManyAcls(
                    f"Cannot remove more than {CHANGES_MAX} acls in a single delete operation."
                )
            await self._change([], removed)
            return found

    async def _change(self, added: list[Acl], removed: list[Acl]) -> None:
        if not added and not removed:
            return
        give_way = self._env.slices.give_way
        rows: list[Row] = await slices.collect(
            ((stored.digest(acl), *acl) for acl in added), give_way
        )
        digests = await slices.collect((stored.digest(acl) for acl in removed), give_way)
        version = await self._store.transact(lambda session: stored.change(session, rows, digests))
        if version == self._version + 1:
            self._version = version  # else others have changed rules, too: `refresh` loads all
        await self._apply(added, removed)

    async def _apply(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        """Change the index, in slices: first what takes rights away, so that a decision in between
        never allows what neither the old nor the new rules do."""
        give_way = self._env.slices.give_way
        steps = [
            *((self._index.add, acl) for acl in added if acl.permission == Permission.DENY),
            *((self._index.remove, acl) for acl in removed if acl.permission != Permission.DENY),
            *((self._index.remove, acl) for acl in removed if acl.permission == Permission.DENY),
            *((self._index.add, acl) for acl in added if acl.permission != Permission.DENY),
        ]
        for step, acl in steps:
            step(acl)
            await give_way()
        self._forget()

    async def refresh(self) -> None:
        """Load the rules if other brokers have changed them. Raises MetadataError."""
        async with self._changing:
            found = await self._store.transact(stored.load)
            if found.version == self._version and len(found.rows) == len(self._index):
                return
            give_way = self._env.slices.give_way
            fresh = dict.fromkeys(await slices.collect((Acl(*row) for row in found.rows), give_way))
            added = await slices.collect((a for a in fresh if a not in self._index), give_way)
            removed = await slices.collect((a for a in self._index if a not in fresh), give_way)
            await self._apply(added, removed)
            self._version = found.version

    @property
    def version(self) -> int:
        """The version of the table that is in force here."""
        return self._version

    def _kept(self) -> None:
        self._decisions += 1
        if self._decisions >= DECISIONS_MAX:
            self._forget()

    def _forget(self) -> None:
        self._decisions = 0
        for rights in list(self._rights.values()):
            rights.forget()


def fault_of(acl: Acl) -> str | None:
    """Return why a rule cannot be stored; None if it can."""
    for text in (acl.resource_name, acl.principal, acl.host):
        if len(text) > TEXT_MAX:
            return f"A text of {len(text)} characters; at most {TEXT_MAX} are allowed."
        if "\0" in text:
            return "A text with the character U+0000, which cannot be stored."
    return None
