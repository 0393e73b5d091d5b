"""Checks of URLs and reports of failures that the restores of all sources share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kafkawire.cli.shared.confirm import NotConfirmed
from kafkawire.cli.shared.output import fail
from kafkawire.client.errors import ClientError
from kafkawire.log.io.ports import LogError
from kafkawire.metadata.store import MetadataError
from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.url import parse_tier
from kafkawire.restore.security import CopyRefused


@contextmanager
def failures_reported(data: str, source: str) -> Iterator[None]:
    """End the command with exit code 1 after a failure. `source`: what a store of objects is
    called. Nothing is logged meanwhile: commands print what was found, once."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    except (
        ClientError,
        CopyRefused,
        LogError,
        MetadataError,
        NotConfirmed,
        ValueError,
    ) as failure:
        fail(failure)
    except StoreError as failure:
        fail(f"{source} cannot be read: {failure}")
    except OSError as failure:
        fail(f"{failure.filename or data} failed: {failure.strerror or failure}")
    finally:
        logging.disable(logging.NOTSET)


def check_url(option: str, url: str, what: str) -> None:
    """End the command with exit code 2 unless the URL is one of a store of objects."""
    try:
        parse_tier(url, what=what)
    except ValueError as error:
        fail(f"{option}: {error}", 2)
