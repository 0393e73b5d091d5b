"""A user of the console: connections, snapshots, and the right to change."""

from __future__ import annotations

from kafkawire.client.cluster import Cluster
from kafkawire.client.security import ClientSecurity
from kafkawire.console.views.findings import find_problems
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.pool import MAX_CLUSTERS, ClusterPool
from kafkawire.console.views.produce import RecordProducer
from kafkawire.console.views.snapshot import SnapshotCache


class Viewer:
    """A user, with connections under their own name, so that the broker's ACLs decide what is read
    and changed. `may_change`: whether functions of `views` that change something may run; `idle`:
    connections that are kept."""

    def __init__(
        self, server: str, security: ClientSecurity, may_change: bool, idle: int = MAX_CLUSTERS
    ) -> None:
        self.pool = ClusterPool(server, security, idle)
        self.own = OwnBroker()
        self.snapshots = SnapshotCache(self.pool, self.own, find=find_problems)
        self.may_change = may_change
        self.user = security.user
        self._server = server
        self._security = security
        self.producer = RecordProducer(self.connect, may_change)

    def connect(self) -> Cluster:
        """Return connections that the caller closes, for a consumer that stays open. ClientError
        if the broker does not answer."""
        return Cluster(self._server, security=self._security)

    def close(self) -> None:
        """Close the connections: those in use when they are free."""
        self.producer.close()
        self.snapshots.close()
        self.pool.close()
