"""A pipeline's driver is killed at, or runs concurrently with another one at, each of its calls:
each row is there once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkawire.reading.files.open import open_place
from kafkawire_spark.pipeline.compaction import remove_unfinished, sweep
from kafkawire_spark.pipeline.tables.commit import CommitError
from tests.kit.spark.pipelines import (
    Bench,
    Counting,
    Killed,
    World,
    grow,
    job,
    new_bench,  # noqa: F401  (a fixture, by name)
    world,
)


def crash_everywhere(fresh: Callable[[], Bench], act: Callable[[Bench, Any], object]) -> int:
    """End the process at each of its calls, then repeat everything; return the number of calls."""
    point, begun = 0, fresh()
    while True:
        bench, counting = begun.copied(), Counting(point)
        try:
            act(bench, counting)
        except Killed:
            act(bench, None)
            act(bench, None)
            try:
                bench.check()
            except AssertionError as problem:
                raise AssertionError(f"killed at call {point}, {counting.where}") from problem
            point += 1
            continue
        bench.check()
        return point


@pytest.mark.slow
@pytest.mark.parametrize("second", [False, True])
def test_driver_killed_at_any_call_writes_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, second: bool
) -> None:
    def fresh() -> Bench:
        bench = Bench(world(), monkeypatch)
        if second:
            bench.run()
            grow(bench)
        return bench

    assert crash_everywhere(fresh, lambda bench, hook: bench.engine(hook).run()) > 25


@pytest.mark.slow
def test_dead_letters_and_partitions_survive_kill_at_any_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fresh() -> Bench:
        small = World({"a": [(0, 33)], "b": [(0, 9)]}, {("a", 0, 4), ("b", 0, 3)})
        keep = job(
            table={"partition_by": ["date(timestamp)", "_partition"]},
            dead_letter={"path": "/dead"},
            run={"on_damage": "dead_letter"},
        )
        return Bench(small, monkeypatch, keep)

    def act(bench: Bench, hook: Any) -> None:
        bench.engine(hook).run()

    assert crash_everywhere(fresh, act) > 25


def small() -> World:
    return World({"a": [(0, 21)], "b": [(5, 9)]})


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", ["same", "more"])
def test_concurrent_drivers_write_each_run_once(
    monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """At each call of one driver, another one does everything there is to do."""
    point, acted = 0, True
    while acted:
        bench = Bench(small(), monkeypatch)

        def other(bench: Bench = bench) -> None:
            if meanwhile == "more":
                grow(bench)
            bench.run()

        hook = _Meanwhile(other, point)
        bench.engine(hook).run()
        bench.run()
        bench.run()
        bench.check()
        acted = hook.acted
        point += 1
    assert point > 30


@pytest.mark.slow
@pytest.mark.parametrize("other", ["run", "compact"])
def test_compaction_concurrent_with_another_driver(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    begun = Bench(World({"a": [(0, 6)], "b": [(0, 1)]}), monkeypatch)
    begun.run()
    grow(begun, by=2)
    begun.run()
    grow(begun, by=2)
    point, acted = 0, True
    while acted:
        bench = begun.copied()
        hook = _Meanwhile(getattr(bench.engine(), other), point)
        with contextlib.suppress(CommitError):  # it reports that another driver does this
            bench.engine(hook).compact()
        bench.run()
        bench.engine().compact()
        bench.check()
        acted = hook.acted
        point += 1
    assert point > 25


class _Meanwhile:
    """A hook that lets another driver act at one of the calls."""

    def __init__(self, act: Callable[[], object], at: int) -> None:
        self._act, self._at = act, at
        self._calls = 0
        self.acted = False

    def __call__(self, when: str, what: str, key: str) -> None:
        self._calls += 1
        if self._calls == self._at + 1:
            self.acted = True
            self._act()


@pytest.mark.slow
def test_kill_during_compaction_leaves_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh() -> Bench:
        bench = Bench(World({"a": [(0, 9)], "b": [(0, 3)]}), monkeypatch)
        bench.run()
        grow(bench, by=2)
        bench.run()
        return bench

    def act(bench: Bench, hook: Any) -> None:
        bench.engine(hook).compact()

    assert crash_everywhere(fresh, act) > 25
    bench = fresh()
    before = len(bench.plain_files())
    bench.engine().compact()
    assert (before, len(bench.plain_files())) == (4, 2)


@pytest.mark.slow
def test_run_completes_interrupted_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Bench(World({"a": [(0, 9)], "b": [(0, 5)]}), monkeypatch)
    begun.run()
    grow(begun, by=2)
    begun.run()
    grow(begun, by=2)
    point, ended = 0, True
    while ended:
        bench, ended = begun.copied(), False
        try:
            bench.engine(Counting(point)).compact()
        except Killed:
            ended = True
        bench.run()
        bench.check()
        point += 1


def test_file_written_late_is_deleted(bench: Bench) -> None:
    bench.run()
    grow(bench, by=1)
    bench.run()
    late = next(path for path in bench.plain_files() if path.startswith("a-p00000"))
    data = bench.place.files[late]
    bench.engine().compact()
    assert late not in bench.place.files
    bench.place.files[late] = data  # by a task of an executor that was considered dead
    assert sweep(bench.engine().table) == [late]
    bench.check()


def test_finished_task_is_not_repeated(bench: Bench) -> None:
    keys: list[str] = []

    def hook(when: str, what: str, key: str) -> None:
        if (when, what) == ("after", "put"):
            keys.append(key)
            if "task-000002" in key:
                raise Killed

    with pytest.raises(Killed):
        bench.engine(hook).run()
    first = {key for key in keys if key.endswith(".parquet")}
    keys.clear()
    outcome = bench.engine(hook).run()
    assert outcome.resumed
    assert not first & set(keys)
    bench.check()


def test_unfinished_files_of_killed_processes_are_deleted(tmp_path: Path) -> None:
    old, new = tmp_path / "d" / ".a.unfinished", tmp_path / ".b.unfinished"
    for path in (old, new):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    os.utime(old, (1, 1))
    remove_unfinished(open_place(str(tmp_path)))
    assert (old.exists(), new.exists()) == (False, True)
