"""The remote tier as the log sees it: empty until the broker attaches one.

Created before the parts of the log that read or remove segments and passed to each of them; the
tier itself is above the log (kafkawire.tiering.service) and attaches its parts here when it starts.
Without one, a segment without a local file can neither be read nor merged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Set

from kafkawire.log.segments.store.localizer_port import Localizer
from kafkawire.log.segments.store.remote_port import Cold
from kafkawire.log.segments.store.segment_store import Segment, not_local


class RemoteTier:
    """The remote tier as the log sees it, empty until the broker attaches one. `cold` reads
    segments of the remote tier; `localizer` downloads their files; `relief` removes local files of
    uploaded segments when the disk fills up; `hurry` uploads segments of some partitions as soon as
    possible. Each is None while nothing is attached."""

    __slots__ = ("cold", "hurry", "localizer", "relief")

    def __init__(self) -> None:
        self.cold: Cold | None = None
        self.localizer: Localizer | None = None
        self.relief: Callable[[], Awaitable[None]] | None = None
        self.hurry: Callable[[Set[int]], None] | None = None

    def attach_uploads(self, hurry: Callable[[Set[int]], None]) -> None:
        """Have `hurry` upload the segments of some partitions as soon as possible."""
        self.hurry = hurry

    def attach_reader(self, cold: Cold) -> None:
        """Read segments without a local file through `cold` from now on."""
        self.cold = cold

    def attach_files(
        self, localizer: Localizer, relief: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Download and remove local files through these from now on."""
        self.localizer, self.relief = localizer, relief

    def detach_files(self) -> None:
        """Stop downloading and removing local files: local retention has ended."""
        self.localizer = self.relief = None

    async def have_files(self, segments: Collection[Segment]) -> None:
        """Return when all of these, which the caller keeps pinned, have a file for the worker.

        NotLocal if one has none and no tier is attached; raises as `Localizer.localize`.
        """
        away = [segment for segment in segments if not segment.row.local]
        if away and self.localizer is None:
            raise not_local(away[0])
        if away and self.localizer is not None:
            await self.localizer.localize(away)
