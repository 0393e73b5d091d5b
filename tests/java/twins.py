"""The same request to two brokers; their answers must be equal, field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kafkawire.client.connection import Connection
from kafkawire.client.errors import ClientError
from kafkawire.messages.registry import APIS

KEYS = {spec.name: key for key, spec in APIS.items()}
LEFT_OUT = {"unknown_tags", "throttle_time_ms", "error_message", "batch_index_error_message"}
LEFT_OUT |= {"documentation", "client_host"}
EACH_ITS_OWN = {"host", "port", "cluster_id", "topic_id", "member_id", "leader", "producer_id"}
"""Fields that differ by nature: only whether they are set is compared."""
UNSET = (-1, "", None, bytes(16))
NAMES = ("name", "topic", "partition_index", "partition", "api_key", "group_id", "node_id")
OUR_SETTINGS = {"tieredStorageLevel", "tiering.max.lag.ms", "tiering.min.object.bytes"}
"""Of topics; Kafka has none of the kind."""


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of a message; lists by the names of their elements where they have one."""
    fields = getattr(type(value), "__slots__", ())  # every message has them
    if fields:
        for field in fields:
            if field not in LEFT_OUT:
                found = getattr(value, field)
                if field in EACH_ITS_OWN:
                    found = "unset" if found in UNSET else "set"
                yield from flatten(found, f"{path}.{field}")
    elif isinstance(value, list):
        value = [each for each in value if getattr(each, "name", "") not in OUR_SETTINGS]
        yield path + ".length", len(value)
        for index, element in enumerate(value):
            names = [getattr(element, n) for n in NAMES if hasattr(element, n)]
            yield from flatten(element, f"{path}[{names[0] if names else index}]")
    else:
        yield path, bytes(value) if isinstance(value, memoryview) else value


class Twins:
    """Apache Kafka and ours, asked alike."""

    def __init__(self, kafka: Connection, ours: Connection) -> None:
        self.both = (kafka, ours)

    def ask(
        self,
        api: str,
        request: object | Callable[[int], object],
        version: int | None = None,
        *,
        but: tuple[str, ...] = (),
    ) -> tuple[Any, Any]:
        """Both answers. They are equal, but for paths with one of `but` in them: differences
        that are meant, or that nothing depends on. `request` may be made for broker 0 and 1."""
        answers: list[Any] = []
        for index, connection in enumerate(self.both):
            message = request(index) if callable(request) else request
            try:
                answers.append(connection.request(KEYS[api], message, at_most=version))
            except ClientError as error:
                raise AssertionError(f"{api} v{version} of broker {index}: {error}") from error
        kafka, ours = (dict(flatten(answer)) for answer in answers)
        different = {
            path: (kafka.get(path, "nothing"), ours.get(path, "nothing"))
            for path in kafka.keys() | ours.keys()
            if kafka.get(path, "nothing") != ours.get(path, "nothing")
            and not any(part in path for part in but)
        }
        assert not different, f"{api} v{version}: (Apache Kafka, ours) differ in {different}"
        return answers[0], answers[1]
