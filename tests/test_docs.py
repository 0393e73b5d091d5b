"""Generated documents are current, and everything that the others refer to exists.

Covers: kafkawire.metadata.schema.created.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from kafkawire.codec.configs.table import BROKER_CONFIGS, TOPIC_CONFIGS
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.registry import APIS
from tests.test_architecture import _tracked

ROOT = Path(__file__).parent.parent


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_documents_are_current() -> None:
    documents = _generator().documents()
    assert len(documents) > 50  # the README.md of each package too
    old = [
        str(path.relative_to(ROOT))
        for path, wanted in documents.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != wanted
    ]
    assert not old, "run make docs"


def _pages() -> list[Path]:
    """Every document of the repository."""
    return _tracked("*.md")


def _anchors(page: Path) -> set[str]:
    """The anchors of the titles of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each) for each in
              re.findall(r"^#+ (.+)$", text, re.M)]  # fmt: skip
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _broken(page: Path) -> list[str]:
    """Return the links of a page whose file or anchor does not exist."""
    found = []
    for target, anchor in re.findall(
        r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")
    ):
        at = page.parent / target if target else page
        if "://" in target:
            continue
        if not at.exists() or (anchor and at.suffix == ".md" and anchor not in _anchors(at)):
            found.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    return found


def test_links_have_targets() -> None:
    assert not [link for page in _pages() for link in _broken(page)]


def test_tables_have_no_gap() -> None:
    """A row after an empty line is not shown as part of the table."""
    broken = []
    for page in _pages():
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for first, second in re.findall(r"(?<=\n\n)(\|.*)\n(.*)", text):
            if not re.match(r"\|[ :|-]+$", second):
                broken.append(f"{page.relative_to(ROOT)}: {first}")
    assert not broken


def test_figures_in_performance_are_measured() -> None:
    """Each rate of docs/performance.md is in the notes from which it was copied."""
    notes = (ROOT / "bench" / "notes" / "performance.md").read_text(encoding="utf-8")
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    named = re.findall(r"\b\d{1,3}(?:,\d{3})+\b", text)
    assert len(named) > 15
    assert [each for each in named if each not in notes] == []


def test_paths_and_modules_in_the_documents_exist() -> None:
    """In text and in commands: `kafkawire/log/...`, `tests/...`, `python -m bench.micro.log`. The
    text of a link may be short for its target."""
    gone = []
    for page in _pages():
        text = page.read_text(encoding="utf-8")
        paths = re.findall(
            r"(?<![\w/.[])((?:kafkawire|spark/kafkawire_spark|tests|bench|docs)/[\w./-]*\w)", text
        )
        modules = re.findall(r"python -m ((?:bench|tests|kafkawire)[\w.]*)", text)
        for path in (*paths, *(name.replace(".", "/") for name in modules)):
            if not ((ROOT / path).exists() or (ROOT / f"{path}.py").is_file()):
                gone.append(f"{page.relative_to(ROOT)}: {path}")
    assert not gone


def test_architecture_is_short_and_has_an_index() -> None:
    """Details belong into the docstrings of packages, which their README.md shows."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.split()) < 3250
    index = text.partition("## Where to find")[2].partition("## Map")[0]
    for topic in (
        "Backpressure",
        "Committed offsets",
        "Deletion of S3 objects",
        "Storage provider",
    ):
        (row,) = (line for line in index.splitlines() if line.startswith(f"| {topic}"))
        assert "](" in row, topic


def test_settings_in_architecture_exist() -> None:
    """A setting that was renamed is found here, one that never existed too."""
    known = set(BROKER_CONFIGS) | set(TOPIC_CONFIGS)
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", text)
    assert len(named) > 10
    assert {name for name in named if not name.endswith((".py", ".toml"))} <= known


def test_make_targets_in_the_documents_exist() -> None:
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?:`|\$ )make ([a-z]+)", (ROOT / name).read_text()))
        assert named <= made, name


SERVED = {
    "ACLs": "authorizer", "access rules": "authorizer", "authorization": "authorizer",
    "TLS": "ssl.keystore.location", "encryption": "ssl.keystore.location",
    "SASL": "sasl.enabled.mechanisms", "SCRAM": "sasl.enabled.mechanisms",
    "log-in": "sasl.enabled.mechanisms", "authentication": "sasl.enabled.mechanisms",
    "quotas": "quota.window.num", "delegation tokens": "delegation.token.secret.key",
    "replication": "replication.listener", "transactions": "transaction.max.timeout.ms",
    "metrics": "metrics.listener", "OAUTHBEARER": "sasl.oauthbearer.jwks.endpoint.url",
    "audit log": "audit.log", "backups": "backup.url", "compaction": "log.cleaner.enable",
    "key index": "index.keys.enable", "rack": "replica.selector.class",
    "KIP-848": "group.consumer.session.timeout.ms",
    "schedule topics": "schedule.target.topic", "takeover": "cluster.takeover.enable",
    "tiered storage": "tier.url", "remote tier": "tier.url",
}  # fmt: skip
"""A feature, and a setting that exists as long as the feature does."""
DENIED = re.compile(
    r"\bnot (?:served|supported|implemented|possible|available)\b|\bunsupported\b"
    r"|\bnot yet (?!uploaded)"
    r"|\bdo(?:es)? not (?:support|serve|implement)\b|\bthere (?:is|are) no(?:ne)?\b"
    r"|\bplaintext only\b|\bonly plaintext\b|\bno (?:ACLs|SASL|quotas|transactions)\b",
    re.IGNORECASE,
)
TRUE_DENIALS = (
    "UpdateFeatures refuses",  # features of other protocols
    "but for `PLAINTEXT`",  # the Spark source and writer
    "API version not supported",  # a message of a client
    "version of InitProducerId",  # two-phase commit
)
"""Parts of sentences that say what is really missing, next to the name of a feature that exists."""


def denials(text: str) -> list[str]:
    """Return the sentences that deny a feature or an API which the broker has."""
    assert {*SERVED.values()} <= {*BROKER_CONFIGS, *TOPIC_CONFIGS}
    names = "|".join([*map(re.escape, SERVED), *(each.name for each in APIS.values())])
    known = re.compile(rf"\b(?:{names}|plaintext)\b", re.IGNORECASE)
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    sentences = (
        " ".join(each.split())
        for part in re.split(r"\n\s*\n|\n *- |\|", text)
        for each in re.split(r"(?<=[.!?;])\s", part)
    )
    return [
        each
        for each in sentences
        if DENIED.search(each) and known.search(each) and not any(x in each for x in TRUE_DENIALS)
    ]


def test_no_document_denies_a_feature_that_exists() -> None:
    found = {
        str(page.relative_to(ROOT)): said
        for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        if page.name != "apis.md" and (said := denials(page.read_text(encoding="utf-8")))
    }
    assert not found


def test_denials_that_were_in_the_documents_are_found() -> None:
    for said in (
        "Access control lists and SCRAM users are refused: there are none",
        "SaslHandshake is not served.",
        "- Plaintext only, as the broker.",
        "- There are no ACLs: every client may use every transactional id.",
        "Compaction is not yet done for tiered topics.",
        "The broker does not support delegation tokens.",
    ):
        assert denials(said), said
    assert not denials("There are no JKS stores. SASL_PLAINTEXT is not encrypted.")


def test_messages_in_troubleshoot_exist() -> None:
    """The codes are those of Kafka, and the messages of a start are in the code."""
    text = (ROOT / "docs" / "troubleshoot.md").read_text(encoding="utf-8")
    codes = {each for each in re.findall(r"\b[A-Z]{3,}(?:_[A-Z]+)+\b", text)} - {"SASL_TLS"}
    assert len(codes) > 15
    assert codes <= {each.name for each in ErrorCode}
    source = "".join(
        " ".join(re.sub(r'"\s+f?"', "", path.read_text(encoding="utf-8")).split())
        for path in sorted(ROOT.glob("kafkawire/**/*.py"))
    )
    start = text.partition("## The broker does not start")[2].partition("\n## ")[0]
    said = [
        part.strip()
        for line in re.findall(r"^\| `(.*?)`", start, re.MULTILINE)
        for part in re.split(r"\.\.\.|=|: |, ", line)
        if len(part.strip()) > 10
    ]
    assert len(said) >= 5
    assert [each for each in said if each not in source] == []


def test_extras_are_installed_from_a_checkout() -> None:
    """The package is in no index: `pip install kafkawire[...]` would fail."""
    wrong = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in _pages()
        if page.name != "CHANGELOG.md"
        for line in re.findall(r"pip install [^\n`]*", page.read_text(encoding="utf-8"))
        if re.search(r"(?<![./\w-])kafkawire\[", line)
    ]
    assert not wrong


CONFLICT = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)


def test_no_file_has_an_unresolved_conflict() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in _tracked()
        if CONFLICT.search(path.read_text(encoding="utf-8", errors="ignore"))
    ]
    assert not found
