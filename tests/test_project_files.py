"""The files of a public project agree with the Makefile and with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def project(folder: str = ".") -> dict[str, Any]:
    text = (ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["project"])


def test_workflows_call_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    called: set[str] = set()
    for path in WORKFLOWS.glob("*.yml"):
        for name, job in load(path)["jobs"].items():
            assert job["timeout-minutes"] <= 120, (path.name, name)
            commands = [step["run"] for step in job["steps"] if "run" in step]
            assert commands, (path.name, name)
            for command in commands:
                found = re.fullmatch(r"make ([\w-]+)(?: [A-Z]+=\S+)*", command)
                assert found is not None, command
                called.add(found[1])
    assert called == {"check", "dist", "test", "trials", "wheels"}
    assert called <= set(targets)


def test_each_version_of_python_is_checked() -> None:
    versions = load(WORKFLOWS / "check.yml")["jobs"]["check"]["strategy"]["matrix"]["python"]
    named = [row.rpartition(" ")[2] for row in project()["classifiers"] if "Python :: 3." in row]
    assert versions == named
    assert project()["requires-python"] == f">={versions[0]}"
    built = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    wanted = " ".join(f"cp{version.replace('.', '')}-*" for version in versions)
    assert built["cibuildwheel"]["build"] == wanted


def test_hooks_are_programs_of_make_check() -> None:
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in repository["hooks"]:
        program = hook["entry"].removeprefix(".venv/bin/")
        assert f"$(BIN)/{program}" in makefile, program


def test_templates_ask_for_the_version() -> None:
    bug = load(ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml")
    asked = " ".join(each["attributes"]["description"] for each in bug["body"])
    assert "`kafkawire version`" in asked
    assert "`kafkawire serve --show-config`" in asked


def test_version_is_the_same_everywhere() -> None:
    version = project()["version"]
    chart = load(ROOT / "deploy" / "helm" / "kafkawire" / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (version, version)
    spark = project("spark")
    assert spark["version"] == version
    assert project()["optional-dependencies"]["spark"] == [f"kafkawire-spark=={version}"]
    assert f"kafkawire[reading,s3]=={version}" in spark["dependencies"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.M)
    assert released[0] == version


def test_distributions_have_the_same_terms() -> None:
    same = ("requires-python", "license", "license-files", "authors")
    assert {name: project("spark")[name] for name in same} == {
        name: project()[name] for name in same
    }
    assert (ROOT / "spark/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    versions = [
        [row for row in each["classifiers"] if "Python ::" in row]
        for each in (project(), project("spark"))
    ]
    assert versions[0] == versions[1]
