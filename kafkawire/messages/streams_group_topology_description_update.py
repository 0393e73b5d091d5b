"""StreamsGroupTopologyDescriptionUpdate (key 93): a client describes its topology to the broker."""

from __future__ import annotations

from kafkawire.codec.schema import fresh, request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class TopologyDescriptionNode:
    """One node: 1 source, 2 processor, 3 sink."""

    name: str = ""
    node_type: int8 = 0
    source_topics: list[str] = []
    sink_topic: str | None = None
    stores: list[str] = []
    successors: list[str] = []
    unknown_tags: UnknownTags = None


@struct
class TopologyDescriptionSubtopology:
    subtopology_id: str = ""
    nodes: list[TopologyDescriptionNode] = []
    unknown_tags: UnknownTags = None


@struct
class TopologyDescriptionGlobalStore:
    source: TopologyDescriptionNode = fresh(TopologyDescriptionNode)
    processor: TopologyDescriptionNode = fresh(TopologyDescriptionNode)
    unknown_tags: UnknownTags = None


@struct
class TopologyDescription:
    """The whole processing graph."""

    subtopologies: list[TopologyDescriptionSubtopology] = []
    global_stores: list[TopologyDescriptionGlobalStore] = []
    unknown_tags: UnknownTags = None


@request(key=93, versions=(0, 0), flexible_from=0)
class StreamsGroupTopologyDescriptionUpdateRequest:
    """The whole processing graph of one topology epoch (KIP-1331)."""

    group_id: str = ""
    member_id: str = ""
    topology_epoch: int32 = 0
    topology_description: TopologyDescription = fresh(TopologyDescription)
    unknown_tags: UnknownTags = None


@response(key=93, versions=(0, 0), flexible_from=0)
class StreamsGroupTopologyDescriptionUpdateResponse:
    """Result of storing the description."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    unknown_tags: UnknownTags = None
