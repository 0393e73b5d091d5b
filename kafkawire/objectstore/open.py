"""Open the provider of a tier's URL: the one place that knows which kinds there are."""

from __future__ import annotations

from kafkawire.objectstore.folder import FolderProvider
from kafkawire.objectstore.port import Provider
from kafkawire.objectstore.staging import OwnStaging
from kafkawire.objectstore.url import TierUrl


def make_provider(
    tier: TierUrl,
    part_bytes: int,
    calls: int,
    transfers: int,
    seen: bool = False,
    storage_class: str = "",
    storage_class_prefix: str = "",
) -> Provider:
    """Return the provider of a tier's URL, for so many calls at a time, and so many of those
    transfers of whole objects. `seen`: its bucket or folder was there, so it is not
    made again; `storage_class`: of the objects whose keys begin with
    `storage_class_prefix`. Raises Refused."""
    if tier.is_s3:
        from kafkawire.objectstore.s3 import S3Provider  # boto3 takes a while; a folder needs none

        return S3Provider(
            tier, part_bytes, calls, transfers, storage_class, storage_class_prefix, seen
        )
    return FolderProvider(tier.folder, OwnStaging(tier.folder, tier.create, seen))
