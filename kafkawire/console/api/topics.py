"""Operations on topics, groups and the remote tier."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kafkawire.client.cluster import Cluster
from kafkawire.client.groups import GroupDescription
from kafkawire.console.api.declared import (
    FLAG,
    INTEGER,
    TEXT,
    ApiOperation,
    Param,
    Schema,
    fields,
    list_of,
    nullable,
    pick,
)
from kafkawire.console.api.record_json import check_names, load_object, read_integer
from kafkawire.console.views.actions import apply_change, plan_change
from kafkawire.console.views.groups import GROUP_SORTS, describe_group_lag, list_groups_page
from kafkawire.console.views.plans import ChangePlan, Values
from kafkawire.console.views.snapshot import Known
from kafkawire.console.views.topics import SORTS, describe_topic, list_topics
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import (
    INT32,
    WHERE,
    WrongInput,
    choice_param,
    number_param,
    page_number,
    parse_time,
    read_number,
    text_param,
)

FILTER = Param("q", "part of the name, in any case")
PAGE_NUMBER = Param("page", "number of the page of 100 rows, from 1", INTEGER)
SETTINGS: Schema = {"type": "object", "additionalProperties": nullable(TEXT)}
PAGED: dict[str, Schema] = {"matching": INTEGER, "page": INTEGER, "pages": INTEGER}
TOPIC_ROW = fields({
    "name": TEXT, "internal": FLAG, "partitions": INTEGER, "records": INTEGER,
    "rate": nullable({"type": "number"}), "groups": INTEGER,
})  # fmt: skip
TOPICS = fields({"topics": list_of(TOPIC_ROW), **PAGED})
NEW_TOPIC = fields({"name": TEXT}, {"partitions": INTEGER, "configs": SETTINGS})
PARTITION = fields({
    "partition": INTEGER, "leader": INTEGER, "replicas": list_of(INTEGER),
    "in_sync": list_of(INTEGER), "log_start": nullable(INTEGER), "log_end": nullable(INTEGER),
    "last_stable": nullable(INTEGER),
})  # fmt: skip
TOPIC = fields({
    "name": TEXT, "id": TEXT, "internal": FLAG, "configs": SETTINGS,
    "partitions": list_of(PARTITION), "partition_count": INTEGER,
})  # fmt: skip
GROUP_ROW = fields({
    "name": TEXT, "state": TEXT, "type": TEXT, "members": INTEGER, "lag": nullable(INTEGER),
})  # fmt: skip
GROUPS = fields({"groups": list_of(GROUP_ROW), **PAGED})
MEMBER = fields({"id": TEXT, "client": TEXT, "host": TEXT})
READ = fields({
    "topic": TEXT, "partition": INTEGER, "committed": nullable(INTEGER),
    "log_end": nullable(INTEGER), "lag": nullable(INTEGER), "member": nullable(TEXT),
})  # fmt: skip
GROUP = fields({
    "name": TEXT, "state": TEXT, "type": TEXT, "lag": INTEGER, "members": list_of(MEMBER),
    "partitions": list_of(READ), "why": list_of(TEXT),
})  # fmt: skip
RESET = fields({"topic": TEXT, "where": TEXT}, {"at": TEXT, "partition": INTEGER})
GROUP_NAME = Param("name", "the group: it may have any name, so it is no part of the path")


class SubjectApi:
    """Topics, groups and the tier: what the pages of the same names show."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def operations(self) -> list[ApiOperation]:
        """Return the declarations."""
        topics, topic, group = "/api/topics", "/api/topics/{topic}", "/api/group"
        return [
            ApiOperation(
                "GET", topics, "listTopics", "List topics", self.list_topics,
                [FILTER, Param("sort", "one of " + ", ".join(SORTS)), PAGE_NUMBER,
                 Param("internal", "1: internal topics, too")],
                answers={200: ("A page", TOPICS)},
            ),
            ApiOperation(
                "POST", topics, "createTopic", "Create a topic", self.create_topic,
                body={"application/json": NEW_TOPIC}, answers={201: ("Created", None)},
            ),
            ApiOperation(
                "GET", topic, "describeTopic", "Describe a topic, with 50 of its partitions",
                self.describe_topic, [Param("first", "the first partition to describe", INTEGER)],
                answers={200: ("The topic", TOPIC)},
            ),
            ApiOperation(
                "DELETE", topic, "deleteTopic", "Delete a topic and its records",
                self.delete_topic, answers={204: ("Deleted", None)},
            ),
            ApiOperation(
                "GET", "/api/groups", "listGroups", "List groups", self.list_groups,
                [FILTER, Param("sort", "one of " + ", ".join(GROUP_SORTS)), PAGE_NUMBER],
                answers={200: ("A page", GROUPS)},
            ),
            ApiOperation(
                "GET", group, "describeGroup", "Describe a group: lag, and what stops it",
                self.describe_group, [GROUP_NAME], answers={200: ("The group", GROUP)},
            ),
            ApiOperation(
                "POST", f"{group}/offsets", "resetGroup",
                "Reset the committed offsets of a group without members", self.reset_group,
                [GROUP_NAME], {"application/json": RESET},
                {200: ("The new offsets", fields({"committed": list_of(fields(
                    {"partition": INTEGER, "offset": INTEGER}))}))},
            ),
            ApiOperation(
                "GET", "/api/tier", "describeTier",
                "Describe the remote tier, and why records are not uploaded; null without one",
                self.describe_tier, answers={200: ("The tier", nullable({"type": "object"}))},
            ),
        ]  # fmt: skip

    async def list_topics(self, request: Request) -> Response:
        """Answer with a page of topics."""
        sort = choice_param(request, "sort", SORTS, "name")
        internal = text_param(request, "internal") == "1"
        known = await self._read_known(request)
        found = list_topics(known, text_param(request, "q"), sort, page_number(request), internal)
        rows = [pick(TOPIC_ROW, row) for row in found.rows]
        return JSONResponse(pick(TOPICS, found, topics=rows))

    async def create_topic(self, request: Request) -> Response:
        """Create a topic."""
        body = load_object(await request.body())
        check_names("body", body, NEW_TOPIC["properties"])
        name, configs = _text(body, "name"), body.get("configs", {})
        if not isinstance(configs, dict) or not all(
            value is None or isinstance(value, str) for value in configs.values()
        ):
            raise WrongInput("body.configs", "", "an object with a string for each setting")
        partitions = read_integer(body, "partitions", INT32)
        values = {"topic": name, "partitions": partitions, "replicas": None}
        await self._change(request, "create-topic", {**values, "settings": configs.items()})
        return Response(status_code=201)

    async def describe_topic(self, request: Request) -> Response:
        """Answer with a topic."""
        name = request.path_params["topic"]
        first = number_param(request, "first", 0, 0, INT32)
        own = self._frame.viewer(request).own
        found = await self._frame.ask(
            request, lambda cluster: describe_topic(cluster, own, name, first)
        )
        rows = [pick(PARTITION, row, last_stable=row.stable) for row in found.maps]
        topic = pick(
            TOPIC, found, id=found.topic_id, partitions=rows, partition_count=found.partitions
        )
        return JSONResponse(topic)

    async def delete_topic(self, request: Request) -> Response:
        """Delete a topic."""
        await self._change(request, "delete-topic", {"topic": request.path_params["topic"]})
        return Response(status_code=204)

    async def list_groups(self, request: Request) -> Response:
        """Answer with a page of groups."""
        sort = choice_param(request, "sort", GROUP_SORTS, "lag")
        known = await self._read_known(request)
        found = list_groups_page(known, text_param(request, "q"), sort, page_number(request))
        rows = [pick(GROUP_ROW, row, name=row.group, type=row.kind) for row in found.rows]
        return JSONResponse(pick(GROUPS, found, groups=rows))

    async def describe_group(self, request: Request) -> Response:
        """Answer with a group."""
        name = _group(request)
        found = await self._frame.ask(request, lambda cluster: describe_group_lag(cluster, name))
        group: GroupDescription = found.lag.description
        members = [pick(MEMBER, row, id=row.member) for row in group.members]
        rows = [
            pick(READ, row, topic=row.partition[0], partition=row.partition[1], member=row.owner)
            for row in found.lag.partitions
        ]
        why = [cause.sentence for cause in found.causes]
        answer = pick(
            GROUP, group, name=name, type=group.kind, lag=found.lag.totals().lag, members=members,
            partitions=rows, why=why,
        )  # fmt: skip
        return JSONResponse(answer)

    async def reset_group(self, request: Request) -> Response:
        """Reset the offsets of a group in a topic."""
        name, body = _group(request), load_object(await request.body())
        check_names("body", body, RESET["properties"])
        topic, where = _text(body, "topic"), _text(body, "where")
        at: int | None = None
        if where == "time":
            at = parse_time("body.at", _text(body, "at"))
        elif where == "offset":
            at = read_number("body.at", _text(body, "at"), 0, 2**63 - 1)
        elif where not in WHERE:
            raise WrongInput("body.where", where, "one of " + ", ".join(WHERE))
        partition = read_integer(body, "partition", INT32)
        target = {"oldest": "earliest", "newest": "latest"}.get(where, where)
        values = {
            "group": name, "topic": topic, "partition": partition, "target": target, "shift": None,
            "offset": at, "time": at,
        }  # fmt: skip
        plan = await self._change(request, "reset-offsets", values)
        rows = [{"partition": index, "offset": at} for _, index, at in plan.change["offsets"]]
        return JSONResponse({"committed": rows})

    async def describe_tier(self, request: Request) -> Response:
        """Answer with the state of the remote tier."""
        own = self._frame.viewer(request).own
        found: Any = await self._frame.ask(request, own.read_tier)
        return JSONResponse(found)

    async def _change(self, request: Request, name: str, values: Values) -> ChangePlan:
        """Plan a change, and make it: as on a page, with the same checks and the same log.
        NotAllowed, ChangeRefused, Outdated, ClientError."""
        actor = self._frame.actor(request)

        def change(cluster: Cluster) -> ChangePlan:
            plan = plan_change(cluster, actor, name, values)
            apply_change(cluster, actor, name, plan.change, plan.seen)
            return plan

        return await self._frame.ask(request, change)

    async def _read_known(self, request: Request) -> Known:
        """Return the newest facts: a list that is not known is no empty list. ClientError."""
        known = await self._frame.read_known(request)
        known.require(newest=True)
        return known


def _group(request: Request) -> str:
    name = text_param(request, "name")
    if not name:
        raise WrongInput("name", "", "the name of a group")
    return name


def _text(body: dict[str, Any], field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not value:
        raise WrongInput(f"body.{field}", str(value)[:100], "a string that is not empty")
    return value
