"""Open the place of a URL: a folder or a bucket."""

from __future__ import annotations

from kafkawire.extras import need
from kafkawire.objectstore.url import parse_tier
from kafkawire.reading.files.locations import FolderPlace, Place, PlaceError, PluggedPlace


def open_place(url: str, what: str = "tier") -> Place:
    """Return the place of a URL without reading anything. Raises PlaceError for an invalid URL,
    which names the location by `what`."""
    try:
        tier = parse_tier(url, what=what)
    except ValueError as problem:
        raise PlaceError(str(problem)) from None
    if tier.is_s3:
        need("s3", tier.url)
        from kafkawire.reading.files.bucket import (
            BucketPlace,  # importing boto3 takes a third of a second
        )

        return BucketPlace(tier)
    if tier.is_bucket:
        return PluggedPlace(tier)
    return FolderPlace(tier)
