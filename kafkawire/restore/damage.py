"""Check of the objects that a restore uses: every byte of them is read.

Without this check a restore trusts the manifest and the metadata in the objects.
"""

from __future__ import annotations

import os.path

from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import ScrubArguments, ScrubResult, no_pace
from kafkawire.log.segments.file import verify
from kafkawire.objectstore.errors import NoSuchObject
from kafkawire.progress import Progress
from kafkawire.restore.evidence import Doubt, DoubtKind
from kafkawire.restore.plan import UsedFile
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls


async def find_damage(
    env: Env, store: ObjectStore, used: list[UsedFile], folder: str, progress: Progress
) -> list[Doubt]:
    """Return a doubt for each damaged range that the plan uses, and for each other defect of its
    objects. `folder`: for a copy of one object at a time. Raises StoreError, OSError."""
    asking = RetryingCalls(env, store)
    doubts: list[Doubt] = []
    for at, one in enumerate(used):
        progress("checked", at, len(used))
        path = os.path.join(folder, one.file.object.hex())
        doubts += await _check(env, asking, one, path)
    progress("checked", len(used), len(used))
    return doubts


async def _check(env: Env, asking: RetryingCalls, used: UsedFile, path: str) -> list[Doubt]:
    key, fs = used.file.key, env.fs
    arguments = ScrubArguments(path, used.file.uuid)
    try:
        await asking.download(key, path, -1)
        result: ScrubResult = await env.offload.submit("files", verify.run, fs, arguments, no_pace)
    except NoSuchObject:
        return [Doubt(DoubtKind.MISSING, f"{key} is not there any more")]
    finally:
        await env.offload.submit("files", fs.remove, path)
    kept = {share.entry.number: share.offsets for _, share in used.shares}
    texts = [
        each.text
        for each in result.damaged
        if each.number in kept
        and each.first < kept[each.number][1]
        and each.end > kept[each.number][0]
    ]
    others = result.problems[: len(result.problems) - len(result.damaged)]
    texts += [problem.replace(f"{path}: ", "").replace(path, "it") for problem in others]
    return [Doubt(DoubtKind.DAMAGED, f"{key}: {text}") for text in texts]
