"""JSON objects with a checksum as their last member, which stay plain JSON for other readers.

    {"format": 2, "snapshot": 7, "crc": "1f2e3d4c"}

The checksum is the CRC-32C of all bytes before `, "crc"`. Pure.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kafkawire.codec.format_errors import FormatError
from kafkawire.crc32c import crc32c

_END = re.compile(rb', "crc": "([0-9a-f]{8})"\}\n?\Z')


def seal(text: str) -> bytes:
    """Return the text of a JSON object, which has members, with its checksum."""
    # One flipped bit makes another digit: other offsets, files or objects are valid JSON, too.
    body = text.rstrip().removesuffix("}").encode()
    return b'%s, "crc": "%08x"}\n' % (body, crc32c(body))


def unseal(data: bytes, name: str, sealed_since: int, key: str = "format") -> dict[str, Any]:
    """Return the object in a file `name`, without its checksum. One of a format before
    `sealed_since`, which the member `key` says, has none. Raises FormatError if it is damaged or no
    object."""
    try:
        says: Any = json.loads(data)
        found = says.get(key)
    except (ValueError, AttributeError, RecursionError):
        raise FormatError(f"{name} is not what kafkawire writes") from None
    end = _END.search(data)
    # A flipped bit does not make a file with a checksum one without: format or checksum is left. A
    # later program may have another kind of checksum; the caller refuses its format.
    if end is None and ("crc" in says or found == sealed_since):
        raise FormatError(f"{name} is damaged: it has no checksum")
    if end is not None and int(end[1], 16) != crc32c(data[: end.start()]):
        raise FormatError(f"{name} is damaged: its checksum is wrong")
    says.pop("crc", None)
    return dict(says)
