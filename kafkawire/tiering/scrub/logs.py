"""The check of log objects (durability=s3) in a scrub: those that are needed are there and, in a
deep scrub, sound; there are no others.

A log object is the only copy outside of the journals, so nothing here is repaired but orphans,
which are deleted as after a start. Released objects disappear while this runs: what seems to be
missing is compared with the row of its log again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kafkawire.log.append.object_sink import MAX_STORING
from kafkawire.log.io.ports import Env, LogError
from kafkawire.log.maintenance.log_orphans import is_orphan
from kafkawire.log.object_logs import ObjectLogs
from kafkawire.log.objects.format import read_frames, read_header, read_names
from kafkawire.log.objects.port import LogObjectStore
from kafkawire.manifest.keys import LOGS, log_object_key, log_prefix, parse_log_object_key
from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.objectstore.port import Listed, list_pages
from kafkawire.offsets.catalog.object_logs import ObjectLog
from kafkawire.plural import count
from kafkawire.tiering.scrub.plan import Finding, FindingKind


class LogCheck:
    """Checks the log objects of a broker, in all places that its logs are in. With `repair` it
    deletes orphans; those modified from `before_ms` on are not judged. `objects` and `size_bytes`:
    how many there are."""

    def __init__(self, env: Env, logs: ObjectLogs, repair: bool, before_ms: int) -> None:
        self._env = env
        self._logs = logs
        self._repair = repair
        self._before_ms = before_ms
        self.objects = 0
        self.size_bytes = 0

    async def run(self, deep: bool) -> list[Finding]:
        """Return the findings; `deep`: read every needed object. Raises SQL's errors."""
        rows = await self._logs.load()
        found: list[Finding] = []
        orphans = False
        for url in sorted({self._logs.stores.url, *(row.url for row in rows)}):
            here = {row.broker_epoch: row for row in rows if row.url == url}
            try:
                place = _Place(self._logs.stores.at(url), here)
                held = await self._listing(place, found)
                found += await self._missing(place, held)
                strange = await self._orphans(place, held)
                orphans = orphans or any(each.action for each in strange)
                found += strange
                if deep:
                    found += await self._find_damaged_objects(place, held)
            except (StoreError, ValueError) as failure:
                text = f"its log objects could not be checked: {failure}"
                found.append(Finding(FindingKind.UNREADABLE, url, text))
        if orphans and self._repair:
            await self._logs.orphans.run_once()
        return found

    async def _listing(self, place: _Place, found: list[Finding]) -> dict[int, dict[int, Listed]]:
        """Return the log objects of a place by broker epoch and sequence number."""
        held: dict[int, dict[int, Listed]] = defaultdict(dict)
        async for page in list_pages(place.store.list, LOGS):
            for listed in page:
                self.objects += 1
                self.size_bytes += listed.size_bytes
                parsed = parse_log_object_key(listed.key)
                if parsed is None:
                    text = "an object with an unknown name"
                    found.append(Finding(FindingKind.ORPHAN, listed.key, text))
                else:
                    held[parsed[0]][parsed[1]] = listed
            await self._env.slices.pause()
        return held

    async def _orphans(
        self, place: _Place, held: Mapping[int, Mapping[int, Listed]]
    ) -> list[Finding]:
        found = []
        for epoch, objects in held.items():
            row = place.rows.get(epoch)
            if row is None:
                # A fence alone is kept for a while after its log has ended.
                if len(objects) > 1:
                    text = f"{count(len(objects), 'object')} of a log that no row knows, kept"
                    found.append(Finding(FindingKind.ORPHAN, log_prefix(epoch), text))
                continue
            for sequence, listed in objects.items():
                old = listed.modified_ms < self._before_ms
                if old and is_orphan(row, sequence) and await _is_there(place.store, listed.key):
                    text = "a log object that is not needed"
                    action = f"{'will' if self._repair else 'would'} be deleted"
                    found.append(Finding(FindingKind.ORPHAN, listed.key, text, action))
        return found

    async def _missing(
        self, place: _Place, held: Mapping[int, Mapping[int, Listed]]
    ) -> list[Finding]:
        absent = [
            (epoch, sequence)
            for epoch, row in place.rows.items()
            for sequence in _absent(row, held.get(epoch, {}))
        ]
        if not absent:
            return []
        # Read again: objects are released, and deleted, while this runs.
        now = {row.broker_epoch: row.released for row in await self._logs.load()}
        text = (
            "a log object that is needed is gone: a start without the journals would lose records"
        )
        return [
            Finding(FindingKind.DANGLING, log_object_key(epoch, sequence), text)
            for epoch, sequence in absent
            if sequence >= now.get(epoch, sequence + 1)
        ]

    async def _find_damaged_objects(
        self, place: _Place, held: Mapping[int, Mapping[int, Listed]]
    ) -> list[Finding]:
        """Read the needed objects, one at a time: each may have a hundred megabytes."""
        found = []
        for epoch, row in place.rows.items():
            for sequence, listed in held.get(epoch, {}).items():
                if is_orphan(row, sequence):
                    continue
                try:
                    data, _ = await place.store.get(listed.key)
                    await self._env.offload.submit("files", _check_object, data, listed.key)
                # Released meanwhile, or reported by the next scrub.
                except NoSuchObject:
                    continue
                except LogError as damage:
                    found.append(Finding(FindingKind.FORMAT, listed.key, str(damage)))
        return found


async def _is_there(store: LogObjectStore, key: str) -> bool:
    """Return whether an object exists: it may have been released since it was listed."""
    try:
        await store.get(key, 0, 1)
    except NoSuchObject:
        return False
    return True


class _Place:
    """One place of logs. `rows`: of the logs there, by broker epoch."""

    def __init__(self, store: LogObjectStore, rows: Mapping[int, ObjectLog]) -> None:
        self.store = store
        self.rows = rows


def _absent(row: ObjectLog, held: Mapping[int, Listed]) -> Sequence[int]:
    end = row.ended
    # So many may be stored at a time, in any order: near the end of an open log one may be missing.
    if end is None:
        end = max(held, default=0) - MAX_STORING
    return [at for at in range(row.released, end) if at not in held]


def _check_object(data: bytes, key: str) -> None:
    """Check all bytes of a log object, in a thread. Raises LogError."""
    head = read_header(data, key)
    read_names(data, head)
    for _ in read_frames(memoryview(data), head):
        pass
