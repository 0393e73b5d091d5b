"""Protocol of the broker's components that its topic and config services use."""

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
    from kafkawire.schedules.starter import ScheduleStarter
    from kafkawire.security.acls.security import Security
    from kafkawire.share.state.service import ShareStateService
    from kafkawire.tiering.service import Tiering
    from kafkawire.transactions.service import TransactionService


class BrokerParts(Protocol):
    """The components of a broker, in order of dependency. `static`: the settings of this broker
    alone, as strings; `tiering` is None if no tier is configured."""

    env: Env
    node_id: int
    folder: str
    config: BrokerConfig
    static: dict[str, str]
    catalog: Catalog
    metadata: SqlStore
    security: Security
    log: Log
    table: PartitionTable
    schedules: ScheduleStarter
    tiering: Tiering | None

    @property
    def groups(self) -> GroupService:
        """The coordinators of consumer groups, created on first use."""

    async def load_groups(self) -> GroupService:
        """Return `groups`, after importing its modules in a thread."""

    async def load_transactions(self) -> TransactionService:
        """Return `transactions`, like `load_groups`."""

    @property
    def transactions(self) -> TransactionService:
        """The coordinators of transactions, created on first use."""

    async def load_share_states(self) -> ShareStateService:
        """Return `share_states`, like `load_groups`."""

    @property
    def share_states(self) -> ShareStateService:
        """The share coordinators, created on first use."""

    def on_superseded(self, why: str) -> None:
        """Note that another process was started as this broker."""
