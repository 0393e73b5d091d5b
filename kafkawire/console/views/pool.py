"""Connections to one cluster, each lent to one caller at a time: it has one request at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.security import NO_SECURITY, ClientSecurity

MAX_CLUSTERS = 6
"""Callers at the same time: readers of records and the snapshot. More would be load on the broker
that its producers feel."""
PATIENCE_S = 10.0
"""How long a caller waits for another to finish; a page that takes longer says that it is busy."""


class ClusterPool:
    """Lends connections to a cluster; they are opened when they are needed, and `idle` of them are
    kept."""

    def __init__(
        self, server: str, security: ClientSecurity = NO_SECURITY, idle: int = MAX_CLUSTERS
    ) -> None:
        self.server = server
        self._security = security
        self._idle = idle
        self._free: list[Cluster] = []
        self._lock = threading.Lock()
        self._permits = threading.BoundedSemaphore(MAX_CLUSTERS)

    @contextmanager
    def lend(self) -> Iterator[Cluster]:
        """Lend a cluster for a `with` block. ClientError if all are lent for PATIENCE_S, or the
        broker does not answer. After any failure but an answer of the broker it is closed, since
        its connections may have half an answer."""
        if not self._permits.acquire(timeout=PATIENCE_S):
            raise ClientError(f"the console is busy: {MAX_CLUSTERS} requests are running")
        try:
            with self._lock:
                cluster = self._free.pop() if self._free else None
            if cluster is None:
                cluster = Cluster(self.server, security=self._security)
            sound = False
            try:
                yield cluster
                sound = True
            except BrokerError:
                sound = True
                raise
            finally:
                self._put_back(cluster, sound)
        finally:
            self._permits.release()

    def _put_back(self, cluster: Cluster, sound: bool) -> None:
        with self._lock:
            kept = sound and len(self._free) < self._idle
            if kept:
                self._free.append(cluster)
        if not kept:
            cluster.close()

    def close(self) -> None:
        """Close the connections: at once those that are not lent, others when they come back."""
        with self._lock:
            free, self._free = self._free, []
            self._idle = 0
        for cluster in free:
            cluster.close()
