"""Thread pools: how many threads, what is cancelled, freed and left to whom."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from kafkawire.log.io.disk import ThreadOffload, ThreadPool
from tests.kit.waiting import until


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"pool of {request.node.name}"


def alive(name: str) -> list[str]:
    return sorted(each.name for each in threading.enumerate() if each.name.startswith(name))


async def test_threads_are_started_when_others_are_busy(name: str) -> None:
    pool, go = ThreadPool(name, 3), threading.Event()
    assert [await pool.submit(divmod, n, 2) for n in range(4)] == [divmod(n, 2) for n in range(4)]
    assert alive(name) == [f"{name}_0"]
    waiting = [pool.submit(go.wait, 60) for _ in range(5)]
    assert alive(name) == [f"{name}_{n}" for n in range(3)]
    go.set()
    assert all(await asyncio.gather(*waiting))
    pool.close()
    assert alive(name) == []


async def test_calls_of_one_thread_run_in_order_and_close_waits_for_them(name: str) -> None:
    pool, go, done = ThreadPool(name, 1), threading.Event(), list[int]()
    first = pool.submit(go.wait, 60)
    for n in range(50):
        pool.submit(done.append, n)
    go.set()
    pool.close()
    assert done == list(range(50))
    assert await first


async def test_cancelled_call_does_not_run(name: str) -> None:
    pool, go, done = ThreadPool(name, 1), threading.Event(), list[str]()
    begun = pool.submit(go.wait, 60)
    cancelled, last = pool.submit(done.append, "cancelled"), pool.submit(done.append, "last")
    cancelled.cancel()
    go.set()
    await last
    assert begun.result()
    assert done == ["last"]
    pool.close()


@pytest.mark.parametrize("failure", [OSError(5, "bad disk"), KeyboardInterrupt(), SystemExit(1)])
async def test_failures_are_the_callers(name: str, failure: BaseException) -> None:
    def fail() -> None:
        raise failure

    pool = ThreadPool(name, 1)
    future = pool.submit(fail)
    await asyncio.wait([future])
    assert future.exception() is failure
    assert await pool.submit(divmod, 7, 2) == (3, 1)
    pool.close()


class Large:
    """Something that must be freed."""


@pytest.mark.parametrize("fn", [lambda large: None, lambda large: large.missing])
async def test_arguments_are_freed_while_the_thread_waits(
    name: str, fn: Callable[[Large], None]
) -> None:
    pool, large = ThreadPool(name, 1), Large()
    freed = weakref.ref(large)
    future = pool.submit(fn, large)
    await asyncio.wait([future])
    assert isinstance(future.exception(), AttributeError | None)
    del large, future
    await until(lambda: freed() is None)
    pool.close()


async def test_thread_continues_after_a_loop_was_closed(name: str) -> None:
    pool, go = ThreadPool(name, 1), threading.Event()

    async def leave() -> None:
        pool.submit(go.wait, 60)

    def other_loop() -> None:
        asyncio.run(leave())
        go.set()

    await asyncio.to_thread(other_loop)
    assert await pool.submit(divmod, 7, 2) == (3, 1)
    pool.close()


async def test_abandoned_pool_ends_its_threads(name: str) -> None:
    pool = ThreadPool(name, 2)
    await pool.submit(divmod, 7, 2)
    assert alive(name)
    del pool
    gc.collect()
    await until(lambda: not alive(name))


async def test_offload_can_be_used_after_close() -> None:
    offload = ThreadOffload()
    assert await offload.submit("files", divmod, 7, 2) == (3, 1)
    offload.close()
    assert await offload.submit("files", divmod, 7, 2) == (3, 1)
    offload.close()


async def test_unknown_pool_is_a_defect() -> None:
    with pytest.raises(KeyError):
        ThreadOffload().submit("other", divmod, 7, 2)


async def test_callback_gets_outcome_or_failure_in_order(name: str) -> None:
    pool, go = ThreadPool(name, 1), threading.Event()
    found: list[object] = []
    pool.submit_then(lambda *outcome: found.append(outcome), divmod, 7, 2)
    pool.submit_then(lambda outcome, failure: found.append((outcome, repr(failure))), divmod, 7, 0)
    pool.submit_then(lambda *_: found.append("next"), go.wait, 60)
    last = pool.submit(divmod, 9, 2)
    go.set()
    assert await last == (4, 1)
    assert found[0] == ((3, 1), None)
    assert found[1] == (None, repr(ZeroDivisionError("integer division or modulo by zero")))
    assert found[2] == "next"
    pool.close()
