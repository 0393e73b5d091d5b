"""Brokers that a data folder has besides the workers that are asked for."""

from __future__ import annotations

import os


def surplus_brokers(data: str, first_node: int, workers: int) -> list[int]:
    """Return the node ids of brokers that the data folder has besides those of the workers. They
    lead partitions, so they are started too."""
    try:
        names = os.listdir(os.path.join(data, "brokers"))
    except OSError:  # a new folder, or one that the first worker refuses in a sentence
        return []
    wanted = range(first_node, first_node + workers)
    found = [int(name) for name in names if name.isascii() and name.isdigit()]
    return sorted(each for each in found if each not in wanted)
