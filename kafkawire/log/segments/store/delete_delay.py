"""The time for which the file of a dead segment stays: `file.delete.delay.ms` of its topics.

Of topics that share a file the longest delay counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig
from kafkawire.log.io.ports import Env
from kafkawire.log.segments.store.segment_store import SegmentStore
from kafkawire.offsets.catalog.port import LIVE, SegmentRow

SLICE = 1000
"""Partitions whose settings are read between two iterations of the event loop: a millisecond."""


class FileDelays:
    """The `file.delete.delay.ms` of dead segment files. `config_of` gives a partition's settings,
    None: its topic is deleted."""

    __slots__ = ("_broker", "_config_of", "_deleted", "_env", "_store")

    def __init__(
        self,
        env: Env,
        broker: BrokerConfig,
        store: SegmentStore,
        config_of: Callable[[int], TopicConfig | None],
    ) -> None:
        self._env = env
        self._broker = broker
        self._store = store
        self._config_of = config_of
        # Partition number -> the delay of its deleted topic, until its rows are removed.
        self._deleted: dict[int, int] = {}

    def note_deleted(self, numbers: Iterable[int], delay_ms: int) -> None:
        """Remember the delay of partitions whose topic is deleted; -1: the broker's."""
        # Without one the broker's holds, as for a topic that exists.
        if delay_ms >= 0:
            self._deleted.update(dict.fromkeys(numbers, delay_ms))

    def remove_delays(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._deleted.pop(number, None)

    async def own_ms(self, numbers: Iterable[int]) -> int | None:
        """Return the longest delay of the topics of these partitions; None if that is the
        broker's."""
        most, shared = -1, False
        for at, number in enumerate(numbers, 1):
            config = self._config_of(number)
            own = self._deleted.get(number, -1) if config is None else config.file_delete_delay_ms
            most, shared = max(most, own), shared or own < 0
            if at % SLICE == 0:
                await self._env.slices.pause()
        # None: read when the file is due, so that a change of the broker's setting takes effect at
        # once.
        return None if shared and most <= self._broker.file_delete_delay_ms else most

    def apply_to_dead_segments(self, rows: Iterable[SegmentRow], own_ms: int | None) -> None:
        for row in rows:
            segment = self._store.by_id.get(row.id)
            if segment is not None and row.state > LIVE and own_ms is not None:
                segment.grace_s = own_ms / 1000

    def stored_ms(self, own_ms: int | None) -> int:
        """Return a delay in the form of rows."""
        return self._broker.file_delete_delay_ms if own_ms is None else own_ms
