"""Changes of the catalog by this broker, one at a time, each planned with the newest catalog."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from kafkawire.metadata.store import CatalogChanged, MetadataError

if TYPE_CHECKING:
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.changes import CatalogChanges
    from kafkawire.metadata.store import Metadata

T = TypeVar("T")

ATTEMPTS = 20
"""How often a change is planned before the client gets an error: every attempt that fails is a
change of another broker that succeeded."""


class CatalogLock:
    """Serializes the changes of a broker's catalog: its own, and those that it follows. `apply`
    applies a part of the changes of other brokers."""

    def __init__(
        self,
        catalog: Catalog,
        metadata: Metadata,
        apply: Callable[[CatalogChanges], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._metadata = metadata
        self._apply = apply
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold the lock for a change that no other broker can conflict with."""
        async with self._lock:
            yield

    async def change(self, make: Callable[[int], Awaitable[T]]) -> T:
        """Run `make` with the catalog version that it must pass to the metadata. It is called again
        if another broker has changed the catalog meanwhile, so it must plan from the start. Raises
        MetadataError."""
        async with self._lock:
            if len(self._catalog.brokers) > 1:
                with contextlib.suppress(MetadataError):  # the change will fail and report it
                    await self._follow()
            for _ in range(ATTEMPTS):
                try:
                    return await make(self._catalog.stored_version)
                except CatalogChanged:
                    await self._follow()
            raise MetadataError(
                f"other brokers changed the catalog during each of {ATTEMPTS} attempts"
            )

    async def apply_changes(self) -> None:
        """Apply all changes that other brokers have made until now. Raises MetadataError."""
        async with self._lock:
            await self._follow()

    async def _follow(self) -> None:
        since = self._catalog.stored_version
        changes = await self._metadata.changes_since(since)
        version = changes.version
        if version < since:
            raise MetadataError(
                f"{self._metadata.name} has version {version} of the catalog, this broker has seen "
                f"{since}: it was replaced by an older copy; stop all brokers and restore it"
            )
        while version > since:
            await self._apply(changes)
            if changes.more is None:
                break
            changes = await self._metadata.changes_since(since, changes.more)
        self._catalog.note_version(version)
