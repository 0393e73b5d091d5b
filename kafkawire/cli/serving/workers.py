"""The options of `kafkawire serve --workers N`: what is refused, what a worker gets.

Imported only if there are workers.
"""

from __future__ import annotations

from dataclasses import replace

from kafkawire.broker.options import ServeOptions, WorkerRole
from kafkawire.cli.shared.options import OptionError
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.supervisor.plan import PlanError, plans_of
from kafkawire.supervisor.shares import divided


class WorkersError(OptionError):
    """Workers that cannot be with these options: one sentence."""

    def __init__(self, sentence: str) -> None:
        ValueError.__init__(self, sentence)


def checked(options: ServeOptions) -> None:
    """Raise OptionError unless there can be so many workers with these options."""
    storage = BrokerConfig(options.settings).offset_storage
    if storage != "sql":
        raise OptionError(
            "offset.storage", storage, f"sql with --workers {options.workers}: the workers read "
            "each other's segments, whose rows must be in a database of all",
        )  # fmt: skip
    try:
        plans_of(options)
    except PlanError as wrong:
        raise WorkersError(str(wrong)) from None


def for_worker(options: ServeOptions, text: str) -> ServeOptions:
    """Return the options of one worker: its share of the machine, its own ports. OptionError."""
    role = WorkerRole.parse(text)
    if role is None or len(role.sockets) != len(options.listeners):
        raise OptionError("worker", text, "what the supervisor of --workers gives its workers")
    ports = [each.port for each in role.sockets]
    advertised = {
        each.name: (options.advertised[each.name][0], port)
        for each, port in zip(options.listeners, ports, strict=True)
    }
    settings = {"node.id": "1", **divided(options.settings, role.workers)}
    return replace(options, advertised=advertised, settings=settings, worker=role)
