"""Failures of a restore, as the one sentence with which its command ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kafkawire.cli.shared.confirm import NotConfirmed
from kafkawire.cli.shared.output import fail
from kafkawire.log.io.ports import LogError
from kafkawire.metadata.store import MetadataError
from kafkawire.objectstore.errors import StoreError


@contextmanager
def failures_reported(data: str, source: str) -> Iterator[None]:
    """End the command with exit code 1 after a failure. `source`: what a store of objects is
    called. Nothing is logged meanwhile: commands print what was found, once."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    except (LogError, MetadataError, NotConfirmed, ValueError) as failure:
        fail(failure)
    except StoreError as failure:
        fail(f"{source} cannot be read: {failure}")
    except OSError as failure:
        fail(f"{failure.filename or data} failed: {failure.strerror or failure}")
    finally:
        logging.disable(logging.NOTSET)
