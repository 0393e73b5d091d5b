"""Protocol of a server as used by the metrics and health pages.

Implemented by kafkawire.server.run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.server.backups import ScheduledBackups
    from kafkawire.server.host import Host
    from kafkawire.server.metadata_check import MetadataCheck


class MonitoredServer(Protocol):
    """A server with its broker. `backups` and `metadata_check` are None if disabled."""

    broker: Broker
    host: Host
    backups: ScheduledBackups | None
    metadata_check: MetadataCheck | None
