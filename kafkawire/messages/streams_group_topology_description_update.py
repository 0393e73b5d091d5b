"""StreamsGroupTopologyDescriptionUpdate (key 93): StreamsGroupTopologyDescriptionUpdate"""

from __future__ import annotations

from kafkawire.codec.schema import fresh, request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class TopologyDescriptionNode:
    """One entry of `nodes`."""

    name: str = ""
    node_type: int8 = 0
    source_topics: list[str] = []
    sink_topic: str | None = None
    stores: list[str] = []
    successors: list[str] = []
    unknown_tags: UnknownTags = None


@struct
class TopologyDescriptionSubtopology:
    """One entry of `subtopologies`."""

    subtopology_id: str = ""
    nodes: list[TopologyDescriptionNode] = []
    unknown_tags: UnknownTags = None


@struct
class TopologyDescriptionGlobalStore:
    """One entry of `global_stores`."""

    source: TopologyDescriptionNode = fresh(TopologyDescriptionNode)
    processor: TopologyDescriptionNode = fresh(TopologyDescriptionNode)
    unknown_tags: UnknownTags = None


@struct
class TopologyDescription:
    """One entry of `topology_description`."""

    subtopologies: list[TopologyDescriptionSubtopology] = []
    global_stores: list[TopologyDescriptionGlobalStore] = []
    unknown_tags: UnknownTags = None


@request(key=93, versions=(0, 0), flexible_from=0)
class StreamsGroupTopologyDescriptionUpdateRequest:
    """StreamsGroupTopologyDescriptionUpdateRequest"""

    group_id: str = ""
    member_id: str = ""
    topology_epoch: int32 = 0
    topology_description: TopologyDescription = fresh(TopologyDescription)
    unknown_tags: UnknownTags = None


@response(key=93, versions=(0, 0), flexible_from=0)
class StreamsGroupTopologyDescriptionUpdateResponse:
    """StreamsGroupTopologyDescriptionUpdateResponse"""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    unknown_tags: UnknownTags = None
