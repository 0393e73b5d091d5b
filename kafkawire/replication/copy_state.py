"""The state of a copy, in its file `copy`: its epochs, and how much of it is durable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kafkawire.replication import sealed_file
from kafkawire.replication.failures import FollowerError
from kafkawire.replication.machine import Files

NAME = "copy"
"""The file of a copy's folder that has its state."""
NO_LIMIT = (1 << 63) - 1
MAX_LINEAGE = 100
"""Number of earlier epochs in the state of a copy. A start requests the log of the last one, or of
one of a few before it if starts failed."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """The state of a copy of the log that a broker has written in `epoch`.

    `lineage`: (epoch, position) of each earlier epoch, in order, whose log this one continues: both
    have the same bytes before that log position. Journals below `first` are not needed. Before
    `durable` everything is on the disk; `committed` is the best known committed log position of the
    broker. `cut`: bytes from this log position on have been replaced by those of `epoch`; while the
    folder has the name of another epoch, they may still be there. `begun`: the epoch that `epoch`
    continues, and where, as its process has sent them; None: not known.
    """

    epoch: int
    first: int
    durable: int
    committed: int = 0
    lineage: tuple[tuple[int, int], ...] = ()
    cut: int | None = None
    begun: tuple[int, int] | None = None

    def common(self, epoch: int) -> int | None:
        """Return the log position before which this copy has the bytes of the log of an epoch; None
        if they are different logs."""
        return NO_LIMIT if epoch == self.epoch else dict(self.lineage).get(epoch)

    def continued(self, epoch: int, continues: int, at: int) -> CopyState:
        """Return the state after a higher epoch has continued the log of `continues` at a log
        position. That log may have been continued by this copy's epoch at a lower one, in which
        case the bytes after that are not the same either."""
        common = self.common(continues)
        cut = min(at, NO_LIMIT if common is None else common)
        earlier = [(each, min(end, at)) for each, end in self.lineage if each < continues]
        return replace(
            self,
            epoch=epoch,
            durable=min(self.durable, cut),
            committed=min(self.committed, cut),
            lineage=(*earlier, (continues, at))[-MAX_LINEAGE:],
            cut=cut,
            begun=(continues, at),
        )


def save(files: Files, folder: str, state: CopyState) -> None:
    """Store the state of the copy in a folder durably. Raises OSError, DiskFailed."""
    content = {
        "epoch": state.epoch,
        "first": state.first,
        "durable": state.durable,
        "committed": state.committed,
        "lineage": state.lineage,
        "cut": state.cut,
        "begun": state.begun,
    }
    sealed_file.save(files, f"{folder}/{NAME}", content)


def load(files: Files, folder: str) -> CopyState:
    """Return the state of the copy in a folder. Raises OSError, FollowerError if it is damaged
    or missing."""
    content: dict[str, Any] | None = sealed_file.load(files, f"{folder}/{NAME}")
    if content is None:
        raise FollowerError(f"{folder}/{NAME} is missing")
    begun = content.get("begun")  # not in files of earlier versions
    return CopyState(
        content["epoch"],
        content["first"],
        content["durable"],
        content["committed"],
        tuple((epoch, end) for epoch, end in content["lineage"]),
        content["cut"],
        None if begun is None else (begun[0], begun[1]),
    )
