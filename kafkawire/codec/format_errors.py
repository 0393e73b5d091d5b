"""The errors of every stored format: bytes that are damaged, and bytes of a newer program."""

from __future__ import annotations


class FormatError(ValueError):
    """Stored bytes are not what this program writes or reads: of a segment, a manifest or a
    checkpoint. The text is a sentence without the file's name."""


class NewerFormatError(FormatError):
    """A newer program wrote these bytes, and this one must not guess what they mean."""


def too_new(version: int, known: int) -> str:
    """Return the predicate of the sentence about a file of a newer program."""
    return (
        f"has format version {version}, this kafkawire reads up to {known}: "
        "start the newer version that wrote it"
    )


def check_version(name: str, version: int, known: int) -> None:
    """Raise NewerFormatError if a newer program wrote the file `name`."""
    if version > known:
        raise NewerFormatError(f"{name} {too_new(version, known)}")
