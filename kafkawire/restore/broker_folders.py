"""The folders `nodes/<node id>` of a tier, which its brokers share."""

from __future__ import annotations

from typing import NamedTuple

from kafkawire.log.io.ports import Env
from kafkawire.manifest.keys import LOGS
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls
from kafkawire.tiering.store.tiers import NODES, folder_of

AFTER_SLASH = "0"
"""The character after the slash: keys from there on are not in a folder."""


class BrokerFolder(NamedTuple):
    """A broker's folder. `has_manifest`: it has more than log objects, which the broker whose
    segments are in the tier itself has in a folder, too."""

    node_id: int
    has_manifest: bool


async def broker_folders(env: Env, store: ObjectStore) -> list[BrokerFolder]:
    """Return the brokers' folders in a tier, by node id: about three LIST requests for each. Raises
    StoreError."""
    asking, prefix, after = RetryingCalls(env, store), f"{NODES}/", ""
    nodes: list[int] = []
    while found := await asking.first(prefix, after):
        name = found[len(prefix) :].partition("/")[0]
        if name.isascii() and name.isdigit():
            nodes.append(int(name))
        after = f"{prefix}{name}{AFTER_SLASH}"
    return [BrokerFolder(node, await _has_manifest(asking, node)) for node in sorted(nodes)]


async def _has_manifest(asking: RetryingCalls, node: int) -> bool:
    folder = f"{folder_of(node)}/"
    logs = folder + LOGS
    first = await asking.first(folder, "")
    if first is None or not first.startswith(logs):
        return first is not None
    return await asking.first(folder, logs.removesuffix("/") + AFTER_SLASH) is not None
