"""Checks of what is relied on in a storage: conditional PUTs, and listings by key."""

from __future__ import annotations

from kafkawire.manifest.keys import CONDITIONAL_PUT
from kafkawire.objectstore.errors import ConditionFailed, Refused
from kafkawire.tiering.store.port import ObjectStore

IGNORED = "ConditionIgnored"
"""Code of the error for storage without conditional PUTs."""
LISTED = 2
"""Two pages of so many objects show whether a page follows another."""


async def check_conditional_put(store: ObjectStore) -> None:
    """Raise Refused if a PUT that is allowed only if there is no object replaces one. Raises other
    StoreErrors if the check could not be made."""
    # Storage that does not know the header `If-None-Match` may ignore it: then every PUT succeeds,
    # and two processes could store different records under one key, or both own a tier. The object
    # stays, so that later checks need one request.
    for _ in range(2):
        try:
            await store.put(CONDITIONAL_PUT, b"", if_absent=True)
        except ConditionFailed:
            return
    raise Refused(
        IGNORED,
        f"the remote tier replaced the object {CONDITIONAL_PUT!r} although the PUT was allowed "
        "only if there is none (If-None-Match): two brokers could overwrite each other's objects "
        "there, and topics with durability=s3 would lose records, use a storage with conditional "
        "PUT",
    )


async def check_listing(store: ObjectStore) -> None:
    """Raise Refused if the pages of a listing do not advance by key. Raises other StoreErrors if
    the check could not be made."""
    page = await store.list("", "", LISTED)
    if page:
        after = page[-1].key
        following = await store.list("", after, LISTED)
        if following and following[0].key <= after:
            raise Refused(
                "UnorderedListing",
                f"the remote tier lists {following[0].key!r} after {after!r}: restores would not "
                "end, use a storage that lists objects by key",
            )
