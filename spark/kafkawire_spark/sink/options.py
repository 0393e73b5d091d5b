"""The options of `df.write.format("kafkawire")`: those of Spark's Kafka sink, and some additions.
Pure.

Names are case-insensitive, as in Spark. An option of the producer that has no use here
(`kafka.linger.ms`) is accepted (`SinkOptions.unused`); one that this sink cannot obey is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kafkawire.codec.compression import CODEC_NAMES
from kafkawire.reading.model.source import SourceError

PROGRESS_TOPIC = "kafkawire-spark-progress"
"""Topic under which the number of committed micro-batches is kept as a group's offset. It has one
partition and no records; the written topics would show a lag that is none."""
ID_PREFIX = "kafkawire-spark-"
TIMEOUT_MS = 300_000
"""Default timeout of a transaction. It is open only while the driver sends staged batches; a driver
that was killed leaves it open until its next start, or for this long."""
BATCH_BYTES = 1_000_000
"""Default maximum size of a record batch: below Kafka's default of max.message.bytes (1,048,588)
also after compression of incompressible data."""
MAX_BATCH_BYTES = 64 << 20

_KNOWN = (
    "kafka.bootstrap.servers", "topic", "transactionalId", "batchId", "initialBatchId",
    "stagingLocation", "checkpointLocation", "progressTopic", "batchBytes",
    "kafka.compression.type", "kafka.transaction.timeout.ms", "includeHeaders",
)  # fmt: skip
_REFUSED = {
    "path": "the topic is the option topic, or a column",
    "kafka.transactional.id": "use transactionalId",
    "kafka.key.serializer": "keys are strings or bytes: convert the column",
    "kafka.value.serializer": "values are strings or bytes: convert the column",
    "kafka.interceptor.classes": "there is no Java producer that would call them",
    "kafka.partitioner.class": "use a column partition",
}
_FIXED = {"kafka.acks": ("all", "-1"), "kafka.enable.idempotence": ("true",)}
"""Options that a transaction decides."""
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[\w.-]+):\d{1,5}")
_ID = re.compile(r"[\w.:@/-]{1,200}")


class SinkError(SourceError):
    """Rows cannot be written; the text is one sentence for the user of the options."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Validated options. `topic`: "" if a column has it. `transactional_id`: "" for one derived
    from the query, or a random one. `batch_id`, `initial_batch_id`: None if not given."""

    bootstrap: str
    topic: str = ""
    transactional_id: str = ""
    batch_id: int | None = None
    initial_batch_id: int | None = None
    staging: str = ""
    progress_topic: str = PROGRESS_TOPIC
    batch_bytes: int = BATCH_BYTES
    codec: int = 0
    timeout_ms: int = TIMEOUT_MS
    unused: tuple[str, ...] = ()


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse options. Raises SinkError with a sentence that names the option, its value and what is
    allowed."""
    unused = _check_names(given)
    said = {name.lower(): value.strip() for name, value in given.items()}
    other = ("batchId", "initialBatchId")[0 if streaming else 1]
    if other.lower() in said:
        where = "a batch: a stream numbers its own" if streaming else "a stream"
        raise SinkError(f"{other} is an option of {where}")
    found = SinkOptions(
        bootstrap=_bootstrap(said),
        topic=said.get("topic", ""),
        transactional_id=_id(said),
        batch_id=_number(said, "batchId"),
        initial_batch_id=_number(said, "initialBatchId"),
        staging=_staging(said),
        progress_topic=said.get("progresstopic", PROGRESS_TOPIC),
        batch_bytes=_parse_bounded(said, "batchBytes", BATCH_BYTES, MAX_BATCH_BYTES),
        codec=_codec(said),
        timeout_ms=_parse_bounded(said, "kafka.transaction.timeout.ms", TIMEOUT_MS, (1 << 31) - 1),
        unused=unused,
    )
    if found.batch_id is not None and not found.transactional_id:
        raise SinkError(f"batchId={found.batch_id} needs transactionalId, which it is a number of")
    return found


def _check_names(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options without a use here. Raises SinkError for unknown and refused ones."""
    known = {name.lower(): name for name in _KNOWN}
    unused = []
    for name, value in given.items():
        lowered = name.lower()
        if lowered in known:
            continue
        if lowered in _REFUSED:
            raise SinkError(f"the option {name} is not supported: {_REFUSED[lowered]}")
        if lowered in _FIXED:
            if value.strip().lower() not in _FIXED[lowered]:
                raise SinkError(f"{name}={value} is not possible in a transaction")
            continue
        if lowered.startswith("kafka.security.") and value.upper() != "PLAINTEXT":
            raise SinkError(f"{name}={value} is not supported: only PLAINTEXT is spoken")
        if lowered.startswith("kafka."):
            unused.append(name)
            continue
        near = difflib.get_close_matches(lowered, known, n=1)
        hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(_KNOWN)}"
        raise SinkError(f"there is no option {name!r} for writing: {hint}")
    return tuple(sorted(unused))


def _bootstrap(said: Mapping[str, str]) -> str:
    text = said.get("kafka.bootstrap.servers", "")
    if not text:
        raise SinkError("give the option kafka.bootstrap.servers (HOST:PORT[,HOST:PORT...])")
    if not all(_ADDRESS.fullmatch(part.strip()) for part in text.split(",")):
        raise SinkError(f"kafka.bootstrap.servers={text!r} is not HOST:PORT[,HOST:PORT...]")
    return text


def _id(said: Mapping[str, str]) -> str:
    text = said.get("transactionalid", "")
    if "transactionalid" in said and not _ID.fullmatch(text):
        raise SinkError(
            f"transactionalId={text!r} is not 1 to 200 letters, digits and any of . _ - : @ /"
        )
    return text


def _staging(said: Mapping[str, str]) -> str:
    """Return where tasks stage files: `stagingLocation`, or in the checkpoint if it is in a folder
    or bucket that Python can write to, else "" for nowhere."""
    text = said.get("staginglocation", "")
    if text:
        if not (text.startswith("/") or "://" in text):
            raise SinkError(
                f"stagingLocation={text!r} is neither s3://BUCKET/PREFIX nor a folder by its whole "
                "path (tasks run in folders of their own)"
            )
        return text
    checkpoint = said.get("checkpointlocation", "").rstrip("/")
    if checkpoint.startswith("file:"):
        checkpoint = "/" + checkpoint.removeprefix("file:").lstrip("/")
    return f"{checkpoint}/kafkawire" if checkpoint.startswith("/") else ""


def _codec(said: Mapping[str, str]) -> int:
    text = said.get("kafka.compression.type", "none").lower()
    if text not in CODEC_NAMES:
        raise SinkError(f"kafka.compression.type={text!r} is not one of {', '.join(CODEC_NAMES)}")
    return CODEC_NAMES.index(text)


def _number(said: Mapping[str, str], name: str) -> int | None:
    text = said.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,18}", text):
        raise SinkError(f"{name}={text!r} is not a whole number of 0 or more")
    return int(text)


def _parse_bounded(said: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = said.get(name.lower())
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,18}", text) or not 0 < int(text) <= most:
        raise SinkError(f"{name}={text!r} is not a whole number from 1 to {most}")
    return int(text)
