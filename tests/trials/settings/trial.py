"""One round of the settings trial.

Wrong values go in by the command line, the environment, a TOML file, IncrementalAlterConfigs,
AlterConfigs and CreateTopics: each is refused with a sentence that names the setting, and changes
nothing. Extreme values that are allowed start a broker that serves, or are refused in a sentence.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kafkawire.messages.alter_configs import AlterableConfig as OldConfig
from kafkawire.messages.alter_configs import AlterConfigsRequest
from kafkawire.messages.alter_configs import AlterConfigsResource as OldResource
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.testing.control import BrokerFailed
from tests.kit.client import Client
from tests.trials.context import Context, Trial
from tests.trials.flip.base import produce
from tests.trials.kill.world import Topic
from tests.trials.link import LOST, Unanswered, link, topics_of
from tests.trials.process import Victim
from tests.trials.records import Outgoing
from tests.trials.settings.documented import ANY_TEXT, TEXTS, WRONG, Setting, read_page

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
INVALID_CONFIG, INVALID_REQUEST = 40, 42
ROOT = Path(__file__).parents[3]
NAME = "settings"
SHORT_SETTINGS, SHORT_STARTS = 12, 2


class Commands:
    """The process that runs commands; see forking.py."""

    def __init__(self, context: Context) -> None:
        self.context = context
        environ = {k: v for k, v in os.environ.items() if not k.startswith("KAFKAWIRE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.trials.settings.forking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=context.folder,  # some wrong values are valid names of folders
            env={**environ, "PYTHONPATH": str(ROOT)},
        )

    def close(self) -> None:
        """End it."""
        self.process.communicate(timeout=20)

    def serve(self, words: list[str], environ: dict[str, str]) -> dict[str, Any]:
        """`kafkawire serve` on a folder that does not exist."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        data = str(self.context.folder / "none")
        line = ["serve", "--listen", "127.0.0.1:0", "--data", data, *words]
        self.process.stdin.write(json.dumps({"words": line, "environ": environ}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def check(self, name: str, value: str, way: str) -> None:
        """Check that a wrong value is refused with code 2 and one sentence, and leaves no
        folder."""
        if way == "file":
            path = self.context.folder / "wrong.toml"
            path.write_text(f"[settings]\n{json.dumps(name)} = {json.dumps(value)}\n")
            answer = self.serve(["--config", str(path)], {})
        elif way == "environment":
            variable = "KAFKAWIRE_SET_" + name.replace(".", "_").upper()
            answer = self.serve([], {variable: value})
        else:
            answer = self.serve(["--set", f"{name}={value}"], {})
        self.context.tried(f"wrong values by {way}")
        for fault in faults(answer, name, value):
            self.context.broken(f"{name}={value!r} by {way}: {fault}")
        if (self.context.folder / "none").exists():
            self.context.broken(f"{name}={value!r} by {way}: the data folder was created")
            shutil.rmtree(self.context.folder / "none")


def faults(answer: dict[str, Any], name: str, value: str) -> list[str]:
    """Defects in the refusal of a wrong value."""
    said = answer["err"].strip()
    if answer["code"] == -14:
        return ["a broker started"]
    found = []
    if answer["code"] != 2:
        found.append(f"exit code {answer['code']}, not 2: {said[-600:]}")
    if "Traceback" in said:
        found.append(f"a traceback: {said[-600:]}")
    elif name not in said:
        found.append(f"the sentence does not name the setting: {said[:300]!r}")
    elif value.strip() and not any(part and part in said for part in parts(value)):
        found.append(f"the sentence does not show the value: {said[:300]!r}")
    return found


def parts(value: str) -> list[str]:
    """The parts of a value that a sentence may show: its first line, or one item of it."""
    return [value.strip().splitlines()[0][:60], *re.split(r"[,;\s]+", value)]


class Wire:
    """Wrong and extreme values by the admin APIs of a running broker."""

    def __init__(self, context: Context, client: Client) -> None:
        self.context, self.client = context, client

    async def describe(self, kind: int, name: str) -> dict[str, str | None]:
        """All values of a resource."""
        asked = [DescribeConfigsResource(kind, name, None)]
        result = (await self.client.call(DescribeConfigsRequest(asked), 4)).results[0]
        if result.error_code:
            self.context.broken(f"DescribeConfigs of {kind} {name}: {result.error_code}")
        return {row.name: row.value for row in result.configs}

    async def alter(self, kind: int, name: str, key: str, value: str | None, op: int) -> Any:
        """Send IncrementalAlterConfigs for one setting; return its row of the response."""
        rows = [AlterConfigsResource(kind, name, [AlterableConfig(key, op, value)])]
        return (await self.client.call(IncrementalAlterConfigsRequest(rows), 1)).responses[0]

    async def refuse(self, setting: Setting, key: str, values: list[str]) -> None:
        """Check that wrong values are refused, with the setting's name, and nothing is changed."""
        kind, name = (TOPIC, NAME) if setting.topic and key == setting.name else (BROKER, "1")
        before = await self.describe(kind, name)
        for value in values:
            row = await self.alter(kind, name, key, value, SET)
            self._refused("IncrementalAlterConfigs", setting, key, value, row)
            if kind == TOPIC:
                rows = [OldResource(TOPIC, NAME, [OldConfig(key, value)])]
                row = (await self.client.call(AlterConfigsRequest(rows), 2)).responses[0]
                self._refused("AlterConfigs", setting, key, value, row)
                await self._create(setting, value)
        after = await self.describe(kind, name)
        if before != after:
            changed = sorted(set(before.items()) ^ set(after.items()), key=str)
            self.context.broken(f"{key}: refused values changed something: {changed[:6]}")

    async def _create(self, setting: Setting, value: str) -> None:
        configs = [CreatableTopicConfig(setting.name, value)]
        wanted = CreatableTopic("wrong", 1, 1, configs=configs)
        row = (await self.client.call(CreateTopicsRequest([wanted], 9000), 7)).topics[0]
        self._refused("CreateTopics", setting, setting.name, value, row)

    def _refused(self, how: str, setting: Setting, key: str, value: str, row: Any) -> None:
        self.context.tried(f"wrong values by {how}")
        words = row.error_message or ""
        # Kafka answers INVALID_REQUEST for a broker's settings, by decision (KAFKA-13609).
        right = (INVALID_CONFIG,) if setting.topic else (INVALID_CONFIG, INVALID_REQUEST)
        if row.error_code not in right:
            self.context.broken(f"{key}={value!r} by {how}: error {row.error_code} ({words})")
        elif key not in words:
            self.context.broken(f"{key}={value!r} by {how}: the sentence has no name: {words!r}")

    async def accept(self, setting: Setting) -> None:
        """Check that allowed extreme values are accepted while the broker runs, and that it still
        serves."""
        kind, name = (TOPIC, NAME) if setting.topic else (BROKER, "1")
        for value in setting.extremes():
            row = await self.alter(kind, name, setting.name, value, SET)
            self.context.tried("extreme values while the broker runs")
            if row.error_code not in (0, INVALID_CONFIG, INVALID_REQUEST):
                self.context.broken(f"{setting.name}={value!r}: error {row.error_code}")
            if row.error_code and setting.name not in (row.error_message or ""):
                self.context.broken(f"{setting.name}={value!r}: {row.error_message!r}")
            await served(self.context, self.client, f"{setting.name}={value!r}")
        await self.alter(kind, name, setting.name, None, DELETE)


async def served(context: Context, client: Client, under: str) -> None:
    """Check that a produce is answered, whatever the result, and so are the others."""
    there = await topics_of(client)
    if NAME in there:
        topic = Topic(NAME, there[NAME][0], 1, compacted=False, tiered=False)
        await produce(client, topic, 0, [Outgoing(1, b"k", b"v")])
    context.tried("requests served under extreme settings")


@asynccontextmanager
async def broker(context: Context, settings: dict[str, str]) -> AsyncIterator[Victim]:
    """A broker on an empty folder; raises BrokerFailed where it does not start."""
    data = context.folder / "data"
    victim = Victim(data, settings)
    try:
        await victim.start()
        yield victim
        await victim.stop()
    finally:
        await asyncio.to_thread(victim.process.kill)
        context.outputs["broker.log"] = victim.output
        for text in victim.complaints():
            context.broken(f"under {settings} the broker logged: {text}")
        await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(data)], check=False)


async def by_wire(context: Context, chosen: list[Setting], values: int) -> None:
    """All checks that go through the admin APIs."""
    async with broker(context, {}) as victim, link(victim.port) as client:
        row = CreatableTopic(NAME, 1, 1)
        await client.call(CreateTopicsRequest([row], 9000), 7)
        wire = Wire(context, client)
        for setting in chosen:
            wrong = setting.wrong()
            wrong = context.rng.sample(wrong, min(values, len(wrong)))
            await wire.refuse(setting, setting.name, wrong)
            if setting.dynamic:
                await wire.accept(setting)


async def start_with(context: Context, setting: Setting, value: str) -> None:
    """Check that a broker under an extreme value serves, or is refused in a sentence with code
    2."""
    names = setting.broker_names[:1] if setting.topic else (setting.name,)
    for name in names:
        context.tried("starts with extreme values")
        try:
            async with broker(context, {name: value}) as victim, link(victim.port) as client:
                await served(context, client, f"{name}={value}")
        except BrokerFailed as why:
            text = str(why)
            if "ended with 2" not in text or name not in text:
                context.broken(f"a broker with {name}={value!r}: {text[-1500:]}")
        except (Unanswered, *LOST) as why:
            context.broken(f"a broker with {name}={value!r} does not serve: {why!r}")


def by_command(context: Context, chosen: list[Setting], values: int) -> None:
    """All checks of values given at a start."""
    commands = Commands(context)
    try:
        for setting in chosen:
            wrong = [value for value in setting.wrong() if "\0" not in value]
            for name in setting.broker_names[:1] if setting.topic else (setting.name,):
                for value in context.rng.sample(wrong, min(values, len(wrong))):
                    for way in ("command line", "environment", "file"):
                        commands.check(name, value, way)
    finally:
        commands.close()


async def round_(context: Context) -> None:
    """Run one round."""
    settings = read_page()
    for setting in settings:
        if setting.allowed == ANY_TEXT and setting.name not in TEXTS:
            context.broken(f"{setting.name} is free text: say in documented.py what is wrong")
    settings = [s for s in settings if s.allowed != ANY_TEXT or s.name in TEXTS]
    context.rng.shuffle(settings)
    refusing = [s for s in settings if s.wrong()]  # any text is right for the others
    chosen = refusing[:SHORT_SETTINGS] if context.short else settings
    values = 4 if context.short else WRONG
    await asyncio.to_thread(by_command, context, chosen, values)
    await by_wire(context, chosen, values)
    context.tried("settings", len(chosen))
    starts = [(setting, value) for setting in chosen for value in setting.extremes()]
    context.rng.shuffle(starts)
    for done, (setting, value) in enumerate(starts):
        if done >= SHORT_STARTS if context.short else context.left_s < 5:
            return
        await start_with(context, setting, value)


TRIAL = Trial("settings", "every setting with wrong and with extreme values", round_, weight=0.7)
