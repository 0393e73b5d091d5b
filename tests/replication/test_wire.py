"""Messages of followers: round trips, and bytes that are damaged, cut anywhere, or not messages.

Covers: kafkawire.replication.messages, kafkawire.replication.wire.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import struct
import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.replication.messages import (
    CONTINUES_NONE,
    FROM_BROKER,
    FROM_FOLLOWER,
    MAX_BODY_BYTES,
    MAX_DATA_BYTES,
    MAX_FILES,
    MAX_JOURNAL,
    MAX_TEXT_BYTES,
    VERSION,
    AckMessage,
    AwaitMessage,
    BeginMessage,
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
)
from kafkawire.replication.wire import (
    WireDecoder,
    bytes_head,
    encode,
    encode_bytes,
    proof,
)

KEY, NONCE = bytes(range(32)), bytes(range(16))
ALL = (*FROM_BROKER, *FROM_FOLLOWER)
EXAMPLES: tuple[Message, ...] = (
    ChallengeMessage(VERSION, NONCE, b"r" * 16),
    HaveMessage(5 << 32 | 17),
    AckMessage(MAX_JOURNAL << 32 | 0xFFFFFFFF),
    FencedMessage(9),
    CopyMessage(7 << 32 | 3, 7 << 32, ((5, 4096), (7, 3))),
    CopyMessage(0, 0, ()),
    ErrorMessage("the copy is damaged: größer"),
    HelloMessage(VERSION, Purpose.WRITE, 3, 12, b"p" * 32, "cluster"),
    HelloMessage(VERSION, Purpose.READ, 0, 0, b"p" * 32, ""),
    BeginMessage(CONTINUES_NONE, 0, 0),
    BeginMessage(11, 5 << 32 | 9, MAX_JOURNAL),
    MarkMessage(6 << 32 | 1, 4),
    ForgetMessage(),
    FenceMessage(),
    ListMessage(3),
    AwaitMessage(3, 5 << 32 | 17),
    ReadMessage(5 << 32, MAX_DATA_BYTES),
    BytesMessage(5 << 32 | 1, b"some bytes"),
    BytesMessage(0, b""),
)


def decoded(data: bytes, cuts: tuple[int, ...] = ()) -> list[Message]:
    """Return the messages in bytes that are received in pieces."""
    decoder, found = WireDecoder(ALL), []
    for start, stop in zip((0, *cuts), (*cuts, len(data)), strict=True):
        decoder.feed(data[start:stop])
        found += [_kept(each) for each in decoder]
    return found


def _kept(message: Message) -> Message:
    if isinstance(message, BytesMessage):
        return BytesMessage(message.position, bytes(message.data))
    return message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda each: type(each).__name__)
def test_messages_are_decoded(message: Message) -> None:
    assert decoded(encode(message)) == [message]


def test_messages_are_decoded_wherever_they_are_cut() -> None:
    data = b"".join(map(encode, EXAMPLES))
    assert decoded(data) == list(EXAMPLES)
    assert decoded(data, tuple(range(1, len(data)))) == list(EXAMPLES)
    for cut in range(len(data)):
        assert decoded(data, (cut,)) == list(EXAMPLES)


def test_each_kind_is_sent_by_one_side_except_bytes() -> None:
    assert set(FROM_BROKER) & set(FROM_FOLLOWER) == {BytesMessage}
    assert {type(each) for each in EXAMPLES} == set(ALL)


def test_frame_has_the_documented_bytes() -> None:
    body = struct.pack(">q", 77)
    wanted = struct.pack(">IBI", 5 + len(body), 3, crc32c(b"\3" + body)) + body
    assert encode(AckMessage(77)) == wanted


def test_bytes_are_encoded_without_copying_them() -> None:
    data = memoryview(bytearray(b"0123456789"))[2:7]
    head, payload = encode_bytes(1 << 32, data)
    assert payload is data
    whole = head + bytes(payload)
    assert whole == encode(BytesMessage(1 << 32, b"23456"))
    assert bytes_head(1 << 32, (b"23", b"", memoryview(b"456"))) == head


def test_bytes_in_one_read_are_not_copied() -> None:
    received = bytearray(encode(BytesMessage(1, b"abc")))
    decoder = WireDecoder(ALL)
    decoder.feed(received)
    (message,) = decoder
    assert isinstance(message, BytesMessage)
    received[-1:] = b"d"
    assert bytes(message.data) == b"abd"


def test_decoder_continues_with_bytes_that_were_not_used() -> None:
    decoder = WireDecoder(ALL)
    decoder.feed(encode(AckMessage(1)) + encode(AckMessage(2)))
    assert decoder.next() == AckMessage(1)
    decoder.feed(encode(AckMessage(3)))
    assert list(decoder) == [AckMessage(2), AckMessage(3)]
    assert decoder.next() is None


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda each: type(each).__name__)
def test_every_damaged_bit_is_found(message: Message) -> None:
    data = encode(message)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = decoded(bytes(damaged))
        except WireError:
            continue
        assert found == []  # a larger length: it waits for more bytes


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_arbitrary_bytes_are_messages_or_an_error(data: bytes, cuts: list[int]) -> None:
    with contextlib.suppress(WireError):
        decoded(data, tuple(sorted(min(cut, len(data)) for cut in cuts)))


@given(
    st.sampled_from(sorted(WireDecoder(ALL)._forms)),
    st.binary(max_size=120),
    st.booleans(),
)
def test_arbitrary_bodies_are_messages_or_an_error(
    kind: int, body: bytes, is_current: bool
) -> None:
    """With a right length and checksum."""
    if is_current:
        body = struct.pack(">H", VERSION) + body
    data = struct.pack(">IBI", 5 + len(body), kind, crc32c(bytes((kind,)) + body)) + body
    try:
        (message,) = decoded(data)
    except WireError:
        return
    assert encode(message) == data


@given(st.lists(st.sampled_from(EXAMPLES), min_size=1, max_size=6), st.data())
def test_flipped_bits_in_streams_never_change_a_message(
    messages: list[Message], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(map(encode, messages)))
    for bit in data.draw(st.lists(st.integers(0, len(stream) * 8 - 1), min_size=1, max_size=3)):
        stream[bit // 8] ^= 1 << bit % 8
    cut = data.draw(st.integers(0, len(stream)))
    decoder, found = WireDecoder(ALL), []
    try:
        for part in (bytes(stream[:cut]), bytes(stream[cut:])):
            decoder.feed(part)
            found += [_kept(each) for each in decoder]
    except WireError:
        pass
    assert found == messages[: len(found)]


def test_lengths_are_checked_before_their_bytes_arrive() -> None:
    of_kind = {
        3: (0, 12, 14),
        5: (6 + MAX_BODY_BYTES,),
        6: (5 + MAX_TEXT_BYTES + 1,),
        16: (5,),
        19: (6,),
        32: (5 + 8 + MAX_DATA_BYTES + 1, 0xFFFFFFFF),
    }
    for kind, lengths in of_kind.items():
        for length in lengths:
            with pytest.raises(WireError, match="cannot have"):
                decoded(struct.pack(">IBI", length, kind, 0))
    with pytest.raises(WireError, match="kind 99 is not expected"):
        decoded(struct.pack(">IBI", 5, 99, 0))


def test_messages_of_the_other_side_are_refused_before_their_body() -> None:
    decoder = WireDecoder((HelloMessage,))
    decoder.feed(encode(BytesMessage(0, b"x" * 1000))[:9])
    with pytest.raises(WireError, match="not expected"):
        decoder.next()
    decoder = WireDecoder((HelloMessage,))
    decoder.accept((BytesMessage,))
    decoder.feed(encode(BytesMessage(0, b"x")))
    assert decoder.next() == BytesMessage(0, b"x")


def test_decoder_has_at_most_one_message_and_one_read_in_memory() -> None:
    data = encode(BytesMessage(0, bytes(MAX_DATA_BYTES))) * 2
    decoder, sizes = WireDecoder(ALL), []
    tracemalloc.start()
    try:
        for start in range(0, len(data), 1000):
            decoder.feed(data[start : start + 1000])
            for message in decoder:
                assert isinstance(message, BytesMessage)
                sizes.append(len(message.data))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sizes == [MAX_DATA_BYTES] * 2
    assert peak < 2.5 * MAX_DATA_BYTES  # the last message, and the next one


def test_other_versions_are_refused_with_a_sentence() -> None:
    for sender, message in (
        ("follower", ChallengeMessage(2, NONCE, b"r" * 16)),
        ("broker", HelloMessage(2, Purpose.READ, 1, 1, b"p" * 32, "")),
    ):
        with pytest.raises(WireError, match=f"the {sender} speaks version 2 of the replication"):
            decoded(encode(message))
    body = struct.pack(">H", 3) + b"a later layout"  # later versions may have other fields
    with pytest.raises(WireError, match="version 3"):
        decoded(struct.pack(">IBI", 5 + len(body), 1, crc32c(b"\1" + body)) + body)


def test_values_that_are_none_are_refused() -> None:
    negative = struct.pack(">q", -1)
    for kind in (2, 3, 4, 21):
        with pytest.raises(WireError, match=r"no log position|invalid epoch"):
            decoded(struct.pack(">IBI", 13, kind, crc32c(bytes((kind,)) + negative)) + negative)
    for make in (
        lambda: MarkMessage(0, MAX_JOURNAL + 1),
        lambda: BeginMessage(-2, 0, 0),
        lambda: ReadMessage(0, MAX_DATA_BYTES + 1),
        lambda: BytesMessage(0xFFFFFFFF, b"x"),
        lambda: CopyMessage(0, 0, ((1, 1 << 32),)),
        lambda: CopyMessage(0, 0, ((1, 1),) * (MAX_FILES + 1)),
        lambda: HelloMessage(VERSION, Purpose.READ, 1, 1, b"", ""),
        lambda: HelloMessage(VERSION, Purpose.READ, 1, 1, b"p" * 32, "c" * 65),
        lambda: encode_bytes(0, bytes(MAX_DATA_BYTES + 1)),
        lambda: encode(HelloMessage(VERSION, Purpose.READ, 1 << 40, 1, b"p" * 32, "")),
    ):
        with pytest.raises(WireError):
            make()


def test_largest_list_of_journals_fits() -> None:
    message = CopyMessage(0, 0, tuple((number, 1) for number in range(MAX_FILES)))
    assert len(encode(message)) <= MAX_BODY_BYTES + 9
    assert decoded(encode(message)) == [message]


def test_long_error_is_cut_between_characters() -> None:
    (message,) = decoded(encode(ErrorMessage("ä" * MAX_TEXT_BYTES + "\udc80")))
    assert message == ErrorMessage("ä" * (MAX_TEXT_BYTES // 2))
    assert decoded(encode(ErrorMessage("/data/\udcff"))) == [ErrorMessage("/data/?")]


def test_proof_depends_on_every_field() -> None:
    wanted = proof(KEY, NONCE, Purpose.WRITE, 1, 2, "c")
    content = b"kafkawire replication 1\0" + NONCE + struct.pack(">Biq", 1, 1, 2) + b"c"
    assert wanted == hmac.new(KEY, content, hashlib.sha256).digest()
    others = [
        proof(KEY[::-1], NONCE, Purpose.WRITE, 1, 2, "c"),
        proof(KEY, NONCE[::-1], Purpose.WRITE, 1, 2, "c"),
        proof(KEY, NONCE, Purpose.READ, 1, 2, "c"),
        proof(KEY, NONCE, Purpose.WRITE, 2, 2, "c"),
        proof(KEY, NONCE, Purpose.WRITE, 1, 3, "c"),
        proof(KEY, NONCE, Purpose.WRITE, 1, 2, "d"),
    ]
    assert len({wanted, *others}) == len(others) + 1
