"""Broker settings that are stored now and take effect later, with a prefix. Pure.

A pending value is checked like one without the prefix, and has no effect. A request that sets the
setting and removes the pending one applies it: in one SQL transaction, which all brokers read
within 300 ms.
"""

from __future__ import annotations

from dataclasses import replace

from kafkawire.codec.configs.row import Config
from kafkawire.codec.configs.settings import BROKER_CONFIGS

PENDING = "pending."


def pending_row(name: str) -> Config | None:
    """Return the row of a pending setting of a broker; None if `name` is something else."""
    row = BROKER_CONFIGS.get(name.removeprefix(PENDING)) if name.startswith(PENDING) else None
    return None if row is None else replace(row, name=name, default=None)
