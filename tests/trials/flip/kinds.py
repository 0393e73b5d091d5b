"""Every kind of file that the product writes, and the right answer to its damage.

A file of no kind fails the trial: a change that adds one states here what its damage means.
Answers:

HARMLESS   the broker starts, serves everything, and rebuilds the file where it needs it
REFUSED    or it does not start: one sentence names the command that repairs it, after which
           everything is served
NAMED      what lies in the damaged bytes is refused to readers and named in the log with topic,
           partition and offsets; everything else is served
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Flag, auto


class Answer(Flag):
    """A permitted reaction to damage; the module describes each."""

    HARMLESS = auto()
    REFUSED = auto()
    NAMED = auto()


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of file. `why` says why the answer is right."""

    name: str
    pattern: str
    answer: Answer
    why: str
    frames: bool = False
    """One checksum covers a frame of batches (journals)."""

    @property
    def remote(self) -> bool:
        """Whether it lies in the bucket, which `tier scrub` checks and fsck does not."""
        return self.pattern.startswith("tier/")


HARMLESS, REFUSED, NAMED = Answer
NODE = r"data/brokers/\d+/"
UUID = r"[0-9a-f]{32}"
KINDS: tuple[Kind, ...] = (
    Kind("journal", NODE + r"journals/\d{10}\.journal", NAMED | HARMLESS,
         "records have no second copy there until they are cut", frames=True),
    Kind("journal index", NODE + r"journals/\d{10}\.index", HARMLESS,
         "made again from the journal"),
    Kind("spare journal", NODE + r"journals/spare-\d+", HARMLESS, "nothing in it is needed"),
    Kind("segment", NODE + rf"segments/{UUID}\.segment", NAMED | HARMLESS,
         "harmless where an object has the same bytes"),
    Kind("coordinator snapshot", NODE + r"(groups|transactions|schedules)/[a-z]+-\d+\.snapshot",
         HARMLESS, "the log has everything"),
    Kind("schedule index", NODE + r"schedules\.db(-wal|-shm)?", HARMLESS,
         "made again from the schedule topics"),
    Kind("identity", NODE + "identity", HARMLESS | REFUSED, "journals and metadata know it too"),
    Kind("run file", NODE + "run", HARMLESS, "journals know the last run"),
    Kind("journal ledger", NODE + r"ledger\.[01]", HARMLESS,
         "there are two, and the journals themselves"),
    Kind("given-up offsets", NODE + "given-up", HARMLESS,
         "journals with damage wait until fsck writes it again"),
    Kind("lock", NODE + "lock", HARMLESS, "it is empty"),
    Kind("local manifest", NODE + r"manifest/(current|ended|(delta|snapshot)-\d{20})", HARMLESS,
         "written again from the metadata"),
    Kind("spending", NODE + "tier-spending", HARMLESS, "an estimate begins again"),
    Kind("metadata", r"data/metadata\.db", REFUSED | HARMLESS,
         "refused; harmless where the damaged page holds nothing"),
    Kind("metadata WAL", r"data/metadata\.db-wal", REFUSED | HARMLESS,
         "SQLite drops what follows the damage: refused if that was needed"),
    Kind("metadata WAL index", r"data/metadata\.db-shm", HARMLESS, "SQLite makes it again"),
    Kind("RocksDB data", NODE + r"offsets/(\d{6}\.(sst|log)|CURRENT|MANIFEST-\d{6})",
         HARMLESS | REFUSED, "checkpoints: refused if RocksDB cannot be opened"),
    Kind("RocksDB rest", NODE + r"offsets/(IDENTITY|LOCK|LOG(\.old\.\d+)?|OPTIONS-\d{6}"
         r"|rocksdict-config\.json)", HARMLESS | REFUSED, "nothing of ours"),
    Kind("RocksDB count", NODE + r"offsets\.count", HARMLESS | REFUSED,
         "refused if it says more transactions than RocksDB has"),
    Kind("probe of the storage", r"tier/conditional-put", HARMLESS, "it is empty"),
    Kind("object", rf"tier/segments/{UUID}\.segment", NAMED | HARMLESS,
         "the only copy where the local file is gone"),
    Kind("bucket manifest", r"tier/manifest/(current|(delta|snapshot)-\d{20})", HARMLESS,
         "the metadata has the rows; the manifest is written again"),
    Kind("bucket owner", r"tier/owner", HARMLESS, "the metadata knows the epoch"),
    Kind("bucket lock", r"tier/\.lock", HARMLESS, "it is empty"),
)  # fmt: skip


def kind_of(path: str) -> Kind | None:
    """The kind of a file by its path below the folder; None for an unknown one."""
    return next((kind for kind in KINDS if re.fullmatch(kind.pattern, path)), None)
