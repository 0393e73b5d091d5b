"""The parts of a broker that its services of topics and settings use.

A protocol only; kafkawire.broker.broker makes the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kafkawire.broker.partitions import PartitionTable
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.groups.service import GroupService
    from kafkawire.log.io.ports import Env
    from kafkawire.log.manager import Log
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.store import SqlStore
    from kafkawire.tiering.service import Tiering


class BrokerParts(Protocol):
    """The parts of a broker, built and connected in order of dependency. `static`: the settings of
    this broker alone, as texts; `tiering` is None where no tier is configured."""

    env: Env
    node_id: int
    config: BrokerConfig
    static: dict[str, str]
    catalog: Catalog
    metadata: SqlStore
    log: Log
    table: PartitionTable
    tiering: Tiering | None

    @property
    def groups(self) -> GroupService:
        """The coordinators of consumer groups; the first use makes them."""
        ...
