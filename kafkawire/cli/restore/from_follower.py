"""`kafkawire restore REPLICAS --data DIR --tier URL`: a broker from a follower's copy of its log.

For topics with durability=replicated, when the machine of the broker and the metadata database are
lost. The copied journals and the tier have every record that was acknowledged. The journals are
copied into a new folder, from which metadata are rebuilt as from any log (`from_log`); it is built
under a temporary name and renamed.
"""

from __future__ import annotations

from pathlib import Path

from kafkawire.cli.backup import sync
from kafkawire.cli.restore import from_log
from kafkawire.cli.restore.failures import failures_reported
from kafkawire.cli.restore.steps import start_command
from kafkawire.cli.shared.new_folder import new_folder
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.paths import check_tier_apart, refuse_full, refuse_other_sqlite
from kafkawire.cli.shared.progress import bars
from kafkawire.client.notation import OptionError
from kafkawire.log.io.disk import real_env
from kafkawire.restore.follower_copies import copy_journals, open_copies


def run(source: str, data: str, metadata: str, tier: str, as_json: bool) -> None:
    """Run the command."""
    if not tier:
        fail(
            "--tier is missing: give the remote tier of the broker, which has the records that "
            "followers do not keep any more",
            2,
        )
    try:
        refuse_other_sqlite("--metadata", metadata, data)
        check_tier_apart("--tier", tier, data)
    except OptionError as error:
        fail(error, 2)
    env = real_env()
    with failures_reported(data, tier):
        refuse_full(data)
        try:
            with (
                open_copies(env.fs, source) as copies,
                bars() as progress,
                new_folder(Path(data), ".restoring") as building,
            ):
                node = copies[0].node_id
                copy_journals(env, copies[0], str(building / "brokers" / str(node)), progress)
                plan, _ = from_log.restore(str(building), metadata, [node], tier, progress, copies)
                sync(building)
        finally:
            env.offload.close()
    from_log.show(data, plan, "", as_json)
    if not as_json:
        print(f"Start the broker: {start_command(plan.node_id, data, metadata, tier)}")
