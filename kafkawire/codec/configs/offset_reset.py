"""Where a share group begins in a partition that it has not read before (KIP-932). Pure."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from kafkawire.codec.configs.parse import ConfigError
from kafkawire.codec.configs.share_rows import AUTO_OFFSET_RESET

_BY_DURATION = "by_duration:"
_DURATION = re.compile(  # as Java's Duration.parse, but without signs: it must not be negative
    r"P(?=.)(?:([0-9]{1,9})D)?(?:T(?=.)(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?"
    r"(?:([0-9]{1,9})(?:[.,]([0-9]{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)


class ResetKind(Enum):
    """The strategies of share.auto.offset.reset."""

    LATEST = "latest"
    EARLIEST = "earliest"
    BY_DURATION = "by_duration"


class OffsetReset(NamedTuple):
    """A strategy; `duration_ms`: of BY_DURATION, how long before now."""

    kind: ResetKind
    duration_ms: int = 0


def parse_offset_reset(text: str) -> OffsetReset:
    """Parse a value of share.auto.offset.reset. Raises ConfigError."""
    if text in (ResetKind.LATEST.value, ResetKind.EARLIEST.value):
        return OffsetReset(ResetKind(text))
    if text.startswith(_BY_DURATION):
        found = _DURATION.fullmatch(text[len(_BY_DURATION) :])
        if found is not None:
            days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
            whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
            millis = (found.group(5) or "").ljust(3, "0")[:3]
            return OffsetReset(ResetKind.BY_DURATION, whole * 1000 + int(millis))
    why = "it must be latest, earliest, or by_duration: and a duration in ISO 8601 like PT1H"
    raise ConfigError(AUTO_OFFSET_RESET, text, why)
