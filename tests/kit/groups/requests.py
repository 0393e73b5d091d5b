"""Group requests of any kind, as the coordinator makes them, and the parts of decisions."""

from __future__ import annotations

from typing import Any

from kafkawire.groups.model import request as kinds
from kafkawire.groups.model.decision import Decision, Reply
from kafkawire.groups.model.records import Record
from kafkawire.groups.model.request import Client, GroupRequest, RequestKind

KIND_OF: dict[type, RequestKind[Any, Any]] = {
    kind.request: kind for kind in vars(kinds).values() if isinstance(kind, RequestKind)
}


def group_request(
    token: int, version: int, request: Any, client: Client, fresh_id: str = ""
) -> GroupRequest[Any, Any]:
    return GroupRequest(KIND_OF[type(request)], token, version, request, client, fresh_id)


def replies_of(decision: Decision) -> list[Reply]:
    return [effect for effect in decision.effects if isinstance(effect, Reply)]


def records_of(decision: Decision) -> list[Record]:
    return [step for step in decision.steps if isinstance(step, Record)]
