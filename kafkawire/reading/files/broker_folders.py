"""The folders `nodes/<node id>` of a tier: each has the manifest and the objects of one of the
brokers of a cluster that use the tier together. The first broker writes to the tier itself.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from kafkawire.manifest.keys import CURRENT
from kafkawire.reading.files.locations import FolderPlace, Place

NODES = "nodes"
AFTER_SLASH = "0"
"""The character after the slash: keys from there on are not in a folder."""
MAX_FOLDERS = 10_000
"""Far more than brokers of a cluster; a listing that never ends is not kafkawire's."""


def whole_tier(place: Place) -> Place:
    """Return the tier that a place is a broker's folder of; the place itself if it is none."""
    parent, _, node = place.tier.path.rpartition("/")
    if not node.isdigit() or parent.rpartition("/")[2] != NODES:
        return place
    outer = place.tier.outside(f"{NODES}/{node}")
    return place if outer is None else replace(place, tier=outer)


def broker_folders(place: Place) -> list[Place]:
    """Return the folders of brokers in a tier that have a manifest, by node id: one LIST request,
    and two more for each folder. Raises PlaceError."""
    nodes = _local_nodes(place) if isinstance(place, FolderPlace) else _listed_nodes(place)
    if not nodes:
        return []
    found = [replace(place, tier=place.tier.inside(f"{NODES}/{node}")) for node in sorted(nodes)]
    with ThreadPoolExecutor(min(len(found), 32)) as pool:
        there = list(pool.map(has_manifest, found))
    return [each for each, is_there in zip(found, there, strict=True) if is_there]


def has_manifest(place: Place) -> bool:
    """Return whether there is a manifest at a place."""
    try:
        return place.size(CURRENT) >= 0
    except FileNotFoundError:
        return False


def _local_nodes(place: FolderPlace) -> list[int]:
    try:
        names = os.listdir(os.path.join(place.tier.folder, NODES))
    except OSError:
        return []
    return [int(name) for name in names if _is_node(name)]


def _listed_nodes(place: Place) -> list[int]:
    """Find the folders by listing one key of each: they may have a million."""
    prefix, after = f"{NODES}/", ""
    nodes: list[int] = []
    for _ in range(MAX_FOLDERS):
        key = place.first(prefix, after)
        if key is None:
            break
        name = key[len(prefix) :].partition("/")[0]
        if _is_node(name):
            nodes.append(int(name))
        after = f"{prefix}{name}{AFTER_SLASH}"
    return nodes


def _is_node(name: str) -> bool:
    return name.isascii() and name.isdigit() and str(int(name)) == name
