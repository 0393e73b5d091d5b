"""Brokers that a data folder has besides the workers that are asked for."""

from __future__ import annotations

import os

from kafkawire.own_files import open_own

GUEST = ".guest"
"""Suffix of the file next to the folder of a broker of another machine: in the folder it would be
moved with what another life of the broker has superseded."""


def surplus_brokers(data: str, first_node: int, workers: int) -> list[int]:
    """Return the node ids of brokers that the data folder has besides those of the workers. They
    lead partitions, so they are started too."""
    try:
        names = os.listdir(os.path.join(data, "brokers"))
    except OSError:  # a new folder, or one that the first worker refuses in a sentence
        return []
    wanted = range(first_node, first_node + workers)
    found = [int(name) for name in names if name.isascii() and name.isdigit()]
    return sorted(each for each in found if each not in wanted and not is_guest(data, each))


def mark_guest(data: str, node_id: int) -> None:
    """Note that a broker is of another machine: it is started here only while it is absent there.
    Raises OSError."""
    os.makedirs(os.path.join(data, "brokers"), exist_ok=True)
    with open(_mark(data, node_id), "w", encoding="ascii", opener=open_own):
        pass


def is_guest(data: str, node_id: int) -> bool:
    """Return whether a broker whose folder is here is of another machine."""
    return os.path.exists(_mark(data, node_id))


def _mark(data: str, node_id: int) -> str:
    return os.path.join(data, "brokers", f"{node_id}{GUEST}")
