"""The error response of every API: clients must recognise it as an error."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import pytest

from kafkawire.codec.compile import decode, encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers import failures
from kafkawire.handlers.failures import MAX_ITEMS, MAX_TEXT
from kafkawire.handlers.table import ROWS
from kafkawire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kafkawire.messages.registry import request_class, response_class

CODE = int(ErrorCode.UNKNOWN_SERVER_ERROR)
WITHOUT = {("describe_log_dirs", 1), ("describe_log_dirs", 2), ("elect_leaders", 0)}
"""APIs without a field for an error of the whole request: the connection is closed."""


def failed_response(*given: Any, **options: Any) -> Any:
    """The response, without pauses."""
    steps = failures.failed_response(*given, **options)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


def codes(message: Any) -> list[int]:
    """Every error code in a message."""
    if isinstance(message, list):
        return [code for item in message for code in codes(item)]
    slots = getattr(type(message), "__annotations__", {})
    fields = ("error_code", "partition_error_code")
    found = [getattr(message, name) for name in fields if name in slots]
    return found + [code for name in slots for code in codes(getattr(message, name))]


def one_of_each(cls: type, number: int = 0) -> Any:
    """A message with two items in each list, and text in its names."""
    made = cls()
    for name, hint in get_type_hints(cls).items():
        kinds = [one for one in (hint, *get_args(hint)) if get_origin(one) is list]
        if kinds:
            (item,) = get_args(kinds[0])
            if item is str:
                setattr(made, name, ["a", "b"])
            elif item is int:
                setattr(made, name, [1, 2])
            elif isinstance(item, type) and get_type_hints(item):
                setattr(made, name, [one_of_each(item, n) for n in range(2)])
        elif isinstance(getattr(made, name), str):
            setattr(made, name, f"{name}-{number}")
    return made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.module))
def test_error_response_of_every_api_has_error_code(row: Any) -> None:
    request = one_of_each(request_class(row.key))
    for version in range(row.min_version, row.max_version + 1):
        answer = failed_response(request, response_class(row.key), version, CODE, "a defect")
        if answer is None:
            assert (row.module, version) in WITHOUT
        else:
            body = encode(answer, version)
            assert CODE in codes(decode(response_class(row.key), version, body))
            assert set(codes(answer)) <= {0, CODE}


def test_error_response_names_items_of_request() -> None:
    request = one_of_each(request_class(2))  # ListOffsets
    answer = failed_response(request, response_class(2), 5, CODE, None)
    assert [topic.name for topic in answer.topics] == ["name-0", "name-1"]
    assert [len(topic.partitions) for topic in answer.topics] == [2, 2]
    request = request_class(15)(groups=["g", "h"])
    answer = failed_response(request, response_class(15), 5, CODE, None)
    assert [(group.group_id, group.error_code) for group in answer.groups] == [
        ("g", CODE),
        ("h", CODE),
    ]


@pytest.mark.parametrize(("key", "version"), [(0, 13), (1, 6), (1, 18), (2, 11), (9, 7), (9, 9)])
def test_error_is_in_partitions_that_the_request_names(key: int, version: int) -> None:
    """Produce, Fetch, ListOffsets and OffsetFetch; some have a code for the whole, too."""
    request = one_of_each(request_class(key))
    answer = failed_response(request, response_class(key), version, CODE, None, in_items=True)
    answer = decode(response_class(key), version, encode(answer, version))
    assert not getattr(answer, "error_code", 0)
    (name,) = {"responses", "groups", "topics"} & {
        each for each in type(answer).__annotations__ if getattr(answer, each)
    }
    topics = getattr(answer, name)
    topics = [topic for group in topics for topic in group.topics] if name == "groups" else topics
    for topic in topics:
        rows = topic.partition_responses if key == 0 else topic.partitions
        assert [row.error_code for row in rows] == [CODE, CODE]
    assert codes(topics).count(CODE) == 2 * len(topics)


def test_error_response_of_fetch_names_partitions() -> None:
    request = one_of_each(request_class(1))
    for topic in request.topics:
        for number, row in enumerate(topic.partitions):
            row.partition = 7 + number
    answer = failed_response(request, response_class(1), 6, CODE, None)
    for topic in answer.responses:
        assert [row.partition_index for row in topic.partitions] == [7, 8]
        assert {row.high_watermark for row in topic.partitions} == {0}


def test_error_response_names_topics_of_each_directory() -> None:
    request = one_of_each(request_class(34))  # AlterReplicaLogDirs
    answer = failed_response(request, response_class(34), 1, CODE, None)
    assert [topic.topic_name for topic in answer.results] == ["name-0", "name-1"] * 2
    for topic in answer.results:
        found = [(row.partition_index, row.error_code) for row in topic.partitions]
        assert found == [(1, CODE), (2, CODE)]


def test_error_response_of_large_request_has_no_items() -> None:
    for groups in (["g"] * (MAX_ITEMS + 1), []):
        request = request_class(15)(groups=groups)
        assert failed_response(request, response_class(15), 5, CODE, None) is None


def test_error_response_of_thousands_of_items_has_all() -> None:
    request = request_class(15)(groups=["g"] * 5_000)
    answer = failed_response(request, response_class(15), 5, CODE, None)
    assert codes(answer) == [CODE] * 5_000


def test_messages_of_error_response_are_bounded() -> None:
    """Repeated in each item, they made a response of a gigabyte, which was not sent."""
    text = "x" * 1_000
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion("a")],
        upsertions=[ScramCredentialUpsertion(f"user-{n}") for n in range(MAX_ITEMS - 1)],
    )
    answer = failed_response(request, response_class(51), 0, CODE, text)
    assert [each.user for each in answer.results[:2]] == ["a", "user-0"]
    assert codes(answer) == [CODE] * MAX_ITEMS
    texts = [each.error_message for each in answer.results]
    count = MAX_TEXT // len(text)
    assert texts == [text] * count + [None] * (MAX_ITEMS - count)
    request.upsertions.append(ScramCredentialUpsertion("one more"))
    assert failed_response(request, response_class(51), 0, CODE, text) is None
