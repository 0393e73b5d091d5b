"""`kafkawire offsets convert --data DIR --to sql|rocksdb`: convert the stored offsets of a stopped
broker.

Used to change the setting `offset.storage`. The folder is locked, so the command fails while a
broker runs; it is run again after an interruption.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.data_folder import node_ids
from kafkawire.cli.shared.options import parse_choice
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import Json
from kafkawire.cli.shared.paths import check_metadata_url
from kafkawire.cli.shared.stopped import broker_home, stopped_brokers
from kafkawire.cli.shared.tables import print_table
from kafkawire.client.notation import OptionError
from kafkawire.codec.format_errors import FormatError
from kafkawire.log.io.ports import Env, LogError
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import MetadataError, SqlStore
from kafkawire.offsets.catalog.kv.rocksdb import RocksStore
from kafkawire.offsets.catalog.kv.transaction_count import move_database, remove_database
from kafkawire.offsets.storage import convert
from kafkawire.offsets.storage.open import ROCKSDB, SQL, holds_rocks, holds_sql, rocks_folder

UNFINISHED = ".unfinished"


def run(
    to: Annotated[
        str, typer.Option("--to", metavar="STORAGE", help="New offset storage: sql or rocksdb.")
    ],
    data: Annotated[str, typer.Option(metavar="DIR", help="Data folder of a stopped broker.")],
    metadata: Annotated[
        str, typer.Option(metavar="URL", help="SQL database, if it is not in the data folder.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Move the stored offsets of a stopped broker to another offset.storage.

    An interrupted conversion is continued by running the command again.

    Examples:
      kafkawire offsets convert --to rocksdb --data kafkawire-data
    """
    try:
        to = parse_choice("--to", to, (SQL, ROCKSDB))
        check_metadata_url("--metadata", metadata)
    except OptionError as error:
        fail(error, 2)
    folder = os.path.abspath(data)
    try:
        rows = asyncio.run(_all(folder, metadata, to))
    except (convert.ConversionError, LogError, MetadataError, FormatError) as failure:
        fail(failure)
    except OSError as failure:
        fail(f"{failure.filename or data} cannot be converted: {failure.strerror or failure}")
    if as_json:
        print_json(rows)
    else:
        print_table(rows, tuple(rows[0]), f"offsets in {data}, now in {to}")
        print(f"start the broker with --set offset.storage={to}")


async def _all(folder: str, url: str, to: str) -> list[dict[str, Any]]:
    async with stopped_brokers(folder, url) as (env, metadata):
        await metadata.open()
        convert_to = _to_rocks if to == ROCKSDB else _to_sql
        return [
            {"broker": node, **await convert_to(env, metadata, broker_home(folder, node), node)}
            for node in node_ids(folder)
        ]


async def _to_rocks(env: Env, metadata: SqlStore, home: str, node: int) -> dict[str, Any]:
    target = rocks_folder(home)
    if holds_rocks(home):  # and is complete: see kafkawire.offsets.storage.convert
        stored = await _in_rocks(target, node)
    else:
        stored = await metadata.transact(lambda session: convert.read_sql(session, node))
        building = target + UNFINISHED
        remove_database(building)
        store = RocksStore(building)
        try:
            await asyncio.to_thread(convert.write_kv, store, node, stored)
        finally:
            store.close()
        move_database(building, target)
    await metadata.transact(lambda session: convert.forget_sql(session, node))
    return stored.counts()


async def _to_sql(env: Env, metadata: SqlStore, home: str, node: int) -> dict[str, Any]:
    source = rocks_folder(home)
    if not holds_rocks(home):
        found = await metadata.transact(lambda session: convert.read_sql(session, node))
        return found.counts()
    stored = await _in_rocks(source, node)

    def enter(session: Session) -> None:
        if not holds_sql(session, node):
            convert.write_sql(session, node, stored, time.time_ns() // 1_000_000)

    await metadata.transact(enter)
    remove_database(source)
    return stored.counts()


async def _in_rocks(folder: str, node: int) -> convert.StoredOffsets:
    store = RocksStore(folder)
    try:
        return await asyncio.to_thread(convert.read_kv, store, node)
    finally:
        store.close()
