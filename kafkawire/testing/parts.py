"""Parts of requests and responses for single topics and partitions, by the schema of messages.

Works on messages of any API: a list is of topics if the structure of its items is one of a topic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kafkawire.codec.schema import Field, fields_in, fields_of
from kafkawire.codec.types import UUID, ZERO_UUID
from kafkawire.handlers.failures import CODES, has_code
from kafkawire.messages.registry import response_class

TOPIC_RESOURCE = 2


@dataclass(frozen=True, slots=True)
class FaultTarget:
    """A topic, or one partition of it; `topic` None: each. `name_of`: from the id of a topic to its
    name."""

    topic: str | None
    partition: int | None
    name_of: Callable[[bytes], str | None]

    def division(self, item: Any, version: int) -> tuple[Any, Any]:
        """Return the part of a request, or of a structure in it, about the target, and the rest;
        None for an empty one."""
        taken, rest = copy.copy(item), copy.copy(item)
        found, remains = False, False
        for each in _topic_lists(type(item), version):
            ours: list[Any] = []
            others: list[Any] = []
            for inner in getattr(item, each.name) or ():
                one, other = None, inner
                if not _is_of_topics(each):
                    one, other = self.division(inner, version)
                elif self._is_topic(inner):
                    one, other = self._partitions(inner, version)
                ours += [] if one is None else [one]
                others += [] if other is None else [other]
            setattr(taken, each.name, ours)
            setattr(rest, each.name, others)
            found, remains = found or bool(ours), remains or bool(others)
        return (taken, rest if remains else None) if found else (None, item)

    def may_be_answered(self, item: Any, version: int) -> bool:
        """Return whether a request, which does not name the target, may have it in its response:
        it is for all topics, or for the topic without naming its partitions."""
        for each in _topic_lists(type(item), version):
            inner: Sequence[Any] = getattr(item, each.name)
            if not inner:
                return True
            if any(
                self._is_topic(one) and not _partition_list(one, version)
                if _is_of_topics(each)
                else self.may_be_answered(one, version)
                for one in inner
            ):
                return True
        return False

    def set_code(self, answer: Any, code: int, version: int) -> bool:
        """Set an error in the items of a response about the target; return whether there are
        any."""
        found = False
        for each in _topic_lists(type(answer), version):
            for item in getattr(answer, each.name) or ():
                if not _is_of_topics(each):
                    found |= self.set_code(item, code, version)
                elif self._is_topic(item):
                    found |= self._set_code_of_topic(item, code, version)
        return found

    def _is_topic(self, item: Any) -> bool:
        if self.topic is None:
            return True
        if isinstance(item, str):
            return item == self.topic
        if hasattr(item, "resource_type"):
            return bool((item.resource_type, item.resource_name) == (TOPIC_RESOURCE, self.topic))
        name = next(filter(None, (getattr(item, name, "") for name in _TOPIC_NAMES)), None)
        if name is None:
            name = self.name_of(getattr(item, "topic_id", ZERO_UUID))
        return bool(name == self.topic)

    def _partitions(self, item: Any, version: int) -> tuple[Any, Any]:
        """Return a topic of a request with the partition, and with the others; None for none."""
        if self.partition is None:
            return item, None
        each = _partition_list(item, version)
        if each is None:
            return None, item
        made = copy.copy(item), copy.copy(item)
        for one, wanted in zip(made, (True, False), strict=True):
            rows = getattr(item, each.name)
            kept = [row for row in rows if (_number(row) == self.partition) is wanted]
            setattr(one, each.name, kept)
        ours, others = (one if getattr(one, each.name) else None for one in made)
        return ours, others

    def _set_code_of_topic(self, item: Any, code: int, version: int) -> bool:
        name = _code_field(item)
        if self.partition is None and name is not None:
            setattr(item, name, code)
            return True
        each = _partition_list(item, version)
        rows: Sequence[Any] = () if each is None else getattr(item, each.name)
        found = [row for row in rows if self.partition in (None, _number(row))]
        for row in found:
            setattr(row, _code_field(row) or "", code)
        return bool(found)


_TOPIC_NAMES = ("name", "topic", "topic_name")
_PARTITION_NUMBERS = ("partition_index", "partition", "index")


def has_topics(key: int) -> bool:
    """Return whether responses of an API can have the error of one topic."""
    return any(
        each.is_array
        and each.struct is not None
        and has_code(each.struct)
        and (_is_of_topics(each) or _leads_to_topics(each))
        for each in fields_of(response_class(key))
    )


def merge_responses(answer: Any, more: Any, version: int) -> Any:
    """Return a response with the items of another one; those of the same topic become one item."""
    for each in fields_in(type(answer), version):
        if not each.is_array or each.struct is None:
            continue
        items: list[Any] = getattr(answer, each.name) or []
        by_key = {_key_of(item): item for item in items}
        for item in getattr(more, each.name) or ():
            key = _key_of(item)
            if key and key in by_key:
                merge_responses(by_key[key], item, version)
            else:
                items.append(item)
        setattr(answer, each.name, items)
    return answer


def _key_of(item: Any) -> tuple[object, ...]:
    """Return the texts and ids of an item of a response, which tell it from others; those of
    partitions have none."""
    return tuple(
        getattr(item, each.name)
        for each in fields_of(type(item))
        if not each.is_array and (isinstance(each.default, str) or each.kind is UUID)
    )


def _topic_lists(kind: type, version: int) -> list[Field]:
    """Return the lists of a structure that have topics in some depth."""
    return [
        each
        for each in fields_in(kind, version)
        if each.is_array and (_is_of_topics(each) or _leads_to_topics(each))
    ]


def _is_of_topics(each: Field) -> bool:
    """Return whether the items of a list are about one topic each."""
    if each.struct is None:
        return each.name == "topic_names"
    names = {inner.name for inner in fields_of(each.struct)}
    is_topic = "Topic" in each.struct.__name__ and "partition" not in each.name
    return "resource_name" in names or (is_topic and bool(names & {*_TOPIC_NAMES, "topic_id"}))


def _leads_to_topics(each: Field) -> bool:
    return each.struct is not None and any(
        inner.is_array and (_is_of_topics(inner) or _leads_to_topics(inner))
        for inner in fields_of(each.struct)
    )


def _partition_list(item: Any, version: int) -> Field | None:
    """Return the list of partitions in the structure of a topic."""
    fields = () if isinstance(item, str) else fields_in(type(item), version)
    return next((each for each in fields if each.is_array and "partition" in each.name), None)


def _number(item: Any) -> int:
    if isinstance(item, int):
        return item
    return next(int(getattr(item, name)) for name in _PARTITION_NUMBERS if hasattr(item, name))


def _code_field(item: Any) -> str | None:
    return next((name for name in CODES if hasattr(item, name)), None)
