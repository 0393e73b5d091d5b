"""AlterReplicaLogDirs (key 34): replicas move to another folder."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@struct
class AlterReplicaLogDirTopic:
    name: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class AlterReplicaLogDir:
    """One folder with the partitions to move there."""

    path: str = ""
    topics: list[AlterReplicaLogDirTopic] = []
    unknown_tags: UnknownTags = None


@request(key=34, versions=(1, 2), flexible_from=2)
class AlterReplicaLogDirsRequest:
    """Folders, and the partitions that belong there."""

    dirs: list[AlterReplicaLogDir] = []
    unknown_tags: UnknownTags = None


@struct
class AlterReplicaLogDirPartitionResult:
    partition_index: int32 = 0
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: str = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = []
    unknown_tags: UnknownTags = None


@response(key=34, versions=(1, 2), flexible_from=2)
class AlterReplicaLogDirsResponse:
    """An error code per partition."""

    throttle_time_ms: int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []
    unknown_tags: UnknownTags = None
