"""One round: a broker and seven client processes, all of them killed at random; then the checker.

Writers and copiers of both versions of the transaction protocol, and readers, run in processes of
their own. Broker and clients get SIGKILL at random moments, the broker also while it starts. In the
end everything settles, and tests.kit.exactly_once.checker judges what all processes have reported:
nothing lost, torn, duplicated, reordered, read early, or hanging.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.testing.control import BrokerFailed
from tests.kit.exactly_once.checker import check
from tests.kit.exactly_once.history import History, Outcome, replay
from tests.kit.exactly_once.producer import Lost
from tests.kit.exactly_once.reader import finish
from tests.kit.waiting import until
from tests.trials.context import Context, Trial
from tests.trials.kill.trial import SETTINGS, TIER_SETTINGS
from tests.trials.link import Unanswered
from tests.trials.process import Victim
from tests.trials.transactions.net import RealNet
from tests.trials.transactions.topics import CLIENTS, EVERY, KEYS

LIVES, SHORT_LIVES = 8, 3
MIN_ROUND_S = 60.0
"""No further life of a round begins with less than this left."""
ENDS_WITHIN_S = 120.0
"""When a client that was asked to end counts as stuck."""
OWN_SETTINGS = {
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
TIERED = {
    "tiering.max.lag.ms": "5000",
    "tiering.min.object.bytes": "1",
    "local.retention.ms": "1000",
}


class Round:
    """One data folder. `sabotage` is for the tests of the trial: it damages the folder of a killed
    broker, and the round must notice."""

    def __init__(
        self, context: Context, sabotage: Callable[[Path], None] = lambda data: None
    ) -> None:
        self.context, self.rng = context, context.rng
        self.tier = self.rng.random() < 0.6
        settings = {**SETTINGS, **OWN_SETTINGS, "flush": "commit"}
        arguments: list[str] = []
        if self.tier:
            settings |= TIER_SETTINGS
            arguments = ["--tier", str(context.folder / "tier")]
        self.victim = Victim(context.folder / "data", settings, arguments)
        self.sabotage = sabotage
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.history = History()

    async def run(self) -> None:
        """All lives of the broker, then the judgement."""
        try:
            await self._started()
            await self._prepare()
            for name in CLIENTS:
                self._begin(name)
            # A life is counted in seconds, and on a busy machine clients need more to start.
            await until(self._clients_work, "histories of all clients, and a commit")
            for _ in range(SHORT_LIVES if self.context.short else LIVES):
                await self._life()
                if self.context.left_s < MIN_ROUND_S and not self.context.short:
                    break
            await self._end_clients()
            await self._judge()
        finally:
            for client in self.clients.values():
                client.kill()
                client.wait()
            self.victim.process.kill()
            self.context.outputs["broker.log"] = self.victim.output
            for text in self.victim.complaints():
                self.context.broken(f"the broker logged: {text}")
            self.context.tried("kills of the broker", self.victim.kills)

    async def _started(self) -> None:
        await self.victim.start()
        port = self.context.folder / "port"
        port.with_suffix(".new").write_text(str(self.victim.port))
        port.with_suffix(".new").rename(port)

    def _net(self) -> RealNet:
        return RealNet(lambda: self.victim.port, self.rng)

    async def _prepare(self) -> None:
        net = self._net()
        configs = [CreatableTopicConfig(*each) for each in TIERED.items()] if self.tier else []
        rows = [CreatableTopic(name, 2, 1, configs=configs) for name in ("a", "b", "c")]
        answer = await net.call(CreateTopicsRequest(rows, 30_000), 7)
        assert not any(topic.error_code for topic in answer.topics), answer
        for kind in (0, 1):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"])
            while (await net.call(request, 4)).coordinators[0].error_code:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await net.close()

    def _begin(self, name: str) -> None:
        """Start a client, in a process with a number of its own."""
        number = self.rng.randrange(1 << 30)
        words = [str(self.context.folder), name, str(number)]
        log = (self.context.folder / f"{name}.log").open("ab")
        self.clients[name] = subprocess.Popen(
            [sys.executable, "-m", "tests.trials.transactions.client", *words],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        log.close()

    def _clients_work(self) -> bool:
        """Return whether each client has reported something, and one of them a commit."""
        texts = [path.read_text() for path in self.context.folder.glob("*.history")]
        return (
            len(texts) == len(CLIENTS)
            and all(texts)
            and any(f'"{Outcome.COMMITTED.value}"' in text for text in texts)
        )

    async def _life(self) -> None:
        """Let everything work, kill clients meanwhile, and the broker in the end."""
        left = self.rng.choice((1.0, 2.5, 5.0)) * (0.5 + self.rng.random())
        while left > 0:
            pause = min(left, 0.3 + self.rng.random())
            left -= pause
            await asyncio.sleep(pause)
            if self.rng.random() < 0.4:
                name = self.rng.choice(CLIENTS)
                self._check_alive(name)
                self.clients[name].kill()
                self.clients[name].wait()
                self._begin(name)
                self.context.tried("kills of clients")
        await self.victim.kill()
        for _ in range(self.rng.choice((0, 0, 1))):
            await self.victim.start_and_kill(0.02 + self.rng.random() * 0.3)
            self.context.tried("kills while starting")
        self.sabotage(self.context.folder / "data")
        await self._started()

    def _check_alive(self, name: str) -> None:
        """A client ends by itself only if something confused it."""
        if self.clients[name].poll() is not None:
            text = (self.context.folder / f"{name}.log").read_text()[-1500:]
            self.context.broken(f"client {name} ended: {text}")

    async def _end_clients(self) -> None:
        """Ask all clients to end. One that does not is killed: what it reported is judged."""
        (self.context.folder / "over").touch()
        for name, client in self.clients.items():
            try:
                await asyncio.to_thread(client.wait, ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.context.broken(f"client {name} does not end: its request is never answered")
                client.kill()
                client.wait()
                continue
            if client.returncode:
                self._check_alive(name)

    async def _judge(self) -> None:
        history = self.history
        for path in sorted(self.context.folder.glob("*.history")):
            with path.open() as lines:
                replay(history, lines)
        net = self._net()
        try:
            await finish(net, history, EVERY, KEYS)
        except (Lost, Unanswered, AssertionError) as why:  # Stuck is one
            self.context.broken(f"while reading everything in the end: {why!r}")
        finally:
            await net.close()
        for each in check(history):
            self.context.broken(str(each))
        outcomes = [each.outcome for each in history.attempts.values()]
        for outcome in Outcome:
            self.context.tried(f"transactions {outcome.value}", outcomes.count(outcome))
        self.context.tried("records written", len(history.writes))
        self.context.tried("records read", sum(len(poll.rows) for poll in history.polls))
        self.context.tried("offset reads", len(history.offset_reads))


async def round_(context: Context) -> None:
    """Run one round."""
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await Round(context).run()
        except BrokerFailed as why:
            context.broken(f"the broker did not start: {str(why)[-2000:]}")


TRIAL = Trial("transactions", "SIGKILL of the broker and of transactional clients", round_)
