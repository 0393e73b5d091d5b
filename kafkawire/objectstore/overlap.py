"""Check whether tiers and the data folder of a broker share files or objects.

A scrub of a tier deletes unknown objects, and a data folder is read and cleaned as a whole, so none
of them may contain another. Symbolic links are followed. Called at the start of a broker, by a move
and by the command line.
"""

from __future__ import annotations

import os.path

from kafkawire.objectstore.url import TierUrl, parse_tier


def within(first: str, second: str) -> bool:
    """Return whether one of two folders is the other one or is inside it, links followed."""
    one, other = os.path.realpath(first), os.path.realpath(second)
    return os.path.commonpath((one, other)) in (one, other)


def overlap(first: str, second: str) -> bool:
    """Return whether two tiers, by their URLs, share keys: they are equal, or one is inside the
    other. An invalid URL, from an older version, overlaps with nothing."""
    try:
        one, other = parse_tier(first), parse_tier(second)
    except ValueError:
        return False
    if (one.scheme, one.bucket, one.endpoint) != (other.scheme, other.bucket, other.endpoint):
        return False
    if one.folder:
        return within(one.folder, other.folder)
    short, long = sorted((_folder(one), _folder(other)), key=len)
    return long.startswith(short)


def same_place(first: str, second: str) -> bool:
    """Return whether two URLs are of one tier, possibly with different options."""
    try:
        one, other = parse_tier(first), parse_tier(second)
    except ValueError:
        return False
    return _identity(one) == _identity(other)


def tier_in_data(tier: str, data: str) -> bool:
    """Return whether the tier of a URL and a data folder share files."""
    url = parse_tier(tier)
    return bool(url.folder) and within(url.folder, data)


def _folder(url: TierUrl) -> str:
    return f"{url.prefix}/" if url.prefix else ""


def _identity(url: TierUrl) -> tuple[str, str, str | None, str, str]:
    """Return what two URLs of one tier have in common."""
    folder = os.path.realpath(url.folder) if url.folder else ""
    return url.scheme, url.bucket, url.endpoint, url.prefix, folder
