"""The manifests at a URL, read once and then refreshed incrementally."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import CURRENT, DELTAS, SNAPSHOTS, delta_key, sequence_of
from kafkawire.manifest.reader import LostManifest, NoManifest, read_manifest, refresh_manifest
from kafkawire.reading.files.broker_queries import BrokerQueries
from kafkawire.reading.files.data_folder import tiers_of
from kafkawire.reading.files.locations import FolderPlace, Place
from kafkawire.reading.files.open import open_place
from kafkawire.reading.files.spans import Sheet
from kafkawire.reading.model.source import Damaged, SourceError

logger = logging.getLogger(__name__)

PASSES = 20
"""How often several manifests are read until no deletion is new. Brokers write at most one delta a
second, and one with deletions every few seconds."""
SEARCH_INTERVAL_S = 60.0
"""Minimum time between two searches for the folders of brokers in a tier that is refreshed: a
LIST request costs as much as a dozen GETs."""
AT_ONCE = 32
"""Deltas fetched concurrently with a snapshot: an hour has hundreds, each is one round trip, and a
client keeps more connections."""


class NothingThere(SourceError):
    """There is no manifest yet."""


class Holding(NamedTuple):
    """A place with a manifest and its contents. `earlier`: the manifest as it was before the others
    of the same tier were read; `searched_s`: when a tier was searched for the folders of brokers
    (monotonic)."""

    place: Place
    sheet: Sheet
    earlier: Manifest | None = None
    searched_s: float = 0.0

    @property
    def manifest(self) -> Manifest:
        """Return the manifest as last read."""
        return self.sheet.manifest

    def uploaded_end(self, number: int) -> int:
        """Return the end of a partition up to which the manifests of a tier have all objects."""
        row = (self.earlier or self.manifest).get_partition(number)
        return 0 if row is None else row.end


def open_holdings(url: str) -> list[Holding]:
    """Open the manifests of a tier, one for each of its brokers, that of a broker's folder, or
    those of all brokers of a data folder.

    Raises NothingThere if there is none, SourceError if one cannot be read.
    """
    place = open_place(url)
    if not isinstance(place, FolderPlace) or has_manifest(place):
        return refresh_consistently(_in_tier(place))
    found = _in_brokers(place) or broker_folders(place)
    if not found:
        raise NothingThere(
            f"{url} has no manifest, neither as a tier or a broker's folder (manifest/current) "
            "nor as a data folder (brokers/*/manifest/current)"
        )
    return refresh_consistently([Holding(each, Sheet(_read(each))) for each in found])


def _in_tier(place: Place) -> list[Holding]:
    """Read the manifests of a tier: its own and those in the folders of brokers. Raises
    NothingThere if there is none."""
    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(broker_folders, place)
        try:
            own = [Holding(place, Sheet(_read(place)), searched_s=time.monotonic())]
        except NothingThere:
            if not searching.result():
                raise
            own = []
        return [*own, *(Holding(each, Sheet(_read(each))) for each in searching.result())]


def refresh_consistently(holdings: Sequence[Holding]) -> list[Holding]:
    """Return the contents of several manifests that belong together.

    An object is deleted after the one that replaces it is in a manifest, perhaps another broker's,
    and the end of a partition is published after the objects below it. So all manifests are read
    until none has a new deletion, and ends are those before the last pass: then they name all
    objects below the ends. Raises SourceError.
    """
    known = list(holdings)
    if len(known) < 2:
        return known
    with ThreadPoolExecutor(min(len(known), AT_ONCE)) as pool:
        for done in range(PASSES):
            now = list(pool.map(refresh_holding, known))
            pairs = list(zip(known, now, strict=True))
            same = all(new.manifest is old.manifest for old, new in pairs)
            gone = any(new.manifest.deleted.keys() - old.manifest.deleted for old, new in pairs)
            if same or (done and not gone):
                return [
                    new if new.manifest is old.manifest else new._replace(earlier=old.manifest)
                    for old, new in pairs
                ]
            known = now
    raise SourceError(
        f"the {len(known)} manifests of {known[0].place.url} change faster than they can be read"
    )


def refresh_together(holdings: Sequence[Holding]) -> list[Holding]:
    """Return the current manifests of a source; the same objects if nothing is new. A tier is
    searched for the folders of other brokers each SEARCH_INTERVAL_S."""
    now: list[Holding] = []
    known = {holding.place.url for holding in holdings}
    for holding in holdings:
        if holding.searched_s and holding.searched_s + SEARCH_INTERVAL_S < time.monotonic():
            new = [each for each in broker_folders(holding.place) if each.url not in known]
            now += [Holding(each, Sheet(_read(each))) for each in new]
            holding = holding._replace(searched_s=time.monotonic())
        now.append(holding)
    if len(now) > 1:
        return refresh_consistently(now)
    return [refresh_holding(holding) for holding in now]


def lacks_whole_tier(holdings: Sequence[Holding], url: str) -> bool:
    """Return whether there are manifests of brokers' folders in a tier, other than at `url`, that
    has no manifest itself yet."""
    known = {holding.place.url for holding in holdings}
    whole = {whole_tier(holding.place).url for holding in holdings}
    return not whole <= known and bool(url) and open_place(url).url not in known


def shared_ends(held: Sequence[tuple[Holding, int]]) -> list[int]:
    """Return the end of one partition (by its number) for each of these manifests. Those of one
    tier have a common end: the broker that leads the partition publishes it, also for objects that
    a previous leader has uploaded."""
    tiers = [whole_tier(holding.place).url for holding, _ in held]
    ends = []
    for (holding, number), tier in zip(held, tiers, strict=True):
        others = [each for each, other in zip(held, tiers, strict=True) if other == tier]
        row = holding.manifest.get_partition(number)
        alone = 0 if row is None else row.end
        ends.append(max(h.uploaded_end(n) for h, n in others) if len(others) > 1 else alone)
    return ends


class UnreadableTier(NamedTuple):
    """A tier that cannot be read now, and why."""

    url: str
    reason: str


def tier_holdings(holdings: Sequence[Holding]) -> tuple[list[Holding], list[UnreadableTier]]:
    """Return the manifests of the tiers of these data folders, and the tiers that cannot be
    read."""
    found: list[Holding] = []
    failed: list[UnreadableTier] = []
    clusters = {holding.manifest.state.cluster_id for holding in holdings}
    folders = [each.place for each in holdings if isinstance(each.place, FolderPlace)]
    known = {place.url for place in folders}
    for url in dict.fromkeys(url for place in folders for url in tiers_of(place)):
        try:
            place = open_place(url)
            if place.url in known:
                continue
            searched_s = time.monotonic() if whole_tier(place) is place else 0.0
            holding = Holding(place, Sheet(_read(place)), searched_s=searched_s)
        except NothingThere:
            continue  # no uploads yet
        except SourceError as failure:
            logger.warning("the tier %s cannot be read: %s", url, failure)
            failed.append(UnreadableTier(url, str(failure)))
            continue
        if holding.manifest.state.cluster_id in clusters:
            found.append(holding)
    return refresh_consistently(found), failed


def readable_holdings(broker: BrokerQueries) -> list[Holding]:
    """Return the manifests of the broker's own segments and of its tier, as far as they can be read
    from here: local files first. A broker on another machine, or one that is not kafkawire, has
    none."""
    tier, folders = broker.segments()
    urls = [folder for folder in folders if os.path.isabs(folder)] + ([tier] if tier else [])
    cluster = broker.cluster_id()
    found: list[Holding] = []
    for url in urls:
        try:
            holdings = _in_tier(open_place(url))
        except NothingThere:
            continue
        except SourceError as failure:
            logger.warning("%s is read through the broker: %s", url, failure)
            continue
        found += [each for each in holdings if each.manifest.state.cluster_id == cluster]
    return refresh_consistently(found)


def refresh_holding(holding: Holding) -> Holding:
    """Current manifest; the same object if nothing is new."""
    known = holding.manifest
    manifest = _reading(holding.place, lambda get: refresh_manifest(known, get))
    if manifest is known:
        return holding if holding.earlier is None else holding._replace(earlier=None)
    return Holding(holding.place, Sheet(manifest), searched_s=holding.searched_s)


def _in_brokers(place: FolderPlace) -> list[Place]:
    folder = os.path.join(place.tier.folder, "brokers")
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = [open_place(os.path.join(folder, name)) for name in names]
    return [each for each in found if has_manifest(each)]


def _read(place: Place) -> Manifest:
    return _reading(place, read_manifest)


def _reading(place: Place, read: Callable[[Callable[[str], bytes]], Manifest]) -> Manifest:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return read(_Ahead(place, pool).get)
        except NoManifest:
            raise NothingThere(
                f"{place.url} has no manifest (manifest/current): nothing was uploaded there yet, "
                "or the URL is not that of the tier"
            ) from None
        except (LostManifest, FormatError) as failure:
            kind = SourceError if isinstance(failure, NewerFormatError) else Damaged
            raise kind(f"{place.url}: {failure}") from None


class _Ahead:
    """Prefetches the objects that are read next, so that a manifest with few deltas takes three
    round trips: `current` and a list of the deltas; the snapshot, the deltas after it, and the one
    that does not exist yet; `current` again."""

    def __init__(self, place: Place, pool: ThreadPoolExecutor) -> None:
        self._place = place
        self._pool = pool
        self._begun = isinstance(place, FolderPlace)
        self._listing: Future[list[int]] | None = None
        self._coming: dict[str, Future[bytes]] = {}

    def get(self, key: str) -> bytes:
        """Get an object like Place.get."""
        if key in self._coming:
            return self._coming.pop(key).result()
        if key == CURRENT and not self._begun:
            self._listing = self._pool.submit(self._list_deltas)
        self._begun = True
        if key.startswith(SNAPSHOTS):
            self._fetch_behind(key)
            return self._place.get(key)
        data = self._place.get(key)
        if key.startswith(DELTAS):  # new deltas exist
            self._fetch_behind(key)
        return data

    def _list_deltas(self) -> list[int]:
        """Return the sequence numbers of all deltas."""
        found = map(sequence_of, self._place.list(DELTAS))
        return [number for number in found if number is not None]

    def _fetch_behind(self, key: str) -> None:
        """Fetch the deltas after a snapshot or delta, unless that was done, and the next one, which
        is missing at the time of the request; `current` is read later."""
        if self._coming or isinstance(self._place, FolderPlace):
            return
        known, self._listing = self._listing, None
        last = sequence_of(key) or 0
        later = [each for each in (known.result() if known else self._list_deltas()) if each > last]
        for number in (*later, max(later, default=last) + 1):
            wanted = delta_key(number)
            self._coming[wanted] = self._pool.submit(self._place.get, wanted)


# The folders `nodes/<node id>` of a tier: each has the manifest and the objects of one of the
# brokers of a cluster that use the tier together. The first broker writes to the tier itself.

NODES = "nodes"
AFTER_SLASH = "0"
"""The character after the slash: keys from there on are not in a folder."""
MAX_FOLDERS = 10_000
"""Far more than brokers of a cluster; a listing that never ends is not kafkawire's."""


def whole_tier(place: Place) -> Place:
    """Return the tier that a place is a broker's folder of; the place itself if it is none."""
    parent, _, node = place.tier.path.rpartition("/")
    if not node.isdigit() or parent.rpartition("/")[2] != NODES:
        return place
    outer = place.tier.outside(f"{NODES}/{node}")
    return place if outer is None else replace(place, tier=outer)


def broker_folders(place: Place) -> list[Place]:
    """Return the folders of brokers in a tier that have a manifest, by node id: one LIST request,
    and two more for each folder. Raises PlaceError."""
    nodes = _local_nodes(place) if isinstance(place, FolderPlace) else _listed_nodes(place)
    if not nodes:
        return []
    found = [replace(place, tier=place.tier.inside(f"{NODES}/{node}")) for node in sorted(nodes)]
    with ThreadPoolExecutor(min(len(found), 32)) as pool:
        there = list(pool.map(has_manifest, found))
    return [each for each, is_there in zip(found, there, strict=True) if is_there]


def has_manifest(place: Place) -> bool:
    """Return whether there is a manifest at a place."""
    try:
        return place.size(CURRENT) >= 0
    except FileNotFoundError:
        return False


def _local_nodes(place: FolderPlace) -> list[int]:
    try:
        names = os.listdir(os.path.join(place.tier.folder, NODES))
    except OSError:
        return []
    return [int(name) for name in names if _is_node(name)]


def _listed_nodes(place: Place) -> list[int]:
    """Find the folders by listing one key of each: they may have a million."""
    prefix, after = f"{NODES}/", ""
    nodes: list[int] = []
    for _ in range(MAX_FOLDERS):
        key = place.first_key(prefix, after)
        if key is None:
            break
        name = key[len(prefix) :].partition("/")[0]
        if _is_node(name):
            nodes.append(int(name))
        after = f"{prefix}{name}{AFTER_SLASH}"
    return nodes


def _is_node(name: str) -> bool:
    return name.isascii() and name.isdigit() and str(int(name)) == name
