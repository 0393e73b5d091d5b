"""The identity of a data folder: which cluster and which metadata it belongs to.

`<home>/identity` is one line of JSON and its checksum, replaced by a rename. SQL has the same
`metadata_id` and a `generation` (kafkawire.metadata.pairing). Older metadata is an old copy,
metadata with another id belongs to another folder; `check_pairing` refuses both in a sentence that
names the command to repair it.

Format version 1.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from kafkawire.log.io.ports import Env, FileSystem, LogError
from kafkawire.log.journal.run_file import read_json_line, write_json_line
from kafkawire.metadata import pairing
from kafkawire.metadata.pairing import SeenInSql, StoredPairing
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import OlderMetadata, Transactions

logger = logging.getLogger(__name__)

NAME = "identity"
VERSION = 1
MAX_IDENTITY_BYTES = 4096
"""A line of short fields and a URL of 2,000 characters at most; a longer one is damaged."""
SPACING_S = 1.0
"""Between two recorded generations: two fsyncs and a small transaction a second at most."""
CHECK_S = 1.0
"""Between two comparisons of the database with what was seen there: two small queries. So long
a broker may acknowledge records after its database was replaced by an older copy; they stay in the
journals."""


class IdentityError(LogError):
    """Data folder, metadata and remote tier do not belong together."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity file of a data folder. `metadata_id`: 32 hex digits, as SQL has it;
    `generation`: the newest one of SQL that is known to be durable; `tier`: URL of the last remote
    tier, if any."""

    cluster_id: str
    node_id: int
    metadata_id: str
    generation: int
    tier: str = ""


@dataclass(frozen=True, slots=True)
class Folder:
    """A broker's data folder as a start finds it. `data`: as given on the command line;
    `has_log`: whether there are journals or segments."""

    data: str
    node_id: int
    identity: Identity | None
    has_log: bool


def read_identity(fs: FileSystem, home: str) -> Identity | None:
    """Read the identity of a broker's folder; None if there is none or it is damaged.

    JournalFormatError if a newer version wrote it."""
    path = os.path.join(home, NAME)
    try:
        body = read_json_line(fs, path, VERSION, MAX_IDENTITY_BYTES)
        if body is None:
            return None
        return Identity(
            str(body["cluster_id"]),
            int(body["node_id"]),
            bytes.fromhex(body["metadata_id"]).hex(),
            int(body["generation"]),
            str(body.get("tier", "")),
        )
    except (ValueError, KeyError, TypeError) as failure:
        logger.warning("%s is damaged (%s), writing it again", path, failure)
        return None


def write_identity(fs: FileSystem, home: str, identity: Identity) -> None:
    """Replace the file, durably. If it raises OSError the old one is still there."""
    write_json_line(fs, os.path.join(home, NAME), VERSION, asdict(identity))


def has_log(fs: FileSystem, home: str) -> bool:
    for folder, suffix in (("journals", ".journal"), ("segments", ".segment")):
        try:
            names = fs.listdir(os.path.join(home, folder))
        except FileNotFoundError:
            continue
        if any(name.endswith(suffix) for name in names):
            return True
    return False


def inspect_folder(fs: FileSystem, data: str, home: str, node_id: int) -> Folder:
    """Read the identity of a broker's folder. JournalFormatError."""
    return Folder(data, node_id, read_identity(fs, home), has_log(fs, home))


def rebuild_command(data: str) -> str:
    """Return the command that rebuilds the metadata of a data folder, for error messages."""
    return f"`kafkawire restore --from-log --data {data}`"


def refuse_absent(folder: Folder, metadata: str) -> None:
    """Raise IdentityError for a folder with records whose metadata is missing: opening it would
    create an empty one. `metadata`: its name for messages."""
    if folder.identity is None and not folder.has_log:
        return
    raise IdentityError(
        f"{metadata} is missing or empty, and {folder.data} holds the log of broker "
        f"{folder.node_id}: put its metadata back, name it with --metadata, or rebuild it with "
        f"{rebuild_command(folder.data)}"
    )


def check_pairing(folder: Folder, stored: StoredPairing, metadata: str) -> None:
    """Raise IdentityError unless the folder and the metadata may belong together.

    What a crash at any point of a start, of a change or of the pairing leaves is accepted. Pure."""
    identity, data = folder.identity, folder.data
    rebuild = rebuild_command(data)
    if identity is None:
        _check_unpaired(folder, stored, metadata)
    elif identity.node_id != folder.node_id:
        raise IdentityError(
            f"the folder brokers/{folder.node_id} in {data} holds the log of broker "
            f"{identity.node_id}: rename it to brokers/{identity.node_id} and start with "
            f"`kafkawire serve --set node.id={identity.node_id}`"
        )
    elif stored.version == 0 and not stored.metadata_id:
        refuse_absent(folder, metadata)
    elif identity.cluster_id != stored.cluster_id:
        raise IdentityError(
            f"{metadata} belongs to cluster {stored.cluster_id}, {data} to cluster "
            f"{identity.cluster_id}: start with metadata and data of one cluster, or rebuild the "
            f"metadata of this data folder with {rebuild}"
        )
    elif stored.metadata_id and identity.metadata_id != stored.metadata_id.hex():
        raise IdentityError(
            f"{metadata} is not the metadata that {data} was last used with: put that one back, or "
            f"rebuild it with {rebuild}"
        )
    # Older than this folder has seen it: a copy. Newer is possible after a crash between the
    # transaction and the file.
    elif stored.generation < identity.generation:
        raise IdentityError(
            f"{metadata} is older than {data} (generation {stored.generation}, the data folder has "
            f"recorded {identity.generation}): put the newest copy back, or rebuild it with "
            f"{rebuild}"
        )


def is_superseded(folder: Folder, stored: StoredPairing) -> bool:
    """Return whether a broker has used another data folder since this one, or this one is empty
    and the broker has used any. Pure."""
    identity = folder.identity
    if identity is None:
        # Generation 1 is that of the pairing alone: no broker has written with it.
        used = stored.log_position or stored.segments or stored.generation > 1
        return bool(used) and not folder.has_log
    return (
        identity.node_id == folder.node_id
        and identity.cluster_id == stored.cluster_id
        and bool(stored.metadata_id)
        and identity.metadata_id != stored.metadata_id.hex()
    )


def _check_unpaired(folder: Folder, stored: StoredPairing, metadata: str) -> None:
    """Check a folder without identity: new, of an older version, or interrupted while it was being
    paired."""
    if folder.has_log:
        if stored.version == 0:
            refuse_absent(folder, metadata)
        return
    # The metadata has been used with a folder that is not this one.
    if stored.log_position or stored.segments or stored.generation > 1:
        source = "TIER" if stored.objects else "BACKUP"
        raise IdentityError(
            f"{folder.data} holds nothing of broker {folder.node_id}, which used {metadata} with "
            "another data folder: start with that folder, create one with "
            f"`kafkawire restore {source}` (see --help), or add a broker to the cluster with "
            f"`kafkawire serve --set node.id={stored.next_node}`"
        )


class IdentityRecorder:
    """Pairs a folder with its metadata, and records generations while the broker runs.

    `changed` is cheap and called on the loop after a transaction; a task does the rest. `seen`
    is what the broker has seen in SQL; `older` is called with the reason once SQL has less: the
    broker must acknowledge nothing more."""

    def __init__(
        self,
        env: Env,
        metadata: Transactions,
        home: str,
        node_id: int,
        cluster_id: str,
        tier: str = "",
        seen: SeenInSql | None = None,
        older: Callable[[str], None] = logger.critical,
    ) -> None:
        self._seen = SeenInSql() if seen is None else seen
        self._older = older
        self._env = env
        self._metadata = metadata
        self._home = home
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._tier = tier
        self._identity: Identity | None = None
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self, folder: Folder, stored: StoredPairing) -> None:
        """Pair the two, SQL first, and record that this start has used them. Raises what SQL and
        the disk raise."""
        metadata_id, node_id = stored.metadata_id, self._node_id
        self._seen.note_generation(stored.generation)
        if not metadata_id:
            metadata_id = self._env.random.randbytes(16)
            # SQL first: a crash after it leaves a folder without an identity, which a start
            # accepts. The other order would leave a folder whose metadata does not have its id.
            await self._metadata.transact(
                lambda session: pairing.pair(session, node_id, metadata_id, 1)
            )
        # A folder of an older version, or one whose pairing was interrupted.
        if folder.identity is None and folder.has_log:
            logger.info("writing the identity file of %s, which had none", self._home)
        self._seen.metadata_id = metadata_id
        before = folder.identity.tier if folder.identity is not None else ""
        tier = self._tier or before
        self._identity = Identity(self._cluster_id, node_id, metadata_id.hex(), 0, tier)
        # Generation 0 is replaced at once by one that SQL has made durable.
        await self.record()
        self._task = self._env.spawn(self._run(), "record the identity")

    def note_change(self) -> None:
        """Note that a transaction has changed what journals and segments depend on."""
        self._woken.set()

    async def record(self) -> None:
        """Raise the generation in SQL, then record it in the folder. Raises what both raise, and
        OlderMetadata before it changes either."""
        assert self._identity is not None, "paired before"
        # Before the transaction: a change during it needs another one.
        self._woken.clear()
        node_id, seen = self._node_id, self._seen

        def work(session: Session) -> int:
            # In the same transaction: an older copy is not made newer.
            seen.check(session, node_id)
            return seen.raise_generation(session, node_id)

        try:
            generation = await self._metadata.transact(work)
            if not generation:
                return  # the broker has used another folder since
            seen.note_generation(generation)
            # The folder records only what SQL has durably, so SQL is never older than the folder,
            # whenever the process ends.
            identity = replace(self._identity, generation=generation)
            await self._env.offload.submit(
                "files", write_identity, self._env.fs, self._home, identity
            )
        except BaseException:
            # Tried again, also after a cancellation.
            self._woken.set()
            raise
        self._identity = identity

    async def close(self) -> None:
        """Record what is not yet recorded. Never raises for the disk or SQL: then the next start
        only knows an older generation. Calling it again does nothing."""
        task, self._task = self._task, None
        if task is None:
            return
        # A record that is interrupted has set `_woken`: it is done below.
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._woken.is_set():
            try:
                await self.record()
            except OSError as failure:
                logger.warning("cannot write the identity file of %s: %s", self._home, failure)

    async def _check(self) -> None:
        node_id, seen = self._node_id, self._seen
        await self._metadata.transact(lambda session: seen.check(session, node_id))

    async def _run(self) -> None:
        failing = False
        while True:
            with suppress(TimeoutError):
                # At a change at once, otherwise a comparison every CHECK_S.
                async with asyncio.timeout(CHECK_S):
                    await self._woken.wait()
            recording = self._woken.is_set()
            try:
                await (self.record() if recording else self._check())
                failing = False
            except OlderMetadata as why:
                # The folder keeps the newest generation: `close` must not record the older one.
                self._woken.clear()
                self._older(str(why))
                return
            except Exception as failure:
                if recording and not failing:
                    failing = True
                    logger.warning(
                        "cannot write the identity file of %s, trying again: %s",
                        self._home,
                        failure,
                        exc_info=not isinstance(failure, OSError),
                    )  # fmt: skip
            if recording or failing:
                await self._env.sleep(SPACING_S)
