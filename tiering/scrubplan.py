"""What a scrub compares, and what follows: bucket, rows and manifest must say the same. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What was found to be wrong."""

    ORPHAN = "orphan"
    """An object without a row: nobody will ever read or delete it."""
    DANGLING = "dangling"
    """A row that is finished, and no object: what is in it cannot be read from the tier."""
    SIZE = "size"
    """An object of another size than its row says."""
    FORMAT = "format"
    """An object whose header, trailer, directory or (deep) batches are not as written."""
    UNNAMED = "unnamed"
    """A finished object that the manifest does not name: a restore would miss it."""
    NAMED = "named"
    """An object that the manifest names and no row does: a restore would bring it back."""
    UNREADABLE = "unreadable"
    """The manifest itself, or a request that failed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `key`: of the object; `text`: a sentence; `action`: what was done
    about it or, dry, would be ("" where only a person can do something)."""

    kind: Kind
    key: str
    text: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """How far a scrub is: `what` is worked on, how many of them are done, how many there are (0:
    not known)."""

    what: str
    done: int
    of: int


@dataclass(slots=True)
class ScrubReport:
    """The end of a scrub. `objects` and `bytes`: in the bucket; `rows`: of objects; `more`: found
    beyond FINDINGS_AT_MOST, and not listed."""

    findings: list[Finding] = field(default_factory=list)
    objects: int = 0
    rows: int = 0
    bytes: int = 0
    more: int = 0
    repaired: bool = False
