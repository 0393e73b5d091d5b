"""Moves partitions that this broker leads to other brokers.

The table partition_moves names the new leader of a partition (AlterPartitionReassignments, or the
drain of a broker). Its leader moves it: coordinators of it end, the log stops its appends and cuts
its records into segments, one transaction changes the leader, and the catalog follows. Nothing is
copied: the new leader reads the segments where they are. While a partition is stopped, clients are
answered NOT_LEADER_OR_FOLLOWER, and retry.

A move whose target is not alive, or hands over its own partitions, waits. One that fails is
repeated every RETRY_S; appends are allowed again meanwhile. A broker that is drained, or stops
(controlled_shutdown.py), does not wait: it moves such partitions to another broker, with a move to
the first one afterwards. plan.py has the decisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkawire.broker.moving.plan import (
    DRAINING,
    durability_of,
    is_available,
    loads,
    moves_anywhere,
    refusal,
    share_folder,
    spread_over,
    targets_of,
)
from kafkawire.codec.configs.durability_rules import REPLICATED
from kafkawire.codec.errors import KafkaError
from kafkawire.log.handover import PATIENCE_S
from kafkawire.metadata.catalog import DECOMMISSIONING
from kafkawire.metadata.store import MetadataError

if TYPE_CHECKING:
    from kafkawire.broker.following.lock import CatalogLock
    from kafkawire.broker.parts import BrokerParts

logger = logging.getLogger(__name__)

BATCH = 100
"""Partitions moved together: they share a cut and a transaction, and are stopped together, so that
a thousand partitions are not stopped for seconds."""
PLANNED_AT_ONCE = 1000
"""Partitions whose targets are stored in one transaction while a broker is drained."""
RETRY_S = 5.0
"""Pause after a failure, or while no broker can take partitions."""
COORDINATOR_PATIENCE_S = 1.0
"""How long open transactions in an internal topic may take to end: its coordinators have ended
meanwhile, and transactions with offsets of groups end within milliseconds."""
SLICE = 256
"""Partitions of a drain planned per event-loop iteration."""


class MovedCoordinators(Protocol):
    """The coordinators of the partitions of an internal topic."""

    async def resign(self, indexes: Collection[int]) -> None:
        """End those of these partitions."""

    async def lead(self, indexes: Collection[int]) -> None:
        """Create and load those of these partitions."""


Services = Mapping[str, Callable[[], Awaitable[MovedCoordinators]]]
"""Topics of coordinators, and what returns those of each."""


class Batch(NamedTuple):
    """Partitions of one move: their numbers, the new leader, and the internal topic that they are
    of, None: topics of clients."""

    target: int
    topic: str | None
    numbers: list[int]


class PartitionMover:
    """Moves partitions of one broker, one batch at a time. `alive` returns the brokers that may
    lead partitions."""

    def __init__(
        self,
        broker: BrokerParts,
        lock: CatalogLock,
        services: Services,
        alive: Callable[[], Sequence[int]],
    ) -> None:
        self._broker = broker
        self._lock = lock
        self._services = services
        self._alive = alive
        self._task: asyncio.Task[None] | None = None
        self._retry_at: dict[int, float] = {}
        self._next_drain = 0.0
        self._reported: str | None = None
        self._ended: Callable[[], object] | None = None
        self._leaving = False
        self._chosen: dict[int, int] = {}  # targets of a drain
        self._afterwards: dict[int, int] = {}  # where these partitions are to be moved then

    @property
    def _drains(self) -> bool:
        """Whether this broker is to lead nothing, or nothing that other machines can lead."""
        return self._broker.config.broker_draining or self._leaving or self._leaves_forever

    @property
    def _leaves_forever(self) -> bool:
        return self._broker.catalog.is_decommissioned(self._broker.node_id)

    def check(self) -> None:
        """Start to move partitions in the background, if some are to be moved. Called after each
        poll of the catalog and after each change by this broker."""
        if self._task is None or self._task.done():
            broker = self._broker
            if broker.catalog.moves or (self._drains and len(broker.catalog.brokers) > 1):
                self._task = broker.env.spawn(self._run(), "move partitions")

    def when_idle(self, ended: Callable[[], object]) -> None:
        """Call `ended` once this broker is drained, leads nothing and has nothing to upload: only
        the broker that wrote a segment uploads it."""
        self._ended = ended
        self.check()

    def leave(self) -> None:
        """Hand over what `remaining` counts, since this broker stops. Each partition is to come
        back, unless it was to be moved elsewhere already."""
        self._leaving, self._next_drain = True, 0.0
        self.check()

    async def remaining(self) -> int:
        """Return how many partitions this broker leads that a broker on another machine, which is
        available, can lead; PLANNED_AT_ONCE if there are more."""
        return len(await self._list_led(self._moves_away)) if self._away() else 0

    async def close(self) -> None:
        """Stop. A move in progress is abandoned, before or after its transaction."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            if self._drains:
                await self._plan_drain()
            while batch := await self._next_batch():
                await self._move(batch)
            if self._ended is not None and self._broker.config.broker_draining:
                await self._check_idle(self._ended)
        except (KafkaError, OSError) as failure:
            self._report(f"moving partitions failed, it is repeated: {failure}")

    async def _check_idle(self, ended: Callable[[], object]) -> None:
        catalog, me = self._broker.catalog, self._broker.node_id
        moving = any(catalog.leader_of(number) == me for number in catalog.moves)
        tiering = self._broker.tiering
        uploading = tiering is not None and bool(tiering.dispatcher.candidates)
        if not moving and not uploading and not await self._list_led(self._lacks_target):
            self._ended = None
            logger.info("this broker leads no partition any more")
            ended()

    def _report(self, text: str) -> None:
        """Log a warning, unless it was the last one."""
        if text != self._reported:
            logger.warning("%s", text)
        self._reported = text

    async def _plan_drain(self) -> None:
        """Store targets for partitions that this broker leads."""
        broker = self._broker
        now = broker.env.clock.monotonic()
        if now < self._next_drain:
            return
        led = await self._list_led(self._lacks_target)
        if not led:
            return
        if not any(self._targets(anywhere) for anywhere in (True, False)):
            self._next_drain = now + RETRY_S
            setting = DECOMMISSIONING if self._leaves_forever else DRAINING
            self._report(
                f"{setting} is set, but no broker that is alive can take the partitions of this "
                f"one, which still leads {len(led)}"
            )
            return

        async def store(seen: int) -> None:
            catalog = broker.catalog
            wanted = [n for n in led if catalog.leader_of(n) == broker.node_id]
            targets: dict[int, int] = {}
            for anywhere in (True, False):
                some = [n for n in wanted if moves_anywhere(catalog, n) == anywhere]
                if some and (chosen := self._targets(anywhere)):
                    targets |= spread_over(some, chosen, loads(catalog))
            await broker.metadata.plan_moves(targets, seen)
            self._note_chosen(targets)
            catalog.set_moves(targets)

        await self._lock.change(store)
        logger.info("%d partitions of this broker are to be handed over", len(led))

    def _note_chosen(self, targets: Mapping[int, int]) -> None:
        """Remember where partitions are to be moved after a drain has moved them."""
        broker = self._broker
        for number, target in targets.items():
            planned = broker.catalog.moves.get(number)
            if planned is not None and planned != self._chosen.get(number):
                self._afterwards[number] = planned
            elif self._leaving and not self._leaves_forever:
                self._afterwards.setdefault(number, broker.node_id)
            self._chosen[number] = target

    def _targets(self, anywhere: bool) -> list[int]:
        """Return the brokers that can take partitions; `anywhere`: all but local ones."""
        if self._leaving:
            return self._away() if anywhere else []
        catalog, me = self._broker.catalog, self._broker.node_id
        return targets_of(catalog, me, self._alive(), anywhere=anywhere)

    def _away(self) -> list[int]:
        """Return the brokers with other data folders that can take partitions: the others of this
        one stop at the same time."""
        catalog, me = self._broker.catalog, self._broker.node_id
        found = targets_of(catalog, me, self._alive(), anywhere=True)
        return [node for node in found if not share_folder(catalog, me, node)]

    def _lacks_target(self, number: int) -> bool:
        """Return whether a drain has to choose a target of a partition that is led here."""
        catalog = self._broker.catalog
        target = catalog.moves.get(number)
        if target is not None and is_available(catalog, target):
            return False
        return not self._leaving or moves_anywhere(catalog, number)

    def _moves_away(self, number: int) -> bool:
        return moves_anywhere(self._broker.catalog, number)

    async def _list_led(self, chosen: Callable[[int], bool]) -> list[int]:
        """Return the chosen ones of the partitions that this broker leads, at most
        PLANNED_AT_ONCE."""
        catalog, me = self._broker.catalog, self._broker.node_id
        found: list[int] = []
        for group in catalog.groups():
            if group.leader != me:
                continue
            for at, number in enumerate(list(catalog.partitions_of_group(group.id))):
                if at % SLICE == SLICE - 1:
                    await self._broker.env.slices.pause()
                if catalog.leader_of(number) == me and chosen(number):
                    found.append(number)
                    if len(found) == PLANNED_AT_ONCE:
                        return found
        return found

    async def _next_batch(self) -> Batch | None:
        """Return what can be moved now; end moves that are not possible."""
        broker, catalog = self._broker, self._broker.catalog
        now = broker.env.clock.monotonic()
        wrong: dict[int, str] = {}
        batches: dict[tuple[int, str | None], list[int]] = {}
        for at, (number, target) in enumerate(list(catalog.moves.items())):
            if at % SLICE == SLICE - 1:
                await broker.env.slices.pause()
            place = catalog.locate(number)
            if place is None or place.leader != broker.node_id:
                if target == broker.node_id and durability_of(catalog, number) == REPLICATED:
                    broker.log.commit_log.follower_sink.need()  # in sync before it is led here
                continue
            fault = refusal(catalog, place.leader, target, number)
            if fault is not None:
                wrong[number] = fault
            elif is_available(catalog, target) and self._retry_at.get(number, 0) <= now:
                topic = place.topic if place.topic in self._services else None
                batches.setdefault((target, topic), []).append(number)
        if wrong:
            await self._cancel(wrong)
        self._forget(lambda number: number not in catalog.moves)
        for (target, topic), numbers in batches.items():
            return Batch(target, topic, numbers[:BATCH])
        return None

    async def _cancel(self, wrong: Mapping[int, str]) -> None:
        """End planned moves that are not possible."""
        for number, fault in islice(wrong.items(), BATCH):
            logger.error(
                "partition %s is not moved: %s", self._broker.catalog.name_of(number), fault
            )

        async def store(seen: int) -> None:
            ended = dict.fromkeys(wrong)
            await self._broker.metadata.plan_moves(ended, seen)
            self._broker.catalog.set_moves(ended)

        await self._lock.change(store)

    async def _move(self, batch: Batch) -> None:
        """Move partitions; those that cannot be moved now are retried later."""
        catalog = self._broker.catalog
        self._delay(batch.numbers)
        service, indexes = None, []
        if batch.topic is not None:
            service = await self._services[batch.topic]()
            places = [catalog.locate(number) for number in batch.numbers]
            indexes = [place.index for place in places if place is not None]
            await service.resign(indexes)
        try:
            moved = await self._hand_over(batch)
        finally:
            if service is not None:  # also if this task is cancelled
                here = [i for i in indexes if self._leads(batch.topic, i)]
                await service.lead(here)
        if moved:
            logger.info(
                "%d partitions were handed over to broker %d, first %s",
                len(moved), batch.target, catalog.name_of(moved[0]),
            )  # fmt: skip

    def _leads(self, topic: str | None, index: int) -> bool:
        info = None if topic is None else self._broker.catalog.by_name.partition_of(topic, index)
        return info is not None and info.leader == self._broker.node_id

    async def _hand_over(self, batch: Batch) -> list[int]:
        """Stop appends of partitions, cut them, and store their new leader; return those moved."""
        broker, catalog = self._broker, self._broker.catalog
        patience_s = PATIENCE_S if batch.topic is None else COORDINATOR_PATIENCE_S
        handed = await broker.log.hand_over(batch.numbers, patience_s)
        for number, why in islice(handed.refused.items(), BATCH):
            logger.info(
                "partition %s is not moved yet, it is retried: %s", catalog.name_of(number), why
            )
        moved: list[int] = []
        target = batch.target

        async def store(seen: int) -> None:
            moved[:] = [
                number
                for number in handed.ready
                if catalog.leader_of(number) == broker.node_id
                and catalog.moves.get(number) == target
            ]
            then = {n: to for n in moved if (to := self._afterwards.get(n)) not in (None, target)}
            await broker.metadata.move_partitions(moved, target, seen, then)

        try:
            if handed.ready:
                await self._lock.change(store)
        finally:
            # Also after an error: the transaction may have been committed.
            await self._follow()
            broker.log.resume(handed.ready)
        ended = frozenset(moved)
        self._forget(lambda number: number in ended)
        return moved

    async def _follow(self) -> None:
        """Apply the change of leaders. The partitions stay stopped until the catalog is read: this
        broker may not lead them any more."""
        while True:
            try:
                await self._lock.apply_changes()
                return
            except MetadataError as failure:
                self._report(f"partitions stay stopped until the metadata can be read: {failure}")
                await self._broker.env.sleep(1.0)

    def _forget(self, ended: Callable[[int], bool]) -> None:
        """Forget what was noted for moves that have ended."""
        self._retry_at = {n: at for n, at in self._retry_at.items() if not ended(n)}
        self._chosen = {n: to for n, to in self._chosen.items() if not ended(n)}
        self._afterwards = {n: to for n, to in self._afterwards.items() if not ended(n)}

    def _delay(self, numbers: Iterable[int]) -> None:
        """Have a move that fails repeated after RETRY_S."""
        due = self._broker.env.clock.monotonic() + RETRY_S
        self._retry_at.update(dict.fromkeys(numbers, due))
