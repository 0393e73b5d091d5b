"""A record that is produced: typed in, or the copy of another."""

from __future__ import annotations

import json
import secrets
import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from kafkawire.client.cluster import Cluster
from kafkawire.client.copying import record_at
from kafkawire.client.errors import check
from kafkawire.client.offsets import leaders
from kafkawire.client.producer import append
from kafkawire.client.record_text import (
    RecordError,
    bytes_of,
    from_base64,
    headers_of,
    headers_text,
)
from kafkawire.codec.batches import Record, pack
from kafkawire.codec.murmur2 import key_partition
from kafkawire.codec.record_text import text_of
from kafkawire.console.views.decoding import visible
from kafkawire.console.views.plans import (
    Action,
    Change,
    ChangePlan,
    ChangeRefused,
    FactTable,
    FormField,
    Seen,
    Values,
    see_topic,
)

FORMS = ("text", "base64", "null")
HEADERS = 'Headers as JSON: [["name", "value"], ["name", {"base64": "AA=="}]]'
MAX_BYTES = 1 << 20
"""Bytes of a record; the form is bounded, too, in which some bytes are three."""


class ProduceRecord(Action):
    """One new record."""

    title = "Produce a record"
    fields = (
        FormField("topic", "Topic", required=True),
        FormField("partition", "Partition (empty: by the key)", "number"),
        FormField("key_form", "Key as", "choice", FORMS),
        FormField("key", "Key", "area"),
        FormField("value_form", "Value as", "choice", FORMS),
        FormField("value", "Value", "area"),
        FormField("headers", HEADERS, "area"),
    )  # fmt: skip

    def prefill(
        self, cluster: Cluster, given: Mapping[str, str]
    ) -> tuple[Mapping[str, str], FactTable]:
        topic, index, offset = (given.get(name, "") for name in ("topic", "partition", "offset"))
        if not (index.isdecimal() and offset.isdecimal()):
            return given, FactTable()
        place = topic, int(index)
        node = leaders(cluster, [topic]).get(place)
        found = None if node is None else record_at(cluster, node, place, int(offset))
        if found is None:
            raise ChangeRefused(f"There is no record at offset {offset} of partition {index}", 404)
        key_form, key = field_of(found.key)
        value_form, value = field_of(found.value)
        headers = json.dumps(headers_text(found)) if found.headers else ""
        return {
            "topic": topic, "partition": index, "key_form": key_form, "key": key,
            "value_form": value_form, "value": value, "headers": headers,
        }, FactTable()  # fmt: skip

    def make_plan(self, cluster: Cluster, values: Values) -> ChangePlan:
        topic, index = values["topic"], values["partition"]
        try:
            key = data_of("key", values["key_form"], values["key"])
            value = data_of("value", values["value_form"], values["value"])
            headers = json.loads(values["headers"]) if values["headers"].strip() else []
            headers_of(headers)
        except (RecordError, ValueError, RecursionError) as wrong:
            raise ChangeRefused(f"The record is not valid: {wrong}", 400) from None
        if len(key or b"") + len(value or b"") + len(values["headers"]) > MAX_BYTES:
            raise ChangeRefused(f"A record has at most {MAX_BYTES} bytes here", 400)
        seen = see_topic(cluster, topic)
        partitions = int(seen["partitions"] or 1)
        if index is None:
            index = key_partition(key, partitions) if key else secrets.randbelow(partitions)
        if index >= partitions:
            raise ChangeRefused(f"Topic {topic} has no partition {index}", 400)
        change = {
            "topic": topic, "partition": index, "key": text_of(key), "value": text_of(value),
            "headers": headers,
        }  # fmt: skip
        rows = list(self.redact(change, seen).items())
        sentence = f"Produce a record to partition {index} of topic {topic}."
        return ChangePlan(change, seen, sentence, FactTable(("Part", "Value"), rows))

    def see(self, cluster: Cluster, change: Change) -> Seen:
        return see_topic(cluster, change["topic"])

    def apply(self, cluster: Cluster, change: Change) -> str:
        place = change["topic"], change["partition"]
        key, value = bytes_of("key", change["key"]), bytes_of("value", change["value"])
        now_ms = time.time_ns() // 1_000_000
        batch = pack([Record(0, now_ms, key, value, headers_of(change["headers"]))])
        node = leaders(cluster, [place[0]])[place]
        result = append(cluster, node, {place: batch})[place]
        check(f"partition {place[1]} of topic {place[0]}", result.code, result.message)
        return f"The record is at offset {result.base_offset} of partition {place[1]}."

    def redact(self, change: Change, seen: Seen) -> Change:
        def size(name: str) -> int | None:
            data = bytes_of(name, change[name])
            return None if data is None else len(data)

        found: dict[str, Any] = {"topic": change["topic"], "partition": change["partition"]}
        return found | {
            "key bytes": size("key"),
            "value bytes": size("value"),
            "headers": len(change["headers"]),
        }


def field_of(data: bytes | None) -> tuple[str, str]:
    """Return form and text of a field for bytes: as text only what a reader sees as it is, since
    browsers change the ends of lines, and some characters are invisible."""
    if data is None:
        return "null", ""
    text = text_of(data)
    if isinstance(text, str) and visible(text) == text:
        return "text", text
    return "base64", b64encode(data).decode()


def data_of(name: str, form: str, text: str) -> bytes | None:
    """Return the bytes of a field. RecordError."""
    if form == "null":
        return None
    if form == "base64":
        return from_base64(name, "".join(text.split()))
    return bytes_of(name, text.replace("\r\n", "\n"))
