"""`kafkawire cluster remove`: a broker that does not come back leaves the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkawire.cli.shared.outcomes import connected
from kafkawire.cli.shared.parameters import INT32, LOCAL, Server
from kafkawire.client.admin import remove_broker


def remove(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0, max=INT32)],
    server: Server = LOCAL,
) -> None:
    """Remove a stopped broker that leads nothing from the cluster, with its settings.

    It is refused while the broker is alive, leads partitions, or has segments, objects or log
    objects. Drain and stop it first. A broker that is started again is registered again.

    Examples:
      kafkawire cluster remove 3
    """
    with connected(server) as cluster:
        remove_broker(cluster, broker)
        print(f"broker {broker} was removed from the cluster")
