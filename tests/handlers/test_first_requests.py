"""The first request for an API, for groups or for transactions, imports their modules in a
thread: on the event loop that delayed all other clients by up to 50 ms.

Covers: kafkawire.server.host, kafkawire.broker.broker, kafkawire.handlers.find_coordinator,
kafkawire.handlers.init_producer_id.
"""

from __future__ import annotations

import threading
from types import ModuleType

import pytest

from kafkawire.broker import broker as broker_module
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.table import Api
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.server.run import Server
from tests.kit.client import Client


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The imported modules, and whether each was imported on the event loop."""
    done: list[tuple[str, bool]] = []

    def note(name: str) -> None:
        done.append((name, threading.current_thread() is threading.main_thread()))

    imported = Api.imported

    def noted(api: Api) -> ModuleType:
        note(api.module)
        return imported(api)

    monkeypatch.setattr(Api, "imported", noted)
    monkeypatch.setattr(broker_module, "_import_groups", lambda: note("groups"))
    monkeypatch.setattr(broker_module, "_import_transactions", lambda: note("transactions"))
    return done


async def test_modules_are_imported_in_a_thread_and_once(
    server: Server, client: Client, imports: list[tuple[str, bool]]
) -> None:
    server.broker.__dict__.pop("groups", None)
    for kind in (1, 0, 1):
        for _ in range(2):
            find = FindCoordinatorRequest(key_type=kind, coordinator_keys=["name"])
            (found,) = (await client.call(find, 4)).coordinators
            assert found.error_code == ErrorCode.NONE
    made = await client.call(InitProducerIdRequest("name", 60_000), 4)
    assert made.error_code == ErrorCode.NONE
    wanted = ["find_coordinator", "transactions", "groups", "init_producer_id"]
    assert [name for name, _ in imports if name in wanted] == wanted
    assert not any(on_the_loop for _, on_the_loop in imports)


async def test_a_producer_without_transactions_imports_them_in_a_thread_too(
    server: Server, client: Client, imports: list[tuple[str, bool]]
) -> None:
    made = await client.call(InitProducerIdRequest(None, 0), 4)
    assert made.error_code == ErrorCode.NONE
    assert ("transactions", False) in imports
    assert "transactions" in server.broker.__dict__
