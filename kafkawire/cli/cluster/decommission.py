"""`kafkawire cluster decommission`: others take what a broker has, and it leaves the cluster."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from kafkawire.cli.cluster.moves import POLL_S, wait_until_idle
from kafkawire.cli.shared.outcomes import connect_cluster
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import INT32, LOCAL, Server
from kafkawire.cli.shared.progress import bars
from kafkawire.client.admin import remove_broker
from kafkawire.client.cluster import Cluster, find_registered_brokers
from kafkawire.client.configs import BROKER, DELETE, SET, alter
from kafkawire.client.errors import ClientError, Closed, NoAnswer, UnknownBroker
from kafkawire.client.placement import DECOMMISSIONING, leaders
from kafkawire.messages.registry import TIER
from kafkawire.plural import count
from kafkawire.progress import PHASE

UNREACHABLE_S = 60.0
"""For so long no other broker may answer before the command fails: a takeover takes ten seconds."""

Attempt = TypeVar("Attempt")


def decommission(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0, max=INT32)],
    undo: Annotated[
        bool, typer.Option("--undo", help="Keep the broker; it may lead partitions again.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when the broker is removed.")
    ] = True,
    server: Server = LOCAL,
) -> None:
    """Remove a broker for good: others take its partitions and copy what it stored.

    It runs meanwhile, on its own machine or on one that took it over; one that was stopped is
    taken over now. When nothing is left of it,
    it is removed from the cluster and its process ends. This takes at least the delays
    file.delete.delay.ms and tier.delete.delay.ms.

    Examples:
      kafkawire cluster decommission 3
      kafkawire cluster decommission 3 --undo
    """
    with connect_cluster(server) as cluster:
        nodes = cluster.nodes()
        if not undo and nodes == [broker]:
            fail(f"broker {broker} is the only broker that is alive: none can take what it has", 2)
        change = (DECOMMISSIONING, None, DELETE) if undo else (DECOMMISSIONING, "true", SET)
        # Others list a broker that just stopped until they learn of it; it takes no settings.
        _patiently(cluster, lambda: alter(cluster, (BROKER, str(broker)), [change]))
        if not undo and broker not in cluster.nodes():
            print(
                f"broker {broker} is not alive: it is removed after another machine has taken it "
                "over (cluster.takeover.enable), or its own has started it",
                file=sys.stderr,
            )
        if undo:
            print(f"broker {broker} stays in the cluster, and may lead partitions again")
        elif not wait:
            led = Counter(leaders(cluster).values())[broker]
            print(f"broker {broker} is being decommissioned: {count(led, 'partition')} to be moved")
        else:
            wait_until_idle(cluster, broker)
            _wait_until_removed(cluster, broker)
            print(f"broker {broker} was removed from the cluster")


def _wait_until_removed(cluster: Cluster, broker: int) -> None:
    """Show the segments that are left, then that objects are, until the broker is removed."""
    left, most = _segments(cluster, broker), 0
    with bars() as progress:
        while broker in _patiently(cluster, lambda: _list_registered(cluster, broker)):
            if left is not None and (left or most):
                most = max(most, left)
                progress(f"segments of broker {broker} copied and deleted", most - left, most)
            if not left:
                progress(f"deleting what is left of broker {broker}", 0, PHASE)
            time.sleep(POLL_S)
            left = _segments(cluster, broker)


def _segments(cluster: Cluster, broker: int) -> int | None:
    """Return how many segments a broker still has; None if that is not known."""
    from kafkawire.messages.tier import TierRequest

    try:
        answer = cluster.node(broker).request_own(TIER, TierRequest(command="status"))
        if answer.error_code:
            return None  # it has no remote tier
        body: dict[str, Any] = json.loads(answer.body)
        return int(body["tier"]["segments"])
    except (ClientError, ValueError, KeyError):
        cluster.disconnect(broker)
        return None  # it has ended, was moved to another machine, or is of another version


def _patiently(cluster: Cluster, attempt: Callable[[], Attempt]) -> Attempt:
    """Return the result of `attempt`, repeated with new connections while brokers do not answer.
    Raises the last error after UNREACHABLE_S; answers of brokers with errors at once."""
    until = time.monotonic() + UNREACHABLE_S
    while True:
        try:
            return attempt()
        except (NoAnswer, Closed, UnknownBroker):
            if time.monotonic() >= until:
                raise
            time.sleep(POLL_S)
            cluster.reset()


def _list_registered(cluster: Cluster, broker: int) -> set[int]:
    """Return the registered brokers, as another broker than this one knows them."""
    failure: ClientError | None = None
    for node in cluster.list_known_nodes():
        if node == broker:
            continue
        try:
            return set(find_registered_brokers(cluster.node(node)))
        except ClientError as why:
            cluster.disconnect(node)
            failure = why
    raise failure or UnknownBroker(f"no other broker than {broker} is known")


# `kafkawire cluster remove`: a broker that does not come back leaves the cluster.


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
    with connect_cluster(server) as cluster:
        remove_broker(cluster, broker)
        print(f"broker {broker} was removed from the cluster")
