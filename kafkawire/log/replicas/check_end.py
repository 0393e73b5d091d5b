"""Check a recovered log with the copies of followers, before anything is done with it.

Everything that was acknowledged is in the journals of the folder and at the followers in the stored
set. If the folder lacks some of it, as after damage to a file, or when an older copy of the volume
was restored, a follower has it: the start is repeated with a follower's copy instead of this
folder. Otherwise followers would cut their copies where this log ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.log.io.ports import LogError
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK
from kafkawire.log.replicas.network import Network
from kafkawire.log.replicas.source import CopyReader, list_copies
from kafkawire.log_lines import address_of
from kafkawire.offsets.catalog.replica_sets import FollowerRow


class LogBehindCopies(LogError):
    """Followers have acknowledged records that the journals of this folder lack."""


async def check_end(
    network: Network,
    reader: CopyReader,
    epoch: int,
    members: Sequence[FollowerRow],
    end: int,
) -> None:
    """Raise LogBehindCopies if a log that ends at the log position `end` lacks something that one
    of the followers knows as committed. `epoch`: that of the process whose log it is."""

    # A follower that does not answer compares by itself when the log is sent to it.
    copies = await list_copies(network, reader, members, epoch)
    for follower, copy in zip(members, copies, strict=True):
        position = 0 if copy is None else copy.committed
        if position > end:
            raise LogBehindCopies(
                f"the log of broker {reader.node_id} ends at {_text(end)}, and the follower at "
                f"{address_of(follower.host, follower.port)} has records up to {_text(position)} "
                "that were acknowledged: files of this folder were damaged, or are an older copy"
            )


def damaged(node_id: int) -> LogBehindCopies:
    """Return the reason for not using a folder whose recovery has found damage."""
    return LogBehindCopies(
        f"journals of broker {node_id} are damaged, and followers have intact copies of them"
    )


def _text(position: int) -> str:
    return f"byte {position & POSITION_MASK} of journal {position >> POSITION_BITS}"
