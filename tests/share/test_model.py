"""Share partitions against a model of single records, and without one rule at a time, which the
model must notice. Covers: kafkawire.share.runs."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import cast

import pytest

from kafkawire.share import partition
from kafkawire.share.partition import SharePartition
from tests.kit.share.model import simulate

SEEDS = 25


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4 * SEEDS, SEEDS))
def test_every_record_moves_as_it_would_alone(first: int) -> None:
    for seed in range(first, first + SEEDS):
        simulate(seed)


MUTATIONS = {
    "a record is released at the limit": (
        "if record.deliveries >= settings.delivery_count_limit:",
        "if record.deliveries > settings.delivery_count_limit:",
    ),
    "another member may acknowledge": ("if record.member != member:", "if False:"),
    "a record in transition is acknowledged again": (
        "if record.target is not None:\n        raise",
        "if False:\n        raise",
    ),
    "a lock ends during a write": (
        " or record.target is not None:\n                continue",
        ":\n                continue",
    ),
    "a delay is ignored": (
        "self.state is AVAILABLE and self.until_ms <= now_ms",
        "self.state is AVAILABLE",
    ),
    "a failed write completes the moves": (
        "                    if stored\n",
        "                    if True\n",
    ),
    "a lock that ended during a failed write stays": (
        "if undone.state is ACQUIRED and undone.until_ms <= now_ms:",
        "if False:",
    ),
    "the start moves over acquired records": (
        "if run.value.state not in TERMINAL or run.value.save:",
        "if run.value.state is AVAILABLE:",
    ),
    "the stored start moves over what is not done": ("            moves = False\n", ""),
    "holes between stored batches are done": (
        "ShareRecord(AVAILABLE, size=first - at)",
        "ShareRecord(ARCHIVED)",
    ),
    "records that others have are acquired": (
        "if run.value.may_be_acquired(now_ms) and not",
        "if run.value.state in (AVAILABLE, ACQUIRED) and not",
    ),
    "aborted batches are delivered": ("if batch.dropped:", "if False:"),
    "the last delivery is not alone": ("return 1  # the last delivery", "return 0"),
    "offsets after the end may be acknowledged": (
        "if batch.last >= self.end:",
        "if batch.first > self.end:",
    ),
    "an acknowledgement is not stored": (
        "        return record._replace(target=target, save=self._write)",
        "        return record._replace(target=None, state=target, until_ms=0, member='')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MUTATIONS)
def test_the_model_notices(what: str) -> None:
    changed = mutate(*MUTATIONS[what])
    with pytest.raises((AssertionError, IndexError, KeyError)):
        run_seeds(changed)


def run_seeds(machine: type[SharePartition]) -> None:
    for seed in range(150):
        simulate(seed, machine)


def mutate(line: str, by: str) -> type[SharePartition]:
    source = inspect.getsource(partition)
    assert source.count(line) == 1, f"the rule is not in one place: {line}"
    module = ModuleType(partition.__name__)
    sys.modules[f"{partition.__name__}.mutated"] = module  # dataclasses look their module up
    exec(compile(source.replace(line, by), "mutated", "exec"), module.__dict__)
    return cast("type[SharePartition]", module.SharePartition)
