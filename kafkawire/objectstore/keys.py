"""Validation of keys. Pure."""

from __future__ import annotations

MAX_KEY_BYTES = 1024
"""S3's limit of a key, prefix included."""


def check_key(key: str) -> None:
    """Raise ValueError unless the key is valid and unambiguous in both kinds of storage.

    ".." would lead out of a folder, and names that begin with a dot are reserved there.
    """
    size = len(key.encode("utf-8", "surrogatepass"))
    if not 0 < size <= MAX_KEY_BYTES:
        raise ValueError(f"a key of {size} bytes is none: 1 to {MAX_KEY_BYTES} are allowed")
    if not key.isprintable():
        raise ValueError(f"the key {key!r} holds characters that cannot be printed")
    if any(part in ("", ".", "..") or part.startswith(".") for part in key.split("/")):
        raise ValueError(f"a part of the key {key!r} is empty or begins with a dot")
