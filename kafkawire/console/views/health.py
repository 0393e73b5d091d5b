"""Problems of a cluster, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kafkawire.client.groups import NOT_READY
from kafkawire.console.views.parts import ClusterFinding
from kafkawire.console.views.snapshot import ClusterSnapshot, GroupSnapshot, Known
from kafkawire.plural import count

MAX_NAMED = 20
"""Findings of one kind; the list of topics or groups has the others."""


class Health(NamedTuple):
    """One sentence on the cluster, and the findings, the worst first."""

    well: bool
    sentence: str
    findings: Sequence[ClusterFinding]

    @property
    def state(self) -> str:
        """Return "well", "warning" or "broken"."""
        broken = any(each.stuck for each in self.findings)
        return "well" if self.well else "broken" if broken else "warning"

    @property
    def brief(self) -> str:
        """Return the first words of the sentence, for the top of every page."""
        return self.sentence.partition(".")[0]


def judge(known: Known) -> Health:
    """Return the health of a cluster as far as it is known."""
    if known.failure:
        gone = ClusterFinding(True, f"{known.failure}.")
        return Health(False, "The broker does not answer.", [gone])
    snapshot = known.snapshot
    if snapshot is None:
        return Health(False, "Nothing is known of the broker yet.", [])
    findings = sorted([*_findings(snapshot), *known.found], key=lambda each: not each.stuck)
    if not snapshot.counted:
        size = count(len(snapshot.topics), "topic"), count(len(snapshot.groups), "group")
        return Health(not findings, f"{size[0]}, {size[1]}; their numbers follow.", findings)
    facts = (
        f"{count(len(snapshot.topics), 'topic')}, {known.rate:,.0f} records/s in, "
        f"{count(len(snapshot.groups), 'group')} with a lag of {snapshot.lag:,}."
    )
    if not findings:
        return Health(True, f"All well. {facts}", findings)
    return Health(False, f"{count(len(findings), 'problem')}. {facts}", findings)


def _findings(snapshot: ClusterSnapshot) -> Iterator[ClusterFinding]:
    yield from _topics(snapshot)
    idle = 0
    for group in snapshot.groups.values():
        found = _group(group)
        if found is not None and idle < MAX_NAMED:
            idle += 1
            yield found
    for sentence in snapshot.refused:
        yield ClusterFinding(False, f"{sentence.rstrip('.')}.")


def _topics(snapshot: ClusterSnapshot) -> Iterator[ClusterFinding]:
    named = 0
    for topic in snapshot.topics.values():
        if named == MAX_NAMED:
            return
        if topic.without_leader:
            named += 1
            what = count(topic.without_leader, "partition")
            yield ClusterFinding(
                True, f"{what} of {topic.name}: no leader, not served.", topic=topic.name
            )
        elif topic.out_of_sync:
            named += 1
            what = count(topic.out_of_sync, "partition")
            yield ClusterFinding(
                True, f"{what} of {topic.name}: a replica is not in sync.", topic=topic.name
            )


def _group(group: GroupSnapshot) -> ClusterFinding | None:
    if group.error:
        return ClusterFinding(False, f"Group {group.group}: {group.error}.", group=group.group)
    if group.state == NOT_READY:
        sentence = f"Streams group {group.group} waits for its topics."
        return ClusterFinding(True, sentence, group=group.group)
    if group.lag and not group.members:
        sentence = f"Group {group.group} has a lag of {group.lag:,} and no members."
        return ClusterFinding(False, sentence, group=group.group)
    return None
