"""Group requests of any kind, as the coordinator makes them."""

from __future__ import annotations

from typing import Any

from kafkawire.groups.model import request as kinds
from kafkawire.groups.model.request import Client, GroupRequest, RequestKind

KIND_OF: dict[type, RequestKind[Any, Any]] = {
    kind.request: kind for kind in vars(kinds).values() if isinstance(kind, RequestKind)
}


def group_request(
    token: int, version: int, request: Any, client: Client, fresh_id: str = ""
) -> GroupRequest[Any, Any]:
    return GroupRequest(KIND_OF[type(request)], token, version, request, client, fresh_id)
