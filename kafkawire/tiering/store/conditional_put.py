"""Check that a bucket obeys conditional PUTs, on which logs of log objects depend.

Storage that does not know the header `If-None-Match` may ignore it: then every PUT succeeds, and
two processes could store different records under one key.
"""

from __future__ import annotations

from kafkawire.manifest.keys import CONDITIONAL_PUT
from kafkawire.objectstore.errors import ConditionFailed, Refused
from kafkawire.tiering.store.port import ObjectStore

IGNORED = "ConditionIgnored"
"""Code of the error for storage without conditional PUTs."""


async def check_conditional_put(store: ObjectStore) -> None:
    """Raise Refused if a PUT that is allowed only if there is no object replaces one.

    The object stays, so that later checks need one request. Raises other StoreErrors if the check
    could not be made.
    """
    for _ in range(2):
        try:
            await store.put(CONDITIONAL_PUT, b"", if_absent=True)
        except ConditionFailed:
            return
    raise Refused(
        IGNORED,
        f"the remote tier replaced the object {CONDITIONAL_PUT!r} although the PUT was allowed "
        "only if there is none (If-None-Match): topics with durability=s3 would lose records "
        "there, use a storage with conditional PUT",
    )
