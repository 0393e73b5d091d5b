"""A user of the console: connections, snapshots, and the right to change."""

from __future__ import annotations

from kafkawire.client.security import ClientSecurity
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.pool import ClusterPool
from kafkawire.console.views.snapshot import SnapshotCache


class Viewer:
    """A user, with connections under their own name, so that the broker's ACLs decide what is read
    and changed. `may_change`: whether functions of `views` that change something may run."""

    def __init__(self, server: str, security: ClientSecurity, may_change: bool) -> None:
        self.pool = ClusterPool(server, security)
        self.own = OwnBroker()
        self.snapshots = SnapshotCache(self.pool, self.own)
        self.may_change = may_change

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.snapshots.close()
        self.pool.close()
