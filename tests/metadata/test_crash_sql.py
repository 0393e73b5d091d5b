"""Kill -9 while topics, settings, epochs and checkpoints are written: answered writes are stored.

The child prints each step before it begins (`do`) and after it has returned (`ok`). It is killed at
seeded moments; then the database must hold every answered step completely, and the unanswered one
completely or not at all. Numbers and ids must never be assigned twice, over all the rounds.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kafkawire.metadata.catalog import TOPIC_RESOURCE, ConfigChange, NewTopic
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint, ProducerEntry
from kafkawire.metadata.sql import open_metadata
from kafkawire.metadata.store import SqlStore
from kafkawire.offsets.catalog.sql.storage import SqlStorage

ROUNDS = 5
Step = dict[str, Any]
State = dict[str, Any]  # {"topics": {name: topic}, "place": place, "offsets": {number: offset}}


async def stored_state(store: SqlStore) -> State:
    """The content of a database, in the form of the model."""
    catalog = await store.open()
    storage = SqlStorage(store, 1, lambda: 0)
    numbers = [p.number for info in catalog.by_id.values() for p in info.partitions]
    rows = await storage.load_partitions(sorted(numbers))
    states = [row.checkpoint for row in rows if row.checkpoint is not None]
    return {
        "topics": {
            info.name: {
                "id": info.id.hex(),
                "numbers": [p.number for p in info.partitions],
                "epochs": [p.leader_epoch for p in info.partitions],
                "configs": info.configs,
            }
            for info in catalog.by_name.values()
        },
        "place": await storage.load_log_position(1),
        "offsets": {str(state.number): state.next_offset for state in states},
    }


def next_step(rng: random.Random, state: State, count: int) -> Step:
    """A step for a database in this state."""
    topics = state["topics"]
    if len(topics) < 3 or (rng.random() < 0.3 and len(topics) < 30):
        names = [f"t{count}.{i}" for i in range(rng.randint(1, 4))]
        return {"what": "create", "names": names, "partitions": rng.randint(1, 6)}
    name = rng.choice(sorted(topics))
    what = rng.choice(["delete", "partitions", "configs", "epochs", "checkpoint", "lease"])
    if what == "partitions":
        total = len(topics[name]["numbers"]) + rng.randint(1, 3)
        return {"what": what, "name": name, "total": total}
    if what == "configs":
        values = {"retention.ms": str(count), "segment.ms": rng.choice([None, str(count)])}
        return {"what": what, "name": name, "values": values}
    if what == "checkpoint":
        numbers = [n for topic in topics.values() for n in topic["numbers"]]
        return {"what": what, "place": count, "offsets": {str(n): count for n in numbers}}
    return {"what": what, "name": name}


def apply(state: State, step: Step, result: Any) -> None:
    """The effect of a step on the model. `result`: what the call returned, None if unknown."""
    topics = state["topics"]
    if step["what"] == "create":
        for i, name in enumerate(step["names"]):
            made = result[i] if result else {"id": None, "numbers": [None] * step["partitions"]}
            epochs = [0] * step["partitions"]
            topics[name] = {**made, "epochs": epochs, "configs": {"flush.ms": "1"}}
    elif step["what"] == "delete":
        for number in topics.pop(step["name"])["numbers"]:
            state["offsets"].pop(str(number), None)
    elif step["what"] == "partitions":
        topic = topics[step["name"]]
        more = step["total"] - len(topic["numbers"])
        topic["numbers"] += result or [None] * more
        topic["epochs"] += [0] * more
    elif step["what"] == "configs":
        configs = {**topics[step["name"]]["configs"], **step["values"]}
        topics[step["name"]]["configs"] = {k: v for k, v in configs.items() if v is not None}
    elif step["what"] == "epochs":
        topics[step["name"]]["epochs"] = [e + 1 for e in topics[step["name"]]["epochs"]]
    elif step["what"] == "checkpoint":
        state["place"] = step["place"]
        state["offsets"].update(step["offsets"])


async def perform(store: SqlStore, state: State, step: Step) -> Any:
    """Apply a step to the database."""
    topic = state["topics"].get(step.get("name"))
    if step["what"] == "create":
        leaders = [1] * step["partitions"]
        new = [NewTopic(name, leaders, {"flush.ms": "1"}) for name in step["names"]]
        made = await store.create_topics(new)
        return [{"id": t.id.hex(), "numbers": [p.number for p in t.partitions]} for t in made]
    if step["what"] == "delete":
        await store.delete_topics([bytes.fromhex(topic["id"])])
    elif step["what"] == "partitions":
        added = await store.create_partitions(bytes.fromhex(topic["id"]), step["total"])
        return [partition.number for partition in added]
    elif step["what"] == "configs":
        changes = step["values"].items()
        await store.alter_configs(
            [ConfigChange(TOPIC_RESOURCE, step["name"], key, value) for key, value in changes]
        )
    elif step["what"] == "epochs":
        await store.bump_leader_epochs(topic["numbers"])
    elif step["what"] == "checkpoint":
        producers = [ProducerEntry(1, 0, [(0, 1, 2, 3)])]
        states = [
            PartitionCheckpoint(int(number), offset, 0, [(0, 0)], producers)
            for number, offset in step["offsets"].items()
        ]
        await SqlStorage(store, 1, lambda: 0).save_checkpoint(Checkpoint(1, step["place"], states))
    elif step["what"] == "lease":
        return await store.lease_producer_ids(1000)
    return None


async def child(folder: str, seed: int) -> None:
    """Work until killed."""
    store = open_metadata("", folder)
    state = await stored_state(store)
    await store.register_broker(1, {"P": ("h", 1)}, None)
    rng = random.Random(seed)
    for count in range(seed * 1_000_000, (seed + 1) * 1_000_000):
        step = next_step(rng, state, count)
        print(json.dumps({"do": step}), flush=True)
        result = await perform(store, state, step)
        apply(state, step, result)
        print(json.dumps({"ok": result}), flush=True)


class Model:
    """The state that the parent knows must be stored."""

    def __init__(self) -> None:
        self.state: State = {"topics": {}, "place": 0, "offsets": {}}
        self.doubtful: Step | None = None
        self.numbers: set[int] = set()
        self.ids: set[str] = set()
        self.leased: list[int] = []

    def read(self, line: str) -> None:
        said = json.loads(line)
        if "do" in said:
            self.doubtful = said["do"]
            return
        step, self.doubtful = self.doubtful, None
        assert step is not None
        apply(self.state, step, said["ok"])
        self.note(step, said["ok"])

    def note(self, step: Step, result: Any) -> None:
        """Check that a number or id was never assigned before."""
        if step["what"] == "create":
            for topic in result:
                assert topic["id"] not in self.ids
                self.ids.add(topic["id"])
                self.take(topic["numbers"])
        elif step["what"] == "partitions":
            self.take(result)
        elif step["what"] == "lease":
            assert all(abs(result - other) >= 1000 for other in self.leased)
            self.leased.append(result)

    def take(self, numbers: list[int]) -> None:
        assert not self.numbers & set(numbers)
        self.numbers |= set(numbers)

    def settle(self, found: State) -> bool:
        """Compare with the database; return whether the unanswered step was stored."""
        step, self.doubtful = self.doubtful, None
        if found == self.state:
            return False
        assert step is not None, "answered steps and stored state differ"
        expected = copy.deepcopy(self.state)
        apply(expected, step, None)
        for name, topic in expected["topics"].items():
            there = found["topics"][name]
            if topic["id"] is None:
                made = topic["id"] = str(there["id"])
                assert made not in self.ids
                self.ids.add(made)
            known = [number for number in topic["numbers"] if number is not None]
            assert there["numbers"][: len(known)] == known
            self.take(there["numbers"][len(known) :])
            topic["numbers"] = there["numbers"]
        assert found == expected
        self.state = expected
        return True


def run_and_kill(folder: Path, seed: int, model: Model) -> int:
    """One life of the child; return the number of answered steps."""
    rng = random.Random(seed)
    steps, delay_s = rng.randint(1, 40), rng.uniform(0, 0.02)
    command = [sys.executable, __file__, str(folder), str(seed)]
    answered = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while answered < steps:
            line = process.stdout.readline()
            assert line, "the child ended by itself"
            model.read(line)
            answered += "ok" in json.loads(line)
        time.sleep(delay_s)
        process.kill()
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):  # the last one may be cut off
                model.read(line)
                answered += "ok" in json.loads(line)
    return answered


@pytest.mark.real
async def test_answered_steps_survive_kill_9(tmp_path: Path) -> None:
    model, answered = Model(), 0
    for seed in range(ROUNDS):
        answered += await asyncio.to_thread(run_and_kill, tmp_path, seed, model)
        store = open_metadata("", str(tmp_path))
        model.settle(await stored_state(store))
        await store.close()
    assert answered > 5 * ROUNDS


def test_model_detects_lost_and_repeated_values() -> None:
    """A comparison that accepts everything proves nothing."""
    create = {"what": "create", "names": ["a"], "partitions": 2}
    model = Model()
    model.read(json.dumps({"do": create}))
    model.read(json.dumps({"ok": [{"id": "00", "numbers": [1, 2]}]}))
    there = copy.deepcopy(model.state)
    assert model.settle(there) is False
    for lost in ({**there, "topics": {}}, {**there, "place": 9}):
        with pytest.raises((AssertionError, KeyError)):
            model.settle(lost)
    model.read(json.dumps({"do": {"what": "partitions", "name": "a", "total": 3}}))
    there["topics"]["a"]["numbers"].append(3)
    there["topics"]["a"]["epochs"].append(0)
    assert model.settle(there) is True
    model.read(json.dumps({"do": {"what": "partitions", "name": "a", "total": 4}}))
    with pytest.raises(AssertionError):  # a number that was assigned before
        model.read(json.dumps({"ok": [2]}))


if __name__ == "__main__":
    asyncio.run(child(sys.argv[1], int(sys.argv[2])))
