"""Producers of topics with durability=replicated."""

from __future__ import annotations

from dataclasses import dataclass

from kafkawire.codec.errors import KafkaError
from tests.kit.log.replicated_lives import ReplicatedLife
from tests.kit.tier.object_clients import Pending, Producer


@dataclass(eq=False)
class ReplicatedProducer(Producer):
    """A producer with acks=all, or with acks=1, which is answered at once and sends nothing
    again."""

    acks_all: bool = True

    def _send(self, pending: Pending) -> bool:
        if self.acks_all:
            return super()._send(pending)
        self.pending.remove(pending)
        life = self.life
        if life is None or life.over:
            return False
        try:
            partition = life.log.loader.get(self.number)
            if not life.log.commit_log.full:
                partition.append(self._batch(life, pending), life.env.clock.now_ms())
        except KafkaError as failure:
            if not self._retries(failure.code, life):
                raise AssertionError(f"{self.name!r} sent {pending.first}") from failure
            self.life = None
        return True

    def _answered(self, pending: Pending, base: int, epoch: int) -> None:
        """Take an answer. A superseded process may give one only for what its successor has."""
        life, end = self.life, base + len(pending.values)
        for each in self.world.lives:
            if isinstance(each, ReplicatedLife) and life is not None and each.epoch > life.epoch:
                assert not each.started or end <= each.served[self.number], (
                    f"a superseded process of epoch {life.epoch} has acknowledged offset {end - 1},"
                    f" and epoch {each.epoch} has served up to {each.served[self.number]}"
                )
        super()._answered(pending, base, epoch)
