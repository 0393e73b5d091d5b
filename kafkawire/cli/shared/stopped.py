"""The metadata of a data folder whose brokers are stopped, opened for a command."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kafkawire.cli.shared.data_folder import node_ids
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import Env, LogError
from kafkawire.log.manager import lock_folder
from kafkawire.metadata.sql import SqlMetadata, open_metadata


@asynccontextmanager
async def stopped_brokers(folder: str, metadata_url: str) -> AsyncIterator[tuple[Env, SqlMetadata]]:
    """Lock the folders of all brokers of a data folder, given by its absolute path, and yield its
    metadata, which is open only after `open`. Raises LogError or MetadataError if a broker runs, or
    there are no brokers or no metadata."""
    env, metadata, locks = real_env(), open_metadata(metadata_url, folder), []
    try:
        for node in node_ids(folder):
            locks.append(lock_folder(env, broker_home(folder, node)))
        if metadata.absent():
            raise LogError(f"{metadata.name} does not exist: give its URL with --metadata")
        yield env, metadata
    finally:
        await metadata.close()
        for lock in locks:
            lock.release()
        env.offload.close()


def broker_home(folder: str, node: int) -> str:
    """Return the folder of a broker."""
    return os.path.join(folder, "brokers", str(node))
