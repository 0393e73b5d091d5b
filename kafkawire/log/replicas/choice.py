"""Which followers a broker sends its log to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kafkawire.offsets.catalog.replica_sets import FollowerRow


def choose(
    followers: Sequence[FollowerRow],
    node_id: int,
    own: str,
    failing: Collection[str],
    wanted: int,
    used: Collection[str] = (),
) -> list[FollowerRow]:
    """Return up to `wanted` followers for the log of a broker.

    They are on the machines of the next brokers by node id, because these machines are also the
    first to start the broker if its own is gone; `own`, the follower on the machine where the
    broker runs, is none of them. Those that are `used` come first, so that one which has replaced
    another one stays, and those that are `failing` come last. Of several that were registered for
    one machine only the last one counts, which comes first in `followers`.
    """
    latest: dict[int, FollowerRow] = {}
    for each in followers:
        latest.setdefault(each.node_id, each)
    others = [each for each in latest.values() if each.replica_id != own]
    others.sort(
        key=lambda each: (
            each.replica_id in failing,
            each.replica_id not in used,
            each.node_id <= node_id,
            each.node_id,
        )
    )
    return others[:wanted]
