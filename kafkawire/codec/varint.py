"""Variable-length integers of Kafka: seven bits per byte, lowest first.

Unsigned ones (KIP-482) are lengths and tags of flexible messages; zig-zag ones (32 and 64 bits)
are everything inside a record. Hot loops handle the one- and two-byte cases inline and call this
module for the rest. Called by the message compiler, the flat Produce and Fetch codecs and batches.

Readers take (buffer, position) and return (value, next position). The only error, for bytes that
end early or are too long, is IndexError, which the callers convert.
"""

from kafkawire.codec.types import Buffer

_U32_LAST_SHIFT = 28  # a fifth byte adds bits 28-31; more is not a 32-bit number
_U64_LAST_SHIFT = 63  # a tenth byte adds bit 63


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned 32-bit varint: 1 to 5 bytes."""
    value = buf[pos]
    pos += 1
    if value < 0x80:
        return value, pos
    return _more(buf, pos, value & 0x7F, _U32_LAST_SHIFT, 0x0F)


def read_uvarlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned 64-bit varint: 1 to 10 bytes."""
    value = buf[pos]
    pos += 1
    if value < 0x80:
        return value, pos
    return _more(buf, pos, value & 0x7F, _U64_LAST_SHIFT, 0x01)


def _more(buf: Buffer, pos: int, value: int, last_shift: int, last_max: int) -> tuple[int, int]:
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == last_shift and byte > last_max:
                raise IndexError("a varint is larger than its type")
            return value, pos
        if shift == last_shift:
            raise IndexError("a varint is longer than its type")
        shift += 7


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read a zig-zag 32-bit varint."""
    value, pos = read_uvarint(buf, pos)
    return (value >> 1) ^ -(value & 1), pos


def read_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read a zig-zag 64-bit varint."""
    value, pos = read_uvarlong(buf, pos)
    return (value >> 1) ^ -(value & 1), pos


def put_uvarint(out: bytearray, value: int) -> None:
    """Append `value`, which must not be negative."""
    assert value >= 0, value
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_varint(out: bytearray, value: int) -> None:
    """Append a signed number, zig-zag; the bytes are the same for 32 and 64 bits."""
    if 0 <= value < 64:  # most lengths and deltas
        out.append(value << 1)
        return
    put_uvarint(out, value << 1 if value >= 0 else (-value << 1) - 1)
