"""The errors of every stored format: bytes that are damaged, and bytes of a newer program."""

from __future__ import annotations


class FormatError(ValueError):
    """Stored bytes are not what this program writes or reads: of a segment, a manifest or a
    checkpoint. The text is a sentence without the file's name."""


class NewerFormatError(FormatError):
    """A newer program wrote these bytes, and this one must not guess what they mean."""
