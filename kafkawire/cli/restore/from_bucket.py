"""`kafkawire restore TIER --data DIR`: a new data folder from a bucket.

Topics, settings, offsets and groups are restored; records stay in the bucket and are read from
there. The complete plan is shown and confirmed before anything is written; the folder is built
under a temporary name and renamed, so it appears atomically.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kafkawire.cli.backup import METADATA, sync
from kafkawire.cli.restore.failures import failures_reported
from kafkawire.cli.restore.steps import (
    RestoredBroker,
    copy_logs,
    fill_metadata,
    opened_tier,
    start_command,
)
from kafkawire.cli.shared.confirm import confirm
from kafkawire.cli.shared.new_folder import new_folder
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import DryRun, Json, Yes, not_empty
from kafkawire.cli.shared.paths import (
    check_metadata_url,
    check_tier_apart,
    refuse_full,
    refuse_other_sqlite,
)
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.client.notation import OptionError
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import Env
from kafkawire.objectstore.url import TierUrl, parse_tier
from kafkawire.plural import count
from kafkawire.progress import Progress
from kafkawire.restore.bucket import gather_from_bucket
from kafkawire.restore.evidence import Doubt, DoubtKind
from kafkawire.restore.findings import find_damage
from kafkawire.restore.plan import RestorePlan, plan_restore
from kafkawire.units import size

MAX_DOUBTS = 1000
"""Maximum number of doubts listed; more are only counted."""
MAX_SHOWN = 50
"""Maximum number of topics and doubts shown; JSON has all."""
CLUSTER_ID_CHARS = 22


def restore(
    tier: Annotated[
        str,
        typer.Option(
            "--tier",
            envvar="KAFKAWIRE_TIER",
            metavar="URL",
            help="Tier to restore: s3://BUCKET/PREFIX or a folder.",
        ),
    ],
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="New or empty data folder.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="First read every object and verify its checksums.")
    ] = False,
    metadata: Annotated[
        str,
        typer.Option(
            metavar="URL",
            callback=not_empty,
            help="Metadata database. [default: SQLite in the folder]",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Restore a data folder from a bucket: topics, settings, groups, offsets and data.

    The older name of `kafkawire restore URL`. The broker that wrote to the bucket must never run
    again. Records stay in the bucket and are read from there. Doubtful and lost data is listed
    before anything is written.

    Examples:
      kafkawire tier restore --tier s3://BUCKET/PREFIX --data new-data --dry-run
      kafkawire tier restore --tier s3://BUCKET/PREFIX --data new-data --yes
    """
    run("--tier", tier, data, dry_run, yes, deep, metadata, as_json)


def run(
    option: str,
    tier: str,
    data: str,
    dry_run: bool,
    yes: bool,
    deep: bool,
    metadata: str,
    as_json: bool,
) -> None:
    """Run the command. `option`: with which `tier` was given."""
    url = _parse_tier_option(option, tier, metadata, data)
    with failures_reported(data, tier):
        refuse_full(data)
        env = real_env()
        try:
            with bars() as progress:
                tier_url = replace(url, create=False).url
                restored = asyncio.run(_scan(env, tier_url, deep, progress))
            restored.tier = url.url
            _check(restored)
            if not as_json:
                _show(restored)
            elif dry_run:
                print_json(_document(restored, data))
            if dry_run:
                return
            if not yes:
                _ask(restored)
            with bars() as progress:
                restored.logs = asyncio.run(copy_logs(env, tier_url, restored, progress))
                _build(env, Path(data), metadata, restored, progress)
        finally:
            env.offload.close()
    _conclude(restored, data, metadata, url.url, as_json)


def _parse_tier_option(option: str, tier: str, metadata: str, data: str) -> TierUrl:
    """Return the parsed tier; ends the command with exit code 2 if it or the metadata URL is not
    valid, or the tier and the data folder are in one another."""
    try:
        check_metadata_url("--metadata", metadata)
        refuse_other_sqlite("--metadata", metadata, data)
        url = parse_tier(tier)
        check_tier_apart(option, tier, data)
        return url
    except OptionError as error:
        fail(error, 2)
    except ValueError as error:
        fail(f"{option}: {error}", 2)


async def _scan(env: Env, url: str, deep: bool, progress: Progress) -> RestorePlan:
    async with opened_tier(url) as store:
        restored = plan_restore(await gather_from_bucket(env, store, progress))
        if deep:
            with tempfile.TemporaryDirectory(prefix="kafkawire-restore-") as folder:
                found = await find_damage(env, store, restored.files(), folder, progress)
            restored.doubts = [*found, *restored.doubts]
    more = len(restored.doubts) - MAX_DOUBTS
    if more > 0:
        text = f"and {more} more, which are not listed"
        restored.doubts[MAX_DOUBTS:] = [Doubt(DoubtKind.GAP, text)]
    return restored


def _check(restored: RestorePlan) -> None:
    """Raise ValueError if there is nothing to restore."""
    url = restored.tier
    if not restored.topics:
        found = f": {restored.doubts[0].text}" if restored.doubts else ""
        raise ValueError(f"{url} has nothing to restore{found}")
    if len(restored.cluster_id) > CLUSTER_ID_CHARS:
        raise ValueError(
            f"{url} has the invalid cluster id {restored.cluster_id!r}: a cluster id has "
            f"{CLUSTER_ID_CHARS} characters"
        )


def _ask(restored: RestorePlan) -> None:
    doubtful = f", with {len(restored.doubts)} doubtful items" if restored.doubts else ""
    confirm(f"Restore this{doubtful}?")


def _build(
    env: Env, data: Path, metadata_url: str, restored: RestorePlan, progress: Progress
) -> None:
    """Build the complete folder, or none."""
    with new_folder(data, ".restoring") as building:
        home = building / "brokers" / str(restored.node_id)
        home.mkdir(parents=True)
        # An SQLite URL is that of the folder's own file.
        own = not metadata_url or metadata_url.startswith("sqlite")
        path = str(building / METADATA) if own else None
        broker = RestoredBroker(restored.node_id, str(home), restored)
        fill_metadata(env, metadata_url, path, restored, [broker], progress)
        sync(building)


def _topics(restored: RestorePlan) -> list[dict[str, Any]]:
    ends = {each.number: each.next_offset - each.log_start for each in restored.checkpoints}
    rows = []
    for topic in restored.topics:
        numbers = [info.number for info in topic.partitions]
        entries = [s.entry for number in numbers for s in restored.shares.get(number, ())]
        rows.append(
            {
                "topic": topic.name,
                "partitions": len(numbers),
                "offsets": sum(ends.get(number, 0) for number in numbers),
                "records": sum(entry.records for entry in entries),
                "bytes": sum(entry.length for entry in entries),
                "configs": len(topic.configs),
            }
        )
    return rows


def _document(restored: RestorePlan, data: str) -> dict[str, Any]:
    topics = _topics(restored)
    return {
        "data": data,
        "cluster_id": restored.cluster_id,
        "node_id": restored.node_id,
        "topics": topics,
        "segments": len(restored.files()),
        "records": sum(row["records"] for row in topics),
        "bytes": sum(row["bytes"] for row in topics),
        "log_objects": _log_objects(restored),
        "log_object_bytes": sum(log.size_bytes for log in restored.logs),
        "doubts": [{"kind": doubt.kind.value, "text": doubt.text} for doubt in restored.doubts],
    }


def _log_objects(restored: RestorePlan) -> int:
    return sum(log.end - log.released for log in restored.logs)


def _show(restored: RestorePlan) -> None:
    rows = _topics(restored)
    print(
        f"cluster {restored.cluster_id}, node {restored.node_id}: {count(len(rows), 'topic')}, "
        f"{count(len(restored.files()), 'segment')}, "
        f"{count(sum(row['records'] for row in rows), 'record')}, "
        f"{size(sum(row['bytes'] for row in rows))}"
    )
    if objects := _log_objects(restored):
        log_bytes = sum(log.size_bytes for log in restored.logs)
        print(
            f"{count(objects, 'log object')} of {size(log_bytes)}, whose records the broker "
            "appends when it starts"
        )
    columns = (
        "topic", "partitions", "records", TableColumn("bytes", show=size), "offsets", "configs"
    )  # fmt: skip
    print_table(rows[:MAX_SHOWN], columns, "topics")
    if len(rows) > MAX_SHOWN:
        print(f"and {len(rows) - MAX_SHOWN} more topics")
    if restored.doubts:
        print(f"Doubtful ({len(restored.doubts)}):")
        for doubt in restored.doubts[:MAX_SHOWN]:
            print(f"- {doubt.kind}: {doubt.text}")
        if len(restored.doubts) > MAX_SHOWN:
            print(f"- and {len(restored.doubts) - MAX_SHOWN} more; --json shows them all")


def _conclude(restored: RestorePlan, data: str, metadata_url: str, url: str, as_json: bool) -> None:
    command = start_command(restored.node_id, data, metadata_url, url)
    if as_json:
        print_json({**_document(restored, data), "next": command})
    else:
        print(f"{data} is restored. Start the broker: {command}")
        if any(used.file.folder for used in restored.files()):
            print(
                "The tier is of several brokers, of which this one takes everything. It copies the "
                "objects of the others once it runs: `kafkawire tier move` shows how far it is."
            )
        print(
            "A bucket has no access rules, SCRAM users, quotas and delegation tokens. To restore "
            f"those of a backup before the start: kafkawire restore BACKUP --security --data {data}"
            + (" --metadata URL" if metadata_url else "")
        )
        if any(doubt.kind is DoubtKind.DAMAGED for doubt in restored.doubts):
            print(
                "Consumers of damaged offsets get CORRUPT_MESSAGE. To skip the damage: "
                "kafkawire tier scrub --deep --repair --skip-lost"
            )
