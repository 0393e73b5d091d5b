"""Open the provider of a tier's URL, the only module that knows all kinds of providers."""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING

from kafkawire.objectstore.errors import Refused, StoreError
from kafkawire.objectstore.folder import FolderProvider
from kafkawire.objectstore.port import Opening, Provider
from kafkawire.objectstore.staging import OwnStaging, SharedStaging
from kafkawire.objectstore.url import TierUrl
from kafkawire.plugins import STORES, describe_plugin, load_plugin, sentence_of

if TYPE_CHECKING:
    import boto3

    from kafkawire.objectstore.s3 import S3Provider

_opening = Lock()
_sessions: dict[tuple[object, ...], boto3.session.Session] = {}
_buckets: dict[tuple[object, ...], S3Provider] = {}
_plugged: dict[tuple[object, ...], Provider] = {}


def make_provider(
    tier: TierUrl,
    part_bytes: int,
    calls: int,
    transfers: int,
    seen: bool = False,
    storage_class: str = "",
    storage_class_prefix: str = "",
) -> Provider:
    """Return the provider of a tier's URL, for this many concurrent calls, of which `transfers` may
    move whole objects. `seen`: its bucket or folder existed before, so it is not created again;
    `storage_class`: of objects whose keys begin with `storage_class_prefix`. Raises Refused."""
    if tier.is_s3:
        # importing boto3 takes long; a folder does not need it
        from kafkawire.objectstore.s3 import S3Provider

        return S3Provider(
            tier, part_bytes, calls, transfers, storage_class, storage_class_prefix, seen
        )
    if tier.is_bucket:
        return _open_plugged(tier, Opening(part_bytes, calls, transfers, seen))
    return FolderProvider(tier.folder, OwnStaging(tier.folder, tier.create, seen))


def shared_bucket(tier: TierUrl, calls: int, max_get_bytes: int) -> S3Provider:
    """Return the provider of a bucket that all readers in this process share, because a worker of
    Spark runs many tasks. Does not create the bucket. Raises StoreError."""
    import boto3

    from kafkawire.objectstore.s3 import S3Provider

    # The process, because a child must not use its parent's connections, and the environment that
    # boto3 reads.
    variables = sorted((name, value) for name, value in os.environ.items() if name[:4] == "AWS_")
    environment = os.getpid(), *variables
    with _opening:
        found = _buckets.get((tier, *environment))
        if found is None:
            session = _sessions.get(environment) or boto3.session.Session()
            found = S3Provider(
                tier, 0, calls, 0, seen=True, session=session, max_get_bytes=max_get_bytes
            )
            _sessions[environment], _buckets[tier, *environment] = session, found
        return found


def shared_plugged(tier: TierUrl, calls: int, max_get_bytes: int) -> Provider:
    """Return the provider of a plug-in's store that all readers in this process share. Does not
    create the bucket. Raises StoreError."""
    with _opening:
        where = os.getpid(), tier
        found = _plugged.get(where)
        if found is None:
            found = _plugged[where] = _open_plugged(tier, Opening(0, calls, 0, True, max_get_bytes))
        return found


def _open_plugged(tier: TierUrl, opening: Opening) -> Provider:
    """Return the provider of a plug-in's store. Raises StoreError."""
    try:
        provider: Provider = load_plugin(STORES, tier.scheme).open(tier, opening)
    except StoreError:
        raise
    except Exception as failure:
        what = describe_plugin(STORES, tier.scheme)
        raise Refused("Plugin", f"{what} cannot open {tier.url}: {sentence_of(failure)}") from None
    return provider


def shared_folder(tier: TierUrl, max_get_bytes: int) -> FolderProvider:
    """Return a provider of a folder to which others may write, too."""
    return FolderProvider(tier.folder, SharedStaging(), max_get_bytes)
