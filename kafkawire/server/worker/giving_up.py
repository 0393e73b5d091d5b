"""Ends a broker that can acknowledge nothing, so that another machine takes it over.

Its heartbeats continue if only its own disk, the remote tier, or the machines of its followers do
not answer, so other machines would not notice. The next process of the broker registers when it
reaches the tier (kafkawire.broker.objects.opening).

Until a start succeeds, the partitions cannot be read either. So nothing is given up if that does
not help: no other broker is alive, or a machine answers that its follower does not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker

GIVE_UP_S = 30.0
"""For so long a storage may not answer: most outages are shorter, or concern all machines."""
INTERVAL_S = 1.0
"""Between two checks, which read some numbers."""


def watch_storage(broker: Broker, give_up: Callable[[str], object]) -> None:
    """Call `give_up` with the reason when this broker can acknowledge nothing, and another one is
    alive: at once if the disk has failed, after GIVE_UP_S if the disk, the remote tier or all
    machines of followers do not answer."""
    broker.env.spawn(_watch(broker, give_up), "watch commits")


async def _watch(broker: Broker, give_up: Callable[[str], object]) -> None:
    while not (why := _reason(broker)):
        await broker.env.sleep(INTERVAL_S)
    give_up(f"broker {broker.node_id} {why}: it ends, so that another machine takes it over")


def _reason(broker: Broker) -> str:
    """Return why the broker should end; an empty string if it should not."""
    log, replication = broker.log.commit_log, broker.log.replication
    if len(broker.liveness.may_lead()) < 2:
        return ""
    if log.broken:
        return f"can write nothing ({log.failed})"
    if log.object_sink.waiting_s() >= GIVE_UP_S:
        return f"could not store log objects for {GIVE_UP_S:g} s"
    if min(log.follower_sink.waiting_s(), log.busy_s()) >= GIVE_UP_S:
        return f"has waited for its disk for {GIVE_UP_S:g} s"
    cut_off = replication is not None and replication.cut_off_s() >= GIVE_UP_S
    if cut_off and _others_run_elsewhere(broker):
        return f"could not reach the machine of any follower for {GIVE_UP_S:g} s"
    return ""


def _others_run_elsewhere(broker: Broker) -> bool:
    """Return whether a broker on another machine is alive. One with the address of this machine is
    another worker of it, or was taken over by it."""
    brokers, me = broker.catalog.brokers, broker.node_id
    hosts = {
        node: {host for host, _ in brokers[node].listeners.values()}
        for node in (me, *broker.liveness.may_lead())
    }
    return any(hosts[me].isdisjoint(each) for each in hosts.values())
