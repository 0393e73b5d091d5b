"""The access rules of a broker: loaded from SQL at start, changed by CreateAcls and DeleteAcls.

A change is stored in one SQL transaction and then applied to the index in one step: a decision is
made by the rules before the change or by those after it, never by a part of it, which could allow
what neither of them does. Then every cached decision is dropped. Other brokers of the same
PostgreSQL see a new version of the table and load the rules again (`refresh`). Created by the
broker if there is an authorizer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from kafkawire.codec.configs.access_rules import super_users
from kafkawire.log.io import slices
from kafkawire.metadata.session import Row, Session, insert
from kafkawire.metadata.store import Transactions
from kafkawire.plural import count
from kafkawire.security import versions
from kafkawire.security.acls.index import AclDecision, AclIndex
from kafkawire.security.acls.model import Acl, AclFilter, network_of
from kafkawire.security.acls.rights import Cache, Rights, java_address
from kafkawire.security.principals import Principal

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env

logger = logging.getLogger(__name__)


# The table `acls`: rules in SQL. Functions run inside a transaction (`Transactions.transact`).


class StoredAcls(NamedTuple):
    """All rules, as portions of rows, and the version of the table."""

    rows: list[list[Row]]
    version: int


def acl_digest(acl: Acl) -> bytes:
    """Return the key of a rule: equal for equal rules."""
    text = "\0".join(map(str, acl))  # no field has a NUL (`service.fault_of`)
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def load_acls(session: Session, known: int) -> StoredAcls | None:
    """Return all rules; None if their version is `known`."""
    version = versions.version_of(session, versions.ACLS)
    if version == known:
        return None
    rows = session.checked_portions(
        "acls",
        "resource_type, resource_name, pattern_type, principal, host, operation, permission",
    )
    return StoredAcls(rows, version)


def change_acls(session: Session, added: Sequence[Row], removed: Sequence[Row]) -> int:
    """Insert rows (a digest, then the rule) and delete rules by digest, the only value of each;
    return the version."""
    version = versions.increment_version(session, versions.ACLS)
    insert(
        session,
        "INSERT INTO acls (digest, resource_type, resource_name, pattern_type, principal, host,"
        " operation, permission)",
        added,
        "ON CONFLICT (digest) DO NOTHING",
    )
    session.many("DELETE FROM acls WHERE digest = ?", removed)
    return version


ACLS_MAX = 100_000
"""Rules of a cluster: some 60 MB in memory. Clusters with one rule for each of 10,000 clients are
large."""
CHANGES_MAX = 10_000
"""Rules added or removed by one request, as in Kafka."""
APPLIED_AT_ONCE = 50
"""Rules added to the index and removed from it in one step: half a millisecond. For a larger change
another index is built and replaces it; meanwhile the rules take twice the memory."""
MATCHES_MAX = 100_000
"""Rules in the response to one request to delete some, where one rule may match many filters: some
40 MB."""
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
        self._config = config
        self._index = self._new_index()
        self._version = -1
        self._changing = asyncio.Lock()
        self._reading = asyncio.Lock()  # the index does not change while it is held
        self._rights: WeakValueDictionary[tuple[str, str], Rights] = WeakValueDictionary()
        self._decisions = 0
        self._dropping: asyncio.Task[None] | None = None

    def _new_index(self) -> AclIndex:
        return AclIndex(
            (),
            super_users(self._config.super_users),
            default_allow=self._config.allow_everyone_if_no_acl_found,
        )

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
            found = self._rights[key] = Rights(*key, self._index, self._may_cache)
        return found

    async def may_any(self, rights: Rights, operation: int, resource_type: int) -> bool:
        """Return whether an operation may be allowed on some resource of a type, in slices: with
        100,000 rules, each allowed one denied by another, that takes half a second."""
        async with self._reading:
            return await self._env.slices.run(rights.may_any(operation, resource_type))

    def explain(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> AclDecision:
        """Decide, and say by which rule."""
        return self._index.decide(principal, java_address(host), operation, resource_type, name)

    async def find(self, wanted: AclFilter) -> list[Acl]:
        """Return the rules that a filter means, in slices."""
        matches: list[Acl] = []
        async with self._reading:
            for acl in self._index:
                if wanted.matches(acl):
                    matches.append(acl)
                await self._env.slices.give_way()
        return matches

    async def create(self, acls: Iterable[Acl]) -> list[Acl]:
        """Store and apply rules, all or none; return those that are new. Raises TooManyAcls,
        MetadataError."""
        async with self._changing:
            new: dict[Acl, None] = {}
            for acl in acls:
                if acl not in self._index:
                    new[acl] = None
                    if len(new) > CHANGES_MAX:
                        raise TooManyAcls(f"Unable to create more than {CHANGES_MAX} ACLs at once.")
                await self._env.slices.give_way()
            if len(self._index) + len(new) > ACLS_MAX:
                raise TooManyAcls(f"There may be {ACLS_MAX} ACLs; {len(self._index)} exist.")
            added = list(new)
            await self._change(added, [])
            return added

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        """Remove the rules that filters mean; return those of each. Raises TooManyAcls,
        MetadataError."""
        async with self._changing:
            found: list[list[Acl]] = []
            removed: dict[Acl, None] = {}
            count_left = MATCHES_MAX
            for wanted in filters:
                matches = await self.find(wanted)
                found.append(matches)
                count_left -= len(matches)
                for acl in matches:
                    removed[acl] = None
                    await self._env.slices.give_way()
                if len(removed) > CHANGES_MAX:
                    raise TooManyAcls(
                        f"Cannot remove more than {CHANGES_MAX} acls in a single delete operation."
                    )
                if count_left < 0:
                    raise TooManyAcls(f"The filters match more than {MATCHES_MAX} acls in all.")
            await self._change([], list(removed))
            return found

    async def _change(self, added: list[Acl], removed: list[Acl]) -> None:
        if not added and not removed:
            return
        give_way = self._env.slices.give_way
        rows: list[Row] = await slices.collect(((acl_digest(acl), *acl) for acl in added), give_way)
        keys: list[Row] = await slices.collect(((acl_digest(a),) for a in removed), give_way)
        version = await self._store.transact(lambda session: change_acls(session, rows, keys))
        if version == self._version + 1:
            self._version = version  # else others have changed rules, too: `refresh` loads all
        await self._apply(added, removed)

    async def _apply(self, added: Sequence[Acl], removed: Sequence[Acl]) -> None:
        """Change the index in one step, then drop all decisions. The index has none of the added
        rules and all of the removed ones."""
        if len(added) + len(removed) <= APPLIED_AT_ONCE:
            async with self._reading:
                for acl in removed:
                    self._index.remove(acl)
                for acl in added:
                    self._index.add(acl)
            await self._forget()
        else:
            await self._replace(added, removed)

    async def _replace(self, added: Sequence[Acl], removed: Sequence[Acl]) -> None:
        """Build another index with the changes and put it in the place of the old one."""
        give_way = self._env.slices.give_way
        gone = await slices.count_keys(removed, give_way)
        other = self._new_index()
        for acl in chain(self._index, added):
            if acl not in gone:
                other.add(acl)
            await give_way()
        async with self._reading:
            self._index.swap(other)
        await self._forget()
        await slices.empty_slowly(gone, give_way)
        for acl in await slices.collect(other, give_way):
            other.remove(acl)  # frees the old index in slices
            await give_way()

    async def refresh_from(self, version: int) -> None:
        """Load the rules again if `version`, the one in SQL, is not the one in memory. Raises
        MetadataError."""
        if version != self._version:
            await self.refresh()

    async def refresh(self) -> None:
        """Load the rules if other brokers have changed them. Raises MetadataError."""
        async with self._changing:
            found = await self._store.transact(lambda session: load_acls(session, self._version))
            if found is None:
                return
            give_way = self._env.slices.give_way
            fresh: dict[Acl, None] = {}
            async for row in slices.drain_slowly(found.rows, give_way):
                fresh[Acl(*row)] = None
            added: list[Acl] = []
            for acl in fresh:
                if acl not in self._index:
                    added.append(acl)
                await give_way()
            removed: list[Acl] = []
            for acl in self._index:
                if acl not in fresh:
                    removed.append(acl)
                await give_way()
            await slices.empty_slowly(fresh, give_way)
            await self._apply(added, removed)
            self._version = found.version

    def _may_cache(self) -> bool:
        """Count a decision; return whether it may be cached. With too many, all are dropped."""
        if self._decisions >= DECISIONS_MAX:
            if self._dropping is None or self._dropping.done():
                self._dropping = self._env.spawn(self._drop(), "drop cached access decisions")
            return False
        self._decisions += 1
        return True

    async def _drop(self) -> None:
        await self._empty(Rights.evict_all)

    async def _forget(self) -> None:
        """Drop all decisions, because rules have changed: of one client after another, as if each
        of their next requests came before the change or after it."""
        await self._empty(Rights.clear_cache)

    async def _empty(self, drop: Callable[[Rights], Iterable[Cache]]) -> None:
        give_way = self._env.slices.give_way
        self._decisions = 0
        for reference in self._rights.valuerefs():
            rights = reference()
            if rights is not None:
                for cache in drop(rights):
                    await slices.empty_slowly(cache, give_way)
            await give_way()


def fault_of(acl: Acl) -> str | None:
    """Return why a rule cannot be stored; None if it can."""
    for text in (acl.resource_name, acl.principal, acl.host):
        if len(text) > TEXT_MAX:
            return f"A text of {len(text)} characters; at most {TEXT_MAX} are allowed."
        if "\0" in text:
            return "A text with the character U+0000, which cannot be stored."
    if "/" in acl.host and network_of(acl.host) is None:
        return f"The host {acl.host} is no network in CIDR notation, such as 10.0.0.0/8."
    return None
