"""Slices of the event loop, the watchdog, and the number of elements a request may have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from kafkawire.codec.compile import (
    DecodeError,
    decoder,
    encode,
    encoder,
    sliced_decoder,
    sliced_encoder,
)
from kafkawire.codec.compile_decode import MAX_STRING_BYTES, allowed_elements
from kafkawire.codec.emit import STEP
from kafkawire.codec.types import Buffer
from kafkawire.handlers.slices import free_in_steps
from kafkawire.log.io.slices import (
    MAX_STRETCH_S,
    SLICE_S,
    Slices,
    count_keys,
    duplicates,
    empty_slowly,
)
from kafkawire.log.io.watchdog import Stepwise, Watchdog
from kafkawire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.list_groups import ListedGroup, ListGroupsResponse
from tests.kit.groups.log import fake_env
from tests.kit.waiting import WITHIN_S


class Hand:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


async def test_one_slice_per_loop_iteration() -> None:
    clock = Hand()
    slices = Slices(clock)
    ran: list[str] = []

    def steps(name: str) -> Generator[None, None, str]:
        for _ in range(3):
            ran.append(name)
            clock.now += SLICE_S
            yield
        return name

    assert await asyncio.gather(*[slices.run(steps(name)) for name in "abc"]) == ["a", "b", "c"]
    assert "".join(ran) == "abcabcabc"


async def test_slice_is_shared_until_used_up() -> None:
    clock = Hand()
    slices = Slices(clock)
    assert slices.over()
    await slices.pause()
    assert not slices.over()
    clock.now += SLICE_S / 2
    await slices.give_way()
    assert not slices.over()
    clock.now += SLICE_S
    assert slices.over()


async def test_cancelled_computation_passes_slice_to_next() -> None:
    slices = Slices(Hand())
    first = asyncio.create_task(slices.pause())
    second = asyncio.create_task(slices.pause())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(second, WITHIN_S)


async def test_collections_are_built_and_freed_one_element_at_a_time() -> None:
    pauses = 0

    async def give_way() -> None:
        nonlocal pauses
        pauses += 1

    assert list((await count_keys("abcab", give_way)).items()) == [("a", 2), ("b", 2), ("c", 1)]
    assert pauses == 5
    assert await duplicates("abcab", give_way) == {"a", "b"}
    assert pauses == 5 + 5 + 3  # the keys are freed one at a time too
    collections: list[list[str] | set[str] | dict[str, int]] = [["a", "b"], {"a", "b"}, {"a": 1}]
    for collection in collections:
        await empty_slowly(collection, give_way)
    assert not any(collections)
    assert pauses == 13 + 2 + 2 + 1


def test_unreferenced_messages_are_freed_in_slices() -> None:
    def answer() -> ListGroupsResponse:
        groups = [ListedGroup(group_id=str(number)) for number in range(1000)]
        return ListGroupsResponse(groups=groups)

    assert len(list(free_in_steps([answer()]))) == 1001 // STEP
    topic = FetchableTopicResponse(partitions=[PartitionData() for _ in range(1000)])
    fetched = [FetchResponse(responses=[topic])]
    del topic
    assert len(list(free_in_steps(fetched))) == 1002 // STEP
    kept = answer()
    groups = kept.groups
    assert not list(free_in_steps([kept]))
    del kept
    assert not list(free_in_steps([ListGroupsResponse(groups=groups)]))
    assert len(groups) == 1000


def test_watchdog_reports_cpu_time_and_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wall, cpu = Hand(), Hand()
    watchdog = Watchdog(wall, cpu)
    begun = watchdog.start_call()
    wall.now += 1.0  # the processor was used by another process
    cpu.now += MAX_STRETCH_S / 2
    watchdog.end_call(begun, lambda: "waiting")
    assert watchdog.count == 0
    for _ in range(2):
        begun = watchdog.start_call()
        wall.now += 0.02
        cpu.now += 0.02
        with caplog.at_level(logging.WARNING):
            watchdog.end_call(begun, lambda: "Metadata v9 of client c at 10.0.0.1")
    assert watchdog.count == 2
    assert watchdog.seconds.total == pytest.approx(0.04)
    (line,) = [record.getMessage() for record in caplog.records]  # the second within a second
    assert line.startswith("Metadata v9 of client c at 10.0.0.1 held the event loop for 20.0 ms")


async def test_a_task_that_is_not_watched_is_not_reported() -> None:
    wall, cpu = Hand(), Hand()
    env = replace(fake_env(), watchdog=Watchdog(wall, cpu))

    async def work() -> None:
        wall.now += 0.02
        cpu.now += 0.02

    for watched in (False, True):
        await env.spawn(work(), "start", watched=watched)
        assert env.watchdog is not None
        assert env.watchdog.count == watched


def test_slow_timer_is_reported_with_the_name_of_its_function(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wall, cpu = Hand(), Hand()
    watchdog = Watchdog(wall, cpu)

    def expire(seconds: float) -> None:
        wall.now += seconds
        cpu.now += seconds

    with caplog.at_level(logging.WARNING):
        watchdog.run_timer(expire, MAX_STRETCH_S / 2)
        watchdog.run_timer(expire, 0.02)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the timer test_slow_timer_is_reported")
    assert "expire held the event loop for 20.0 ms" in line


async def test_steps_of_a_task_are_measured_individually() -> None:
    wall, cpu = Hand(), Hand()
    watchdog = Watchdog(wall, cpu)

    async def work() -> str:
        for _ in range(10):
            wall.now += MAX_STRETCH_S * 0.9
            cpu.now += MAX_STRETCH_S * 0.9
            await asyncio.sleep(0)
        try:
            raise ValueError("kept")
        except ValueError as error:
            return str(error)

    assert await asyncio.create_task(Stepwise(watchdog, work(), "work")) == "kept"
    assert watchdog.count == 0


def test_number_of_elements_is_bounded_by_request_size() -> None:
    decode = decoder(FindCoordinatorRequest, 4)
    for key, count, fits in (
        ("", 1_000, True), ("", 2_000, False), ("abc", 20_000, True), ("abc", 30_000, False),
        ("a group id of a usual length, or more", 60_000, True), ("x" * 40, 100_001, False),
    ):  # fmt: skip
        asked = FindCoordinatorRequest(coordinator_keys=[key] * count)
        data = encode(asked, 4)
        assert (count <= allowed_elements(len(data))) == fits
        if fits:
            assert decode(data, 0, len(data))[0] == asked
            continue
        for attempt in (
            decode,
            lambda data, start, end: list(
                sliced_decoder(FindCoordinatorRequest, 4)(data, start, end, [])
            ),
        ):
            with pytest.raises(DecodeError, match="more elements than its size allows"):
                attempt(data, 0, len(data))


def test_length_of_strings_is_bounded() -> None:
    for version, size, fits in ((4, MAX_STRING_BYTES, True), (4, MAX_STRING_BYTES + 1, False)):
        body = encode(FindCoordinatorRequest(coordinator_keys=["x" * size]), version)
        if fits:
            decoder(FindCoordinatorRequest, version)(body, 0, len(body))
        else:
            with pytest.raises(DecodeError, match="too long"):
                decoder(FindCoordinatorRequest, version)(body, 0, len(body))


@pytest.mark.parametrize("version", range(6))
def test_message_encoded_in_slices_is_the_same(version: int) -> None:
    groups = [ListedGroup(group_id=f"g{number}") for number in range(500)]
    message = ListGroupsResponse(groups=groups)
    whole: list[Buffer] = []
    encoder(ListGroupsResponse, version)(message, whole)
    parts: list[Buffer] = []
    assert len(list(sliced_encoder(ListGroupsResponse, version)(message, parts))) > 5
    data = b"".join(parts)
    assert data == b"".join(whole)
    read = decoder(ListGroupsResponse, version)(data, 0, len(data))
    made: list[ListGroupsResponse] = []
    position = _result(sliced_decoder(ListGroupsResponse, version)(data, 0, len(data), made))
    assert (*made, position) == read


def _result(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
