"""The bytes of messages between a broker and its followers: encoding, decoding, and proofs. Pure.

A connection is TCP; numbers are big-endian. A frame is

    0  length u32 (of the bytes after it)   4  kind u8   5  checksum u32   9  body

with the CRC-32C of kind and body. What the follower sends, with its kind:

    1 CHALLENGE  version u16, nonce 16 bytes, replica id 16 bytes
    2 HAVE       end i64
    3 ACK        end i64
    4 FENCED     epoch i64
    5 COPY       end i64, committed i64, count u32; for each file its journal u32 and length u64
    6 ERROR      a sentence in UTF-8

what the broker sends:

    16 HELLO     version u16, purpose u8, node id i32, epoch i64, proof 32 bytes, cluster id (UTF-8)
    17 BEGIN     continues i64, at i64, first u32
    18 MARK      committed i64, first u32
    19 FORGET
    20 FENCE
    21 LIST      epoch i64
    22 READ      position i64, length u32
    23 AWAIT     epoch i64, known i64

and what both send:

    32 BYTES     position i64, data

Positions are log positions. kafkawire.replication.messages describes the fields.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from struct import Struct
from struct import error as struct_error
from typing import Any

from kafkawire.crc32c import crc32c
from kafkawire.replication.messages import (
    MAX_BODY_BYTES,
    MAX_DATA_BYTES,
    MAX_TEXT_BYTES,
    NONCE_BYTES,
    VERSION,
    AckMessage,
    AwaitMessage,
    BeginMessage,
    Buffer,
    BytesMessage,
    ChallengeMessage,
    CopyMessage,
    ErrorMessage,
    FencedMessage,
    FenceMessage,
    ForgetMessage,
    HaveMessage,
    HelloMessage,
    ListMessage,
    MarkMessage,
    Message,
    Purpose,
    ReadMessage,
    WireError,
    check_bytes,
    check_size,
)


def encode(message: Message) -> bytes:
    """Return the frame of a message. Raises WireError if a number does not fit."""
    form = _FORMS[type(message)]
    try:
        body = form.encode(message)
    except struct_error as problem:
        raise WireError(f"{message} cannot be encoded: {problem}") from None
    return _head(form.kind, len(body), crc32c(body, _SEEDS[form.kind])) + body


def encode_bytes(position: int, data: Buffer) -> tuple[bytes, Buffer]:
    """Return a BYTES in two parts, to be sent one after the other: `data` is not copied."""
    return bytes_head(position, (data,)), data


def bytes_head(position: int, parts: Sequence[Buffer]) -> bytes:
    """Return the part of a BYTES before its data, which is sent after it in these parts."""
    size = sum(map(len, parts))
    check_bytes(position, size)
    start = _POSITION.pack(position)
    checksum = crc32c(start, _SEEDS[_BYTES])
    for part in parts:
        checksum = crc32c(part, checksum)
    return _head(_BYTES, len(start) + size, checksum) + start


def proof(
    key: bytes, nonce: bytes, purpose: Purpose, node_id: int, epoch: int, cluster_id: str
) -> bytes:
    """Return the proof of HELLO: that the broker has the follower's key, for this connection."""
    check_size(nonce, NONCE_BYTES, "nonce")
    text = cluster_id.encode("utf-8", "replace")
    # All fields before the last one have a fixed length, so no two contents have the same bytes.
    content = _PROVED.pack(_PROOF_LABEL, nonce, purpose, node_id, epoch) + text
    return hmac.digest(key, content, "sha256")


class WireDecoder:
    """Messages from the bytes of a connection. After a WireError it must not be used again.

    `feed` it what was received, then iterate until no complete message is left. Only the beginning
    of an incomplete message is copied, so the memory in use is that of one message.
    """

    __slots__ = ("_forms", "_partial", "_rest")

    def __init__(self, accepted: Iterable[type[Message]]) -> None:
        self._partial = bytearray()
        self._rest = memoryview(b"")
        self._forms: dict[int, _Form] = {}
        self.accept(accepted)

    def accept(self, accepted: Iterable[type[Message]]) -> None:
        """Expect these messages from now on. Others raise WireError as soon as their kind and
        length have been received."""
        self._forms = {_FORMS[each].kind: _FORMS[each] for each in accepted}

    def feed(self, data: Buffer) -> None:
        """Add received bytes, which must not change until no complete message is left."""
        rest = self._rest
        self._rest = memoryview(b"".join((rest, data))) if rest else memoryview(data)

    def next(self) -> Message | None:
        """Return the next message; None if it is not complete. Raises WireError."""
        frame = self._next_frame()
        if frame is None:
            return None
        _, kind, checksum = _HEAD.unpack_from(frame)
        body = frame[_HEAD.size :]
        if crc32c(body, _SEEDS[kind]) != checksum:
            raise WireError(f"a message of kind {kind} has a wrong checksum")
        try:
            return self._forms[kind].decode(body)
        except (struct_error, UnicodeDecodeError) as problem:
            raise WireError(f"a message of kind {kind} has a malformed body: {problem}") from None

    def __iter__(self) -> Iterator[Message]:
        while (message := self.next()) is not None:
            yield message

    def _next_frame(self) -> memoryview | None:
        # The usual case, without a copy: the whole frame is in the last read.
        if not self._partial:
            rest = self._rest
            if len(rest) >= _HEAD.size and len(rest) >= (size := self._size(rest)):
                self._rest = rest[size:]
                return rest[:size]
        if not self._fill(_HEAD.size) or not self._fill(self._size(self._partial)):
            return None
        frame, self._partial = memoryview(self._partial), bytearray()
        return frame

    def _fill(self, size: int) -> bool:
        """Move bytes of the last read to the incomplete frame; return whether it has this size."""
        missing = size - len(self._partial)
        if missing > 0:
            self._partial += self._rest[:missing]
            self._rest = self._rest[missing:]
        return len(self._partial) >= size

    def _size(self, frame: Buffer) -> int:
        """Return the size of a frame of which the head has been received."""
        length, kind, _ = _HEAD.unpack_from(frame)
        # Checked before the body has arrived, so that its length decides about no memory.
        form = self._forms.get(kind)
        if form is None:
            raise WireError(f"a message of kind {kind} is not expected here")
        if not form.min_bytes <= length - _AFTER_LENGTH <= form.max_bytes:
            raise WireError(f"a message of kind {kind} cannot have {length} bytes")
        return int(length) + _HEAD.size - _AFTER_LENGTH


# The bytes of each message

_HEAD = Struct(">IBI")
_AFTER_LENGTH = _HEAD.size - 4  # what the length counts besides the body
_POSITION = Struct(">q")
_CHALLENGE = Struct(">H16s16s")
_HELLO = Struct(">HBiq32s")
_COPY = Struct(">qqI")
_FILE = Struct(">IQ")
_PROVED = Struct(">24s16sBiq")
_PROOF_LABEL = b"kafkawire replication 1\0"
_BYTES = 32
_MAX_FIRST_BYTES = 1024
"""Body of CHALLENGE and HELLO, also of later versions, which are refused by their version."""
# The checksum begins with the kind: a damaged kind would otherwise be another valid message.
_SEEDS = [crc32c(bytes((kind,))) for kind in range(256)]


@dataclass(frozen=True, slots=True)
class _Form:
    """The kind of a message, the bounds of its body, and its two functions."""

    kind: int
    min_bytes: int
    max_bytes: int
    encode: Callable[[Any], bytes]
    decode: Callable[[memoryview], Message]


def _make_fixed_form(kind: int, message: type[Any], format: str) -> _Form:
    """Return the form of a message whose fields are those of a struct."""
    form, names = Struct(format), [each.name for each in fields(message)]
    return _Form(
        kind,
        form.size,
        form.size,
        lambda each: form.pack(*(getattr(each, name) for name in names)),
        lambda body: message(*form.unpack(body)),
    )


def _head(kind: int, body_bytes: int, checksum: int) -> bytes:
    return _HEAD.pack(body_bytes + _AFTER_LENGTH, kind, checksum)


def _encode_challenge(message: ChallengeMessage) -> bytes:
    return _CHALLENGE.pack(message.version, message.nonce, message.replica_id)


def _decode_challenge(body: memoryview) -> ChallengeMessage:
    _check_version(body, "follower")
    return ChallengeMessage(*_CHALLENGE.unpack(body))


def _encode_hello(message: HelloMessage) -> bytes:
    numbers = (message.version, message.purpose, message.node_id, message.epoch, message.proof)
    return _HELLO.pack(*numbers) + message.cluster_id.encode("utf-8", "replace")


def _decode_hello(body: memoryview) -> HelloMessage:
    _check_version(body, "broker")
    version, purpose, node_id, epoch, proved = _HELLO.unpack_from(body)
    if purpose not in (Purpose.WRITE, Purpose.READ):
        raise WireError(f"a connection cannot have the purpose {purpose}")
    cluster_id = str(body[_HELLO.size :], "utf-8")
    return HelloMessage(version, Purpose(purpose), node_id, epoch, proved, cluster_id)


def _encode_copy(message: CopyMessage) -> bytes:
    parts = [_COPY.pack(message.end, message.committed, len(message.files))]
    parts += [_FILE.pack(journal, length) for journal, length in message.files]
    return b"".join(parts)


def _decode_copy(body: memoryview) -> CopyMessage:
    end, committed, count = _COPY.unpack_from(body)
    rest = body[_COPY.size :]
    if len(rest) != count * _FILE.size:
        raise WireError(f"a COPY of {count} journals cannot have {len(body)} bytes")
    return CopyMessage(end, committed, tuple(_FILE.iter_unpack(rest)))


def _encode_error(message: ErrorMessage) -> bytes:
    cut = message.text.encode("utf-8", "replace")[:MAX_TEXT_BYTES]
    # Not in the middle of a character, which the decoder would refuse.
    return cut.decode("utf-8", "ignore").encode()


def _encode_data(message: BytesMessage) -> bytes:
    return _POSITION.pack(message.position) + message.data


def _decode_data(body: memoryview) -> BytesMessage:
    return BytesMessage(_POSITION.unpack_from(body)[0], body[_POSITION.size :])


def _check_version(body: memoryview, sender: str) -> None:
    version = int.from_bytes(body[:2], "big")
    if version != VERSION:
        raise WireError(
            f"the {sender} speaks version {version} of the replication protocol, and this process "
            f"version {VERSION}: run the same version of kafkawire on both machines"
        )


_FORMS: dict[type[Message], _Form] = {
    ChallengeMessage: _Form(1, 2, _MAX_FIRST_BYTES, _encode_challenge, _decode_challenge),
    HaveMessage: _make_fixed_form(2, HaveMessage, ">q"),
    AckMessage: _make_fixed_form(3, AckMessage, ">q"),
    FencedMessage: _make_fixed_form(4, FencedMessage, ">q"),
    CopyMessage: _Form(5, _COPY.size, MAX_BODY_BYTES, _encode_copy, _decode_copy),
    ErrorMessage: _Form(
        6, 0, MAX_TEXT_BYTES, _encode_error, lambda body: ErrorMessage(str(body, "utf-8"))
    ),
    HelloMessage: _Form(16, 2, _MAX_FIRST_BYTES, _encode_hello, _decode_hello),
    BeginMessage: _make_fixed_form(17, BeginMessage, ">qqI"),
    MarkMessage: _make_fixed_form(18, MarkMessage, ">qI"),
    ForgetMessage: _make_fixed_form(19, ForgetMessage, ">"),
    FenceMessage: _make_fixed_form(20, FenceMessage, ">"),
    ListMessage: _make_fixed_form(21, ListMessage, ">q"),
    ReadMessage: _make_fixed_form(22, ReadMessage, ">qI"),
    AwaitMessage: _make_fixed_form(23, AwaitMessage, ">qq"),
    BytesMessage: _Form(
        _BYTES, _POSITION.size, _POSITION.size + MAX_DATA_BYTES, _encode_data, _decode_data
    ),
}
