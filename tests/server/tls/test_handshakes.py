"""The queue of handshakes: few at once, and clients that never answer give way."""

from __future__ import annotations

from collections.abc import Callable

from kafkawire.server.tls.handshakes import MAX_STARTED, STEP_BUDGET_S, Handshakes


class Peer:
    def __init__(self, cost: Callable[[], None] = lambda: None) -> None:
        self.steps = 0
        self.closed = False
        self._cost = cost

    def step(self) -> None:
        self._cost()
        self.steps += 1

    def give_way(self) -> None:
        self.closed = True


class Loop:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.queue = Handshakes(
            lambda: self.now_s, self.soon.append, lambda _, fn: self.later.append(fn)
        )

    def once(self) -> None:
        soon, self.soon[:] = list(self.soon), []
        for fn in soon:
            fn()

    def spend(self) -> None:
        self.now_s += STEP_BUDGET_S / 4


def test_an_iteration_does_a_few_steps() -> None:
    loop = Loop()
    peers = [Peer(loop.spend) for _ in range(20)]
    for peer in peers:
        loop.queue.enqueue(peer)
    loop.once()
    assert sum(peer.steps for peer in peers) == 4
    while loop.soon:
        loop.once()
    assert all(peer.steps == 1 for peer in peers)


def test_stalled_handshakes_are_bounded_and_give_way() -> None:
    loop = Loop()
    stalled = [Peer() for _ in range(MAX_STARTED)]
    late = Peer()
    for peer in [*stalled, late]:
        loop.queue.enqueue(peer)
    while loop.soon:
        loop.once()
    assert sum(peer.steps for peer in stalled) == MAX_STARTED
    assert late.steps == 0
    assert not any(peer.closed for peer in stalled)  # they began just now
    loop.queue.enqueue(stalled[5])  # it answers: its step is done at once
    loop.now_s += 1.5
    loop.later.pop()()
    assert stalled[5].steps == 2
    assert late.steps == 1
    assert [peer.closed for peer in stalled].count(True) == 1


def test_stalled_handshakes_are_replaced_without_waiting_for_each_budget() -> None:
    loop = Loop()
    first, second = ([Peer(loop.spend) for _ in range(MAX_STARTED)] for _ in range(2))
    for peer in [*first, *second]:
        loop.queue.enqueue(peer)
    while loop.soon:
        loop.once()
    assert not any(peer.steps for peer in second)
    loop.now_s += 1.5
    loop.later.pop()()
    while loop.soon:
        loop.once()
    assert all(peer.closed for peer in first)
    assert all(peer.steps == 1 for peer in second)
    assert not loop.later


def test_finished_ones_make_room() -> None:
    loop = Loop()
    started = [Peer() for _ in range(MAX_STARTED)]
    late = Peer()
    for peer in [*started, late]:
        loop.queue.enqueue(peer)
    while loop.soon:
        loop.once()
    loop.queue.remove(started[0])
    loop.later.pop()()
    assert late.steps == 1
    assert not any(peer.closed for peer in started)
