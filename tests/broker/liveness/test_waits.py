"""All waits of machines for each other, in a model that is walked through completely.

Covers: kafkawire.broker.liveness.takeover, kafkawire.broker.liveness.starting,
kafkawire.broker.followers.install.

Machine N is that of broker N, with topics of durability=replicated. It has a disk with its
follower, and runs the broker itself (at home) or is replaced by another machine that runs it (as a
guest). Faults stop machines, start them, replace their disks, and damage followers, in each order.
A fault that loses the last copy of what a broker has acknowledged is left out: no protocol helps
then. After the faults all machines run. From each state that is reached then, steps that brokers
make by themselves must be able to reach a state in which each serves that has enough followers: if
not, machines wait for each other forever. Each rule has a walk without it that must fail.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest

NOWHERE = -1


@dataclass(frozen=True)
class Rules:
    """The rules by which machines do not wait for each other forever."""

    registers_while_waiting: bool = True
    """A machine registers its follower before it waits for its broker."""
    return_ends_start: bool = True
    """A start as a guest, too, ends when the broker is asked to return."""
    starts_with_copy: bool = True
    """A start in an empty folder is not registered before it can reach a copy: others may have it
    in their folder."""
    copies_or_ends: bool = True
    """A start that was registered ends if it cannot copy the log after all."""


ALL_RULES = Rules()


class Machine(NamedTuple):
    """`disk`: raised by a replacement; `known`: the disk of its follower in SQL; `follower`:
    whether that can run."""

    up: bool = True
    disk: int = 0
    known: int = 0
    follower: bool = True


class Broker(NamedTuple):
    """`at`: the machine of its process, NOWHERE; `phase` of that; `paired`: machine and disk of the
    complete folder; `in_sync`: machines and disks of the followers in the stored set; `waits`: a
    process on its own machine waits until it may start; `asked`: to return."""

    at: int
    phase: str = "serves"
    paired: tuple[int, int] = (NOWHERE, 0)
    in_sync: frozenset[tuple[int, int]] = frozenset()
    waits: bool = False
    asked: bool = False


class State(NamedTuple):
    machines: tuple[Machine, ...]
    brokers: tuple[Broker, ...]

    def with_machine(self, at: int, machine: Machine) -> State:
        return self._replace(machines=(*self.machines[:at], machine, *self.machines[at + 1 :]))

    def with_broker(self, at: int, broker: Broker) -> State:
        return self._replace(brokers=(*self.brokers[:at], broker, *self.brokers[at + 1 :]))


def first_state(machines: int, needed: int) -> State:
    nodes = range(machines)
    others = {at: [(each, 0) for each in nodes if each != at] for at in nodes}
    brokers = (Broker(at, "serves", (at, 0), frozenset(others[at])) for at in nodes)
    assert needed < machines
    return State((Machine(),) * machines, tuple(brokers))


class World:
    """The steps of `machines` machines; a broker needs `needed` followers on other machines."""

    def __init__(self, machines: int, needed: int, rules: Rules) -> None:
        self.first = first_state(machines, needed)
        self.needed = needed
        self._rules = rules

    def faults(self, state: State) -> Iterator[State]:
        for at, machine in enumerate(state.machines):
            if machine.up:
                yield self._stopped(state, at)
                continue
            replaced = machine._replace(disk=machine.disk + 1, follower=True)
            damaged = machine._replace(follower=False)
            for each in (machine, replaced, damaged):
                after = state.with_machine(at, each._replace(up=True))
                if has_all(after):
                    yield self._started(after, at)

    def with_all_started(self, state: State) -> State:
        for at, machine in enumerate(state.machines):
            if not machine.up:
                state = self._started(state.with_machine(at, machine._replace(up=True)), at)
        return state

    def steps(self, state: State) -> Iterator[State]:
        """Yield the states after each step that a broker makes by itself."""
        for node, broker in enumerate(state.brokers):
            if broker.waits:
                yield from self._waiting(state, node, broker)
            if broker.at == NOWHERE:
                yield from self._absent(state, node, broker)
            elif broker.phase == "copies":
                if self._has_copy(state, broker):
                    paired = broker.at, state.machines[broker.at].disk
                    yield state.with_broker(node, broker._replace(paired=paired, phase="joins"))
                elif self._rules.copies_or_ends:
                    waits = broker.waits or broker.at == node
                    yield state.with_broker(node, broker._replace(at=NOWHERE, waits=waits))
            else:
                yield from self._followers(state, node, broker)
            starts = broker.phase != "serves"
            if (
                broker.asked
                and broker.at != NOWHERE
                and (self._rules.return_ends_start or not starts)
            ):
                yield state.with_broker(node, broker._replace(at=NOWHERE, asked=False))

    def _stopped(self, state: State, at: int) -> State:
        state = state.with_machine(at, state.machines[at]._replace(up=False))
        for node, broker in enumerate(state.brokers):
            if node == at:
                broker = broker._replace(waits=False)
            if broker.at == at:
                broker = broker._replace(at=NOWHERE, asked=False)
            state = state.with_broker(node, broker)
        return state

    def _started(self, state: State, at: int) -> State:
        """Start the own broker of a machine: at once in a complete folder, which ends a guest."""
        broker = state.brokers[at]
        if broker.paired == (at, state.machines[at].disk):
            return self._begun(state, at, at)
        return state.with_broker(at, broker._replace(waits=True))

    def _begun(self, state: State, node: int, at: int) -> State:
        """Register a broker on a machine, and its follower if it is the own machine."""
        if node == at:
            state = self._registered(state, at)
        broker, machine = state.brokers[node], state.machines[at]
        phase = "joins" if broker.paired == (at, machine.disk) else "copies"
        waits = broker.waits and node != at
        begun = broker._replace(at=at, phase=phase, waits=waits, asked=False)
        return state.with_broker(node, begun)

    def _registered(self, state: State, at: int) -> State:
        machine = state.machines[at]
        return state.with_machine(at, machine._replace(known=machine.disk))

    def _waiting(self, state: State, node: int, broker: Broker) -> Iterator[State]:
        """The own machine of a broker waits for the end of a process elsewhere, and for a copy."""
        if self._rules.registers_while_waiting:
            yield self._registered(state, node)
        if broker.at != NOWHERE:
            if self._has_copy(state, broker):
                yield state.with_broker(node, broker._replace(asked=True))
        elif not self._rules.starts_with_copy or self._has_copy(state, broker):
            yield self._begun(state, node, node)

    def _absent(self, state: State, node: int, broker: Broker) -> Iterator[State]:
        """A machine whose own broker serves starts one that runs nowhere."""
        for at, machine in enumerate(state.machines):
            own = state.brokers[at]
            if at == node or not machine.up or own.at != at or own.phase != "serves":
                continue
            complete = broker.paired == (at, machine.disk)
            if complete or not self._rules.starts_with_copy or self._has_copy(state, broker):
                yield self._begun(state, node, at)

    def _followers(self, state: State, node: int, broker: Broker) -> Iterator[State]:
        """Followers that are reached enter the set; those that are not leave it, except the last
        ones that are needed."""
        others = [at for at in range(len(state.machines)) if at != broker.at]
        reached = frozenset((at, state.machines[at].disk) for at in others if self._runs(state, at))
        if len(reached) >= self.needed:
            yield state.with_broker(node, broker._replace(phase="serves", in_sync=reached))

    def _runs(self, state: State, at: int) -> bool:
        """Return whether the follower of a machine is reached, as it is registered."""
        machine = state.machines[at]
        return machine.up and machine.follower and machine.known == machine.disk

    def _has_copy(self, state: State, broker: Broker) -> bool:
        return any(
            self._runs(state, at) and state.machines[at].disk == disk for at, disk in broker.in_sync
        )


def has_all(state: State) -> bool:
    """Return whether each broker has what it has acknowledged: at a follower, in its own folder, or
    in one elsewhere, from which followers get it if all of them work."""
    disks = {(at, machine.disk): machine.follower for at, machine in enumerate(state.machines)}
    works = all(disks.values())
    return all(
        any(disks.get(each, False) for each in broker.in_sync)
        or (broker.paired in disks and (works or broker.paired[0] == node))
        for node, broker in enumerate(state.brokers)
    )


def find_stuck(world: World, max_faults: int) -> State | None:
    """Return a state from which not all brokers can serve; None if there is none."""
    faults = {world.first: 0}
    begun = deque([world.first])
    edges: dict[State, list[State]] = {}
    while begun:  # states with fewer faults first
        state = begun.popleft()
        if state in edges:
            continue
        number = faults[state]
        edges[state] = [each for each in world.steps(state) if each != state]
        for each in edges[state]:
            if faults.get(each, max_faults + 1) > number:
                faults[each] = number
                begun.appendleft(each)
        last = [world.with_all_started(state)]
        for each in world.faults(state) if number < max_faults else last:
            if each not in faults:
                faults[each] = min(number + 1, max_faults)
                begun.append(each)
    back: dict[State, list[State]] = defaultdict(list)
    for state, following_states in edges.items():
        for each in following_states:
            back[each].append(state)
    good = deque(state for state in edges if is_served(state, world.needed))
    saved = set(good)
    while good:
        for each in back[good.popleft()]:
            if each not in saved:
                saved.add(each)
                good.append(each)
    ends = [state for state in edges if all(each.up for each in state.machines)]
    return next((state for state in ends if state not in saved), None)


def is_served(state: State, needed: int) -> bool:
    """Return whether each broker serves at home that has enough followers."""
    works = [at for at, machine in enumerate(state.machines) if machine.follower]
    return all(
        (broker.at == node and broker.phase == "serves") or sum(at != node for at in works) < needed
        for node, broker in enumerate(state.brokers)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("machines", "needed", "faults"), [(2, 1, 9), (3, 1, 2), (3, 2, 3)])
def test_machines_do_not_wait_for_each_other_forever(
    machines: int, needed: int, faults: int
) -> None:
    assert find_stuck(World(machines, needed, ALL_RULES), faults) is None


@pytest.mark.parametrize(
    "rules",
    [
        ["registers_while_waiting"],
        ["return_ends_start"],
        ["starts_with_copy", "copies_or_ends"],  # the first one makes the second one rare
    ],
)
def test_without_a_rule_they_do(rules: list[str]) -> None:
    broken = replace(ALL_RULES, **dict.fromkeys(rules, False))
    assert find_stuck(World(2, 1, broken), 4) is not None
