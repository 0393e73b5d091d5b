"""Ends a broker that can acknowledge nothing, so that another machine takes it over.

Its heartbeats continue if only the remote tier, or its followers, cannot be reached from here, so
other machines would not notice. The next process of the broker registers when it reaches the tier
(kafkawire.broker.objects.registration).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker

GIVE_UP_S = 30.0
"""For so long a storage may not answer: most outages are shorter, or concern all machines."""
INTERVAL_S = 1.0
"""Between two checks, which read two numbers."""


def watch_storage(broker: Broker, give_up: Callable[[str], object]) -> None:
    """Call `give_up` with the reason when log objects could not be stored, or no follower has taken
    records, for GIVE_UP_S, and another broker is alive."""
    broker.env.spawn(_watch(broker, give_up), "watch commits")


async def _watch(broker: Broker, give_up: Callable[[str], object]) -> None:
    log = broker.log.commit_log
    while True:
        waiting_s = max(log.objects.waiting_s(), log.replicas.waiting_s())
        if waiting_s >= GIVE_UP_S and len(broker.liveness.may_lead()) > 1:
            break
        await broker.env.sleep(INTERVAL_S)
    stored = log.objects.waiting_s() < GIVE_UP_S
    what = "reach a follower in sync" if stored else "store log objects"
    give_up(
        f"broker {broker.node_id} could not {what} for {GIVE_UP_S:g} s: it ends, so that another "
        "machine takes it over"
    )
