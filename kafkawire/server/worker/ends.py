"""The reasons for which a broker ends by itself: it is drained, returns to its machine, or can
acknowledge nothing.

A worker that is more than `--workers` asks for hands over what it leads, and ends. Whether it is
drained is a setting in SQL, so that other workers give it no new partitions; the setting is stored
and removed here, at each start of a worker.

A broker that can acknowledge nothing ends, so that another machine takes it over. Its heartbeats
continue if only its own disk, the remote tier, or the machines of its followers do not answer, so
other machines would not notice. The next process of the broker registers when it reaches the tier
(kafkawire.broker.objects.opening). Until a start succeeds, the partitions cannot be read either. So
nothing is given up if that does not help: no other broker is alive, or a machine answers that its
follower does not run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.broker.config_service import Resource
from kafkawire.broker.liveness.takeover import is_returning
from kafkawire.broker.moving.plan import DRAINING, is_set
from kafkawire.broker.overrides import AlterConfigOp, Op, ResourceType
from kafkawire.codec.errors import KafkaError
from kafkawire.metadata.store import MetadataError

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker

logger = logging.getLogger(__name__)

GIVE_UP_S = 30.0
"""For so long a storage may not answer: most outages are shorter, or concern all machines."""
STORAGE_INTERVAL_S = 1.0
"""Between two checks, which read some numbers."""
RETURN_INTERVAL_S = 0.5
"""Between two checks of a setting in memory."""


async def store_role(broker: Broker, drained: bool, ended: Callable[[], object]) -> None:
    """Store whether a worker is drained; `ended` is called when it leads nothing any more."""
    node_id = broker.node_id
    if is_set(broker.catalog, node_id, DRAINING) != drained:
        op = AlterConfigOp(DRAINING, Op.SET if drained else Op.DELETE, "true" if drained else None)
        wish = Resource(ResourceType.BROKER, str(node_id), [op])
        try:
            (error,) = await broker.topics.configs.alter([wish], False)
            if error is not None:
                raise error
        except (KafkaError, MetadataError) as failure:
            logger.error(
                "cannot store that worker %d is %s: %s; set %s with `kafkawire configs`",
                node_id, "drained" if drained else "not drained any more", failure, DRAINING,
            )  # fmt: skip
    if drained and not broker.catalog.is_decommissioned(node_id):  # that ends when it is removed
        broker.mover.when_idle(ended)


def watch_return(broker: Broker, ended: Callable[[], object]) -> None:
    """Call `ended` when the machine of the broker asks for it."""
    broker.env.spawn(_watch_return(broker, ended), "return the broker")


async def _watch_return(broker: Broker, ended: Callable[[], object]) -> None:
    while not is_returning(broker.catalog, broker.node_id):
        await broker.env.sleep(RETURN_INTERVAL_S)
    logger.warning("broker %d ends here: its own machine runs again, and starts it", broker.node_id)
    ended()


def watch_storage(broker: Broker, give_up: Callable[[str], object]) -> None:
    """Call `give_up` with the reason when this broker can acknowledge nothing, and another one is
    alive: at once if the disk has failed, after GIVE_UP_S if the disk, the remote tier or all
    machines of followers do not answer."""
    broker.env.spawn(_watch_storage(broker, give_up), "watch commits")


async def _watch_storage(broker: Broker, give_up: Callable[[str], object]) -> None:
    while not (why := _find_reason(broker)):
        await broker.env.sleep(STORAGE_INTERVAL_S)
    give_up(f"broker {broker.node_id} {why}: it ends, so that another machine takes it over")


def _find_reason(broker: Broker) -> str:
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
