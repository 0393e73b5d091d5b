"""Messages between a broker and its followers, checked when they are created. Pure.

Positions (end, at, committed, position) are log positions: journal number << 32 | position in that
journal. kafkawire.replication describes their purpose, kafkawire.replication.wire their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

Buffer = bytes | bytearray | memoryview

VERSION = 1
POSITION_BITS = 32
POSITION_MASK = (1 << POSITION_BITS) - 1
MAX_DATA_BYTES = 1 << 20
"""Data of one BYTES: large enough that the cost of a message does not matter, and small enough that
each connection may have one in memory."""
MAX_BODY_BYTES = MAX_DATA_BYTES + (64 << 10)
"""Body of a message: the data of a BYTES and its position, or the list of 90,000 journals, which
are 11 TiB of journals of the default size."""
MAX_TEXT_BYTES = 4096
"""An ERROR is one sentence, with a path in it."""
MAX_CLUSTER_ID_BYTES = 64
"""Kafka's cluster ids have 22 characters."""
MAX_JOURNAL = (1 << 31) - 1
"""The largest journal number of a log position, which is an i64."""
NONCE_BYTES = REPLICA_ID_BYTES = 16
KEY_BYTES = PROOF_BYTES = 32
CONTINUES_NONE = -1
"""`continues` of a BEGIN whose log continues no earlier one."""
MAX_FILES = 90_000
"""Journals in one COPY: as many as fit into a body."""


class WireError(ValueError):
    """A message is malformed, damaged, too large, or not expected. The text is a sentence."""


class Purpose(IntEnum):
    """Purpose of a connection: WRITE streams a log to the follower, READ fences and reads it."""

    WRITE = 1
    READ = 2


# From the follower


@dataclass(frozen=True, slots=True)
class ChallengeMessage:
    """The first message of a connection: `nonce` is random and goes into the proof of HELLO."""

    version: int
    nonce: bytes
    replica_id: bytes

    def __post_init__(self) -> None:
        check_size(self.nonce, NONCE_BYTES, "nonce")
        check_size(self.replica_id, REPLICA_ID_BYTES, "replica id")


@dataclass(frozen=True, slots=True)
class HaveMessage:
    """The answer to BEGIN: the log position from which on the broker sends bytes."""

    end: int

    def __post_init__(self) -> None:
        check_position(self.end, "end")


@dataclass(frozen=True, slots=True)
class AckMessage:
    """All bytes of the log before `end` are durable at the follower."""

    end: int

    def __post_init__(self) -> None:
        check_position(self.end, "end")


@dataclass(frozen=True, slots=True)
class FencedMessage:
    """The higher epoch that is the reason for a refusal, or the own epoch: the answer to FENCE."""

    epoch: int

    def __post_init__(self) -> None:
        check_natural(self.epoch, "epoch")


@dataclass(frozen=True, slots=True)
class CopyMessage:
    """The answer to LIST: where a copy ends, the committed log position that its follower knows,
    and (journal, length) of each file, in order."""

    end: int
    committed: int
    files: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        check_position(self.end, "end")
        check_position(self.committed, "committed position")
        if len(self.files) > MAX_FILES:
            raise WireError(f"a list of {len(self.files)} journals is too long: {MAX_FILES} fit")
        for journal, length in self.files:
            check_journal(journal)
            if not 0 <= length <= POSITION_MASK:
                raise WireError(f"journal {journal} cannot have {length} bytes")

    @property
    def readable(self) -> int:
        """The log position before which consumers may read the copy."""
        # A copy may have records that no other replica has, and be without committed ones.
        return min(self.end, self.committed)


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """The reason why the follower closes the connection."""

    text: str


# From the broker


@dataclass(frozen=True, slots=True)
class HelloMessage:
    """The answer to CHALLENGE. `proof`: see the function of that name."""

    version: int
    purpose: Purpose
    node_id: int
    epoch: int
    proof: bytes
    cluster_id: str

    def __post_init__(self) -> None:
        check_natural(self.node_id, "node id")
        check_natural(self.epoch, "epoch")
        check_size(self.proof, PROOF_BYTES, "proof")
        if len(self.cluster_id.encode("utf-8", "replace")) > MAX_CLUSTER_ID_BYTES:
            raise WireError(f"a cluster id has at most {MAX_CLUSTER_ID_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class BeginMessage:
    """The broker streams the log of its epoch. It is that of epoch `continues` before the log
    position `at`, and its own from there (CONTINUES_NONE: all of it). `first` is the first journal
    that the broker needs."""

    continues: int
    at: int
    first: int

    def __post_init__(self) -> None:
        check_natural(self.continues + 1, "epoch")
        check_position(self.at, "position")
        check_journal(self.first)


@dataclass(frozen=True, slots=True)
class BytesMessage:
    """Bytes of one journal from a log position on. Decoded `data` is a view of the received bytes,
    valid until the decoder is fed again."""

    position: int
    data: Buffer

    def __post_init__(self) -> None:
        check_bytes(self.position, len(self.data))


@dataclass(frozen=True, slots=True)
class MarkMessage:
    """The committed log position of the broker, and the first journal that it still needs."""

    committed: int
    first: int

    def __post_init__(self) -> None:
        check_position(self.committed, "committed position")
        check_journal(self.first)


@dataclass(frozen=True, slots=True)
class ForgetMessage:
    """Copies of lower epochs are no longer needed."""


@dataclass(frozen=True, slots=True)
class FenceMessage:
    """Brokers of lower epochs than the sender's must not write any more."""


@dataclass(frozen=True, slots=True)
class ListMessage:
    """A request for the files of the copy of this epoch's log."""

    epoch: int

    def __post_init__(self) -> None:
        check_natural(self.epoch, "epoch")


@dataclass(frozen=True, slots=True)
class AwaitMessage:
    """A request for what consumers may read of the log of an epoch. Its answer is COPY, whose `end`
    leaves out bytes that an earlier process of the follower may have written wrongly. It is sent
    when more than up to `known` may be read, and with the next MARK of the broker."""

    epoch: int
    known: int

    def __post_init__(self) -> None:
        check_natural(self.epoch, "epoch")
        check_position(self.known, "position")


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """A request for bytes of the copy that was listed. Its answer is BYTES, which is shorter at the
    end of the journal."""

    position: int
    length: int

    def __post_init__(self) -> None:
        check_position(self.position, "position")
        if not 0 <= self.length <= MAX_DATA_BYTES:
            raise WireError(f"{self.length} bytes cannot be read at once: {MAX_DATA_BYTES} can")


Message = (
    ChallengeMessage | HaveMessage | AckMessage | FencedMessage | CopyMessage | ErrorMessage
    | HelloMessage | BeginMessage | MarkMessage | ForgetMessage | FenceMessage | ListMessage
    | AwaitMessage | ReadMessage | BytesMessage
)  # fmt: skip
FROM_FOLLOWER: tuple[type[Message], ...] = (
    ChallengeMessage, HaveMessage, AckMessage, FencedMessage, CopyMessage, ErrorMessage,
    BytesMessage,
)  # fmt: skip
FROM_BROKER: tuple[type[Message], ...] = (
    HelloMessage, BeginMessage, BytesMessage, MarkMessage, ForgetMessage, FenceMessage,
    ListMessage, AwaitMessage, ReadMessage,
)  # fmt: skip


def check_size(value: bytes, size: int, what: str) -> None:
    """Raise WireError unless a field has its size."""
    if len(value) != size:
        raise WireError(f"a {what} of {len(value)} bytes: it has {size}")


def check_natural(value: int, what: str) -> None:
    if value < 0:
        raise WireError(f"an invalid {what} in a message")


def check_position(value: int, what: str) -> None:
    """Raise WireError if a number is no log position."""
    if not 0 <= value >> POSITION_BITS <= MAX_JOURNAL:
        raise WireError(f"{value} as {what} is no log position")


def check_journal(number: int) -> None:
    if not 0 <= number <= MAX_JOURNAL:
        raise WireError(f"{number} is no journal number")


def check_bytes(position: int, size: int) -> None:
    """Raise WireError if so many bytes do not fit in a message, or at their log position."""
    check_position(position, "position")
    if size > MAX_DATA_BYTES:
        raise WireError(f"{size} bytes do not fit in one BYTES: {MAX_DATA_BYTES} do")
    if (position & POSITION_MASK) + size > POSITION_MASK:
        raise WireError(f"{size} bytes at log position {position} do not fit in a journal")
