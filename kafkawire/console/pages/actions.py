"""Forms, plans and results of changes. What may be changed is checked in `views.actions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafkawire.client.notation import split_setting
from kafkawire.console.views.actions import (
    ACTIONS,
    READ_ONLY,
    Outdated,
    apply_change,
    plan_change,
)
from kafkawire.console.views.plans import Action, FormField
from kafkawire.console.web.frame import PageFrame
from kafkawire.console.web.queries import (
    INT64,
    WrongInput,
    parse_time,
    read_form,
    read_number,
    text_param,
)
from kafkawire.console.web.sessions import UserSession

GIVEN = ("topic", "group", "partition", "offset")
"""Parameters that fill in a form."""


class ActionPages:
    """A form for each action; its plan; and its result."""

    def __init__(self, frame: PageFrame) -> None:
        self._frame = frame

    def routes(self) -> list[BaseRoute]:
        """Return the routes of these pages."""
        return [
            Route("/change/{action}", self.show_form, methods=["GET"]),
            Route("/change/{action}", self.show_plan, methods=["POST"]),
            Route("/apply", self.apply, methods=["POST"]),
        ]

    async def show_form(self, request: Request) -> Response:
        """Serve the form of an action, filled in from the URL."""
        name, action = find_action(request.path_params["action"])
        given = {each: text_param(request, each) for each in GIVEN}
        known = await self._frame.read_known(request)
        if not self._frame.viewer(request).may_change:
            return self._frame.error(request, 403, f"{READ_ONLY}.")
        filled, facts = await self._frame.ask(
            request, lambda cluster: action.prefill(cluster, given)
        )
        return self._frame.page(
            request, "change.html", known, which=name, action=action, filled=filled, facts=facts
        )

    async def show_plan(self, request: Request) -> Response:
        """Serve what an action would do, with a token to do exactly that."""
        name, action = find_action(request.path_params["action"])
        session, form = await self._read(request)
        values = {each.name: read_field(each, form.get(each.name, "")) for each in action.fields}
        actor = self._frame.actor(request)
        known = await self._frame.read_known(request)
        plan = await self._frame.ask(
            request, lambda cluster: plan_change(cluster, actor, name, values)
        )
        confirm = str(values[action.confirm]) if action.confirm else ""
        token = session.seal(
            {"action": name, "change": plan.change, "seen": plan.seen, "confirm": confirm}
        )
        return self._frame.page(
            request, "plan.html", known, action=action, plan=plan, token=token, confirm=confirm
        )

    async def apply(self, request: Request) -> Response:
        """Do what a plan says, if it is of this session, and nothing has changed since."""
        session, form = await self._read(request)
        found = session.unseal(form.get("plan", ""))
        name, action = find_action(found["action"])
        change, seen = found["change"], found["seen"]
        subject = {each: change[each] for each in ("topic", "group") if each in change}
        if form.get("confirm", "") != found["confirm"]:
            sentence = (
                f"Type {found['confirm']} to confirm: nothing was changed. Make the plan again."
            )
            return self._frame.error(request, 400, sentence)
        actor = self._frame.actor(request)
        known = await self._frame.read_known(request)
        differences: Any = ()
        try:
            sentence = await self._frame.ask(
                request, lambda cluster: apply_change(cluster, actor, name, change, seen)
            )
        except Outdated as outdated:
            sentence, differences = f"{outdated}: nothing was changed.", outdated.differences
        response = self._frame.page(
            request, "changed.html", known, which=name, action=action, subject=subject,
            sentence=sentence, differences=differences,
        )  # fmt: skip
        response.status_code = 409 if differences else 200
        return response

    async def _read(self, request: Request) -> tuple[UserSession, dict[str, str]]:
        """Return session and fields of a form. NotLoggedIn, WrongToken, WrongInput."""
        session = self._frame.sessions.find(request)
        form = await read_form(request)
        session.check_form(form.get("csrf", ""))
        return session, form


def find_action(name: str) -> tuple[str, Action]:
    """Return an action by its name. HTTPException."""
    if name not in ACTIONS:
        raise HTTPException(404)
    return name, ACTIONS[name]


def read_field(field: FormField, text: str) -> Any:
    """Return the value of a field; see Values. WrongInput, OptionError."""
    if field.kind == "area":
        return text
    text = text.strip() if field.kind != "text" else text
    if field.required and not text:
        raise WrongInput(field.name, "", "given")
    if field.kind in READERS:
        return READERS[field.kind](field, text)
    return text


def _read_signed(field: FormField, text: str) -> int | None:
    number = read_number(field.name, text.removeprefix("-"), 0, INT64) if text else None
    return -number if number is not None and text.startswith("-") else number


def _read_settings(field: FormField, text: str) -> list[tuple[str, str]]:
    return [split_setting(field.name, line) for line in filter(str.strip, text.splitlines())]


def _read_choice(field: FormField, text: str) -> str:
    if text and text not in field.choices:
        raise WrongInput(field.name, text, "one of " + ", ".join(field.choices))
    return text or field.choices[0]


READERS: Mapping[str, Callable[[FormField, str], Any]] = {
    "number": lambda field, text: read_number(field.name, text, 0, INT64) if text else None,
    "signed": _read_signed,
    "time": lambda field, text: parse_time(field.name, text) if text else None,
    "settings": _read_settings,
    "names": lambda field, text: text.split(),
    "choice": _read_choice,
}
