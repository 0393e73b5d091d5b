"""The replicas and in-sync replicas of topics with durability=replicated, as clients see them.

All partitions of one leader have the same replicas, since followers have its whole log. A client
sees brokers, not followers: each follower is shown as the broker whose machine it is on, and the
copy of the leader as the leader, wherever that runs. Brokers with `replication.listener` read the
sets from SQL every two seconds. The last followers stay in the set when they are gone, since they
have everything; of what it leads itself, a broker shows only those as in sync that are there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kafkawire.log.followers.in_sync import choose_followers
from kafkawire.metadata.catalog import Replicas
from kafkawire.offsets.catalog import replica_sets

if TYPE_CHECKING:
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.session import Session
    from kafkawire.metadata.store import Transactions
    from kafkawire.offsets.catalog.replica_sets import FollowerRow, ReplicaSet

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Between two reads: tools that wait for a partition to be in sync again ask each second."""


def replicas_of(stored: ReplicaSet, followers: Sequence[FollowerRow], wanted: int) -> Replicas:
    """Return the replicas of what a broker leads; `wanted`: followers of a complete group."""
    leader = stored.node_id
    home = {each.replica_id: each.node_id for each in followers}
    others = [each.node_id for each in choose_followers(followers, leader, "", (), len(followers))]
    others = [node for node in others if node != leader]
    replicas = [leader, *others[:wanted]]
    in_sync = [leader]
    for replica in sorted(stored.in_sync):
        node = home.get(replica, leader)
        if node == leader:  # the leader runs on another machine: the copy here stands for that one
            node = next((each for each in replicas if each not in in_sync), leader)
        if node not in in_sync:
            in_sync.append(node)
    replicas += [node for node in in_sync if node not in replicas]
    return Replicas(replicas, [node for node in replicas if node in in_sync])


class ReplicaLists:
    """Keeps `Catalog.replicas` current."""

    def __init__(
        self,
        env: Env,
        metadata: Transactions,
        catalog: Catalog,
        wanted: int,
        node_id: int,
        live: Callable[[], frozenset[str] | None],
    ) -> None:
        """`live` returns the followers of broker `node_id` that are there, None: not known."""
        self._env = env
        self._node_id = node_id
        self._live = live
        self._metadata = metadata
        self._catalog = catalog
        self._wanted = wanted

    def start(self) -> None:
        """Begin to read."""
        self._env.spawn(self._run(), "replica lists")

    async def read(self) -> None:
        """Read the sets once. Raises MetadataError."""

        def load(session: Session) -> tuple[list[ReplicaSet], list[FollowerRow]]:
            return replica_sets.load_all(session), replica_sets.load_followers(session)

        stored, followers = await self._metadata.transact(load)
        live = self._live()
        shown = [
            replace(each, in_sync=each.in_sync & live)
            if each.node_id == self._node_id and live is not None
            else each
            for each in stored
        ]
        found = {each.node_id: replicas_of(each, followers, self._wanted) for each in shown}
        if found != self._catalog.replicas:
            self._catalog.set_replicas(found)

    async def _run(self) -> None:
        while True:
            try:
                await self.read()
            except OSError as failure:
                logger.debug("the replica sets cannot be read: %s", failure)
            await self._env.sleep(INTERVAL_S)
