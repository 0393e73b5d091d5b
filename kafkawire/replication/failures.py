"""The failures of a follower: a refusal, a fence, and a disk that is not trusted any more. Pure."""

from __future__ import annotations


class FollowerError(Exception):
    """A refused request, or a damaged file. The text is a sentence."""


class Fenced(Exception):
    """A request of a broker epoch that is refused because of a higher one, `higher`."""

    def __init__(self, higher: int) -> None:
        super().__init__(f"refused because of broker epoch {higher}")
        self.higher = higher


def reason(failure: OSError | FollowerError, path: str) -> str:
    """Return why a file cannot be used. `path`: the one that was used, if `failure` has none."""
    if isinstance(failure, OSError):
        return f"{failure.filename or path} cannot be used: {failure.strerror}"
    return str(failure)


class DiskFailed(Exception):
    """A failed fsync, or files that do not have the content that they should have and could not be
    restored. It is final: the process must not acknowledge anything any more, and ends. The text is
    a sentence."""
