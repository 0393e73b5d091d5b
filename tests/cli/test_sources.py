"""Sources of settings: command line, environment, file, defaults; and mistakes in each."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kafkawire.broker.options import ServeOptions
from kafkawire.cli.app import app
from kafkawire.cli.serving.run import notes, serve_options
from kafkawire.cli.serving.sources import collect
from kafkawire.client.notation import OptionError
from kafkawire.codec.configs.settings import BROKER_CONFIGS
from tests.kit.cli import no_environment, run  # noqa: F401  (a fixture, by name)


def test_precedence_of_sources(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text(
        'data = "from-file"\nlog-level = "error"\nlisten = ["A://[::1]:1", "B://[::1]:2"]\n'
        "[settings]\nnum.partitions = 2\n'flush' = 'os'\nauto.create.topics.enable = false\n"
    )
    environ = {
        "KAFKAWIRE_CONFIG": str(file),
        "KAFKAWIRE_DATA": "from-environment",
        "KAFKAWIRE_LOG_LEVEL": "debug",
        "KAFKAWIRE_SET_NUM_PARTITIONS": "3",
        "KAFKAWIRE_SET_COMMIT_DELAY_MS": "7",
    }
    found = collect({"data": ["from-line"]}, [("num.partitions", "4")], environ, None)
    reported = {name: (value.text, value.source) for name, value in found.options.items()}
    assert reported == {
        "data": ("from-line", "command line --data"),
        "log-level": ("debug", "environment KAFKAWIRE_LOG_LEVEL"),
        "listen": ("A://[::1]:1,B://[::1]:2", f"file {file}"),
        "advertise": ("", "default"),
        "metadata": ("", "default"),
        "tier": ("", "default"),
        "log-format": ("text", "default"),
        "insecure": ("false", "default"),
        "workers": ("1", "default"),
        "worker-ports": ("", "default"),
        "console": ("", "default"),
    }
    reported = {name: (value.text, value.source) for name, value in found.settings.items()}
    assert reported == {
        "num.partitions": ("4", "command line --set"),
        "commit.delay.ms": ("7", "environment KAFKAWIRE_SET_COMMIT_DELAY_MS"),
        "flush": ("os", f"file {file}"),
        "auto.create.topics.enable": ("false", f"file {file}"),
    }
    options = serve_options(found)
    assert options.data == str(Path.cwd() / "from-line")  # the ports take absolute paths
    assert [listener.name for listener in options.listeners] == ["A", "B"]
    assert options.settings["num.partitions"] == "4"


def test_lists_in_environment_are_comma_separated() -> None:
    found = collect({}, [], {"KAFKAWIRE_LISTEN": "A://[::1]:1,B://[::1]:2"}, None)
    assert [listener.port for listener in serve_options(found).listeners] == [1, 2]


def test_last_of_repeated_settings_wins() -> None:
    found = collect({}, [("num.partitions", "4"), ("num.partitions", "5")], {}, None)
    assert found.settings["num.partitions"].text == "5"


def test_durations_and_sizes_have_units(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text('[settings]\n"log.retention.bytes" = "10GiB"\n')
    environ = {"KAFKAWIRE_SET_LOG_ROLL_MS": "1h"}
    found = collect({}, [("log.retention.ms", "7d")], environ, str(file)).settings
    assert found["log.retention.ms"].text == str(7 * 86_400_000)
    assert found["log.roll.ms"].text == str(3_600_000)
    assert found["log.retention.bytes"].text == str(10 << 30)


def test_tier_can_be_option_or_setting(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text(f'tier = "{tmp_path}/toml"\n[settings]\ntier.url = "s3://other"\n')
    environ = {"KAFKAWIRE_CONFIG": str(file)}

    def url(options: dict[str, list[str]], environ: dict[str, str], *pairs: str) -> str:
        settings = [("tier.url", pair) for pair in pairs]
        return serve_options(collect(options, settings, environ, None)).settings["tier.url"]

    assert url({}, environ) == f"file://{tmp_path}/toml"
    environ["KAFKAWIRE_TIER"] = "s3://bucket/in/environment/"
    assert url({}, environ) == "s3://bucket/in/environment"  # in its canonical form
    assert url({}, environ, "s3://set/x") == "s3://set/x"
    assert url({"tier": ["s3://line"]}, environ, "s3://set/x") == "s3://line"
    assert url({"tier": ["folder"]}, {}) == f"file://{Path.cwd()}/folder"
    assert "tier.url" not in serve_options(collect({}, [], {}, None)).settings


def test_service_variables_of_kubernetes_are_ignored() -> None:
    """Kubernetes sets such variables for a service named kafkawire."""
    environ = {"KAFKAWIRE_PORT_9092_TCP": "tcp://10.0.0.1:9092", "KAFKAWIRE_SERVICE_HOST": "x"}
    assert collect({}, [], environ, None).settings == {}


def test_each_setting_has_its_own_variable() -> None:
    names = [name.upper().replace(".", "_") for name in BROKER_CONFIGS]
    assert len(set(names)) == len(names)


def test_overridden_value_is_checked_by_its_own_source_only() -> None:
    found = collect({}, [("num.partitions", "4")], {"KAFKAWIRE_SET_NUM_PARTITIONS": "x"}, None)
    assert found.settings["num.partitions"].text == "4"


def test_invalid_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKAWIRE_SET_NUM_PARTITIONS", "many")
    result = run(app, ["serve"])
    assert result.exit_code == 2
    assert "num.partitions=many" in result.stderr
    assert "KAFKAWIRE_SET_NUM_PARTITIONS" in result.stderr


def test_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKAWIRE_SET_NUM_PARTITION", "1")
    result = run(app, ["serve"])
    assert result.exit_code == 2
    assert "num.partition: unknown setting, did you mean num.partitions?" in result.stderr


def test_show_config_names_every_setting_and_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # too narrow for the longest name and a value
    result = run(
        app,
        [
            "serve",
            "--set",
            "num.partitions=9",
            "--metadata",
            "postgresql://u:pw@h/d",
            "--show-config",
        ],
    )
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["num.partitions", "9", "command", "line", "--set"] in lines
    assert ["metadata", "postgresql://u:***@h/d", "command", "line", "--metadata"] in lines
    shown = {line[0] for line in lines if line}
    assert set(BROKER_CONFIGS) <= shown
    assert "command line, environment KAFKAWIRE_*, TOML file, default" in result.stdout


def test_listening_on_all_addresses_prints_advertised_address() -> None:
    insecure = [("plaintext.allowed.addresses", "10.0.0.0/8")]
    open_to_all = collect({"listen": ["0.0.0.0:1"]}, insecure, {}, None)
    (sentence,) = notes(serve_options(open_to_all), open_to_all)
    assert socket.gethostname() in sentence
    assert "--advertise" in sentence
    said = collect({"listen": ["0.0.0.0:1"], "advertise": ["me:1"]}, insecure, {}, None)
    assert notes(serve_options(said), said) == []


def chosen(listen: str, settings: list[tuple[str, str]], **environ: str) -> ServeOptions:
    return serve_options(collect({"listen": [listen]}, settings, environ, None))


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:1", "*:1", ":1", "[::]:1", "kafka:1", "IN://10.1.1.1:1"]
)
def test_a_plaintext_listener_for_other_machines_is_refused(listen: str) -> None:
    with pytest.raises(OptionError) as caught:
        chosen(listen, [])
    for way in ("TLS://", "--insecure", "plaintext.allowed.addresses"):
        assert way in str(caught.value)
    assert chosen(listen, [], KAFKAWIRE_INSECURE="true").listeners
    assert chosen(listen, [("plaintext.allowed.addresses", "10.0.0.0/8")]).listeners


@pytest.mark.parametrize(
    "listen",
    ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.9.9.9:1", "TLS://0.0.0.0:1", "SASL_TLS://:1"],
)
def test_other_listeners_need_no_permission(listen: str) -> None:
    assert chosen(listen, []).listeners


def test_the_flag_may_be_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "kafkawire.toml"
    for text, insecure in (("true", True), ('"true"', True), ("false", False)):
        file.write_text(f'listen = "0.0.0.0:1"\ninsecure = {text}\n')
        found = collect({}, [], {}, str(file))
        assert (found.options["insecure"].text == "true") is insecure
    with pytest.raises(OptionError, match="insecure"):
        collect({"insecure": ["maybe"]}, [], {}, None)


def test_settings_of_single_listeners(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text(
        'listen = ["SASL_TLS://[::1]:1", "A.b-c=TLS://[::1]:2"]\n[settings.listener.name]\n'
        '"a.b-c".ssl.client.auth = "required"\nsasl_tls.max.connections = 5\n'
    )
    environ = {
        "KAFKAWIRE_SET_LISTENER_NAME_SASL_TLS_MAX_CONNECTIONS": "7",
        "KAFKAWIRE_SET_LISTENER_NAME_SASL_TLS_SCRAM_SHA_256_CONNECTIONS_MAX_REAUTH_MS": "9",
    }
    pairs = [("listener.name.a.b-c.ssl.keystore.location", "x.pem"), ("num.partitions", "4")]
    found = collect({}, pairs, environ, str(file))
    options = serve_options(found)
    assert options.settings == {"num.partitions": "4"}
    assert options.listener_settings == {
        "listener.name.a.b-c.ssl.client.auth": "required",
        "listener.name.a.b-c.ssl.keystore.location": "x.pem",
        "listener.name.sasl_tls.max.connections": "7",
        "listener.name.sasl_tls.scram-sha-256.connections.max.reauth.ms": "9",
    }


def test_settings_of_listeners_are_shown() -> None:
    name = "listener.name.plaintext.max.connections"
    result = run(app, ["serve", "--show-config", "--set", f"{name}=7"])
    assert [line for line in result.stdout.splitlines() if name in line and " 7 " in line]


@pytest.mark.parametrize(
    "url", ["https://user:secret@issuer/keys", "http:user:secret@issuer", "https:/user:secret@x",
            "user:secret@issuer/keys", " https://secret@issuer:8443/keys"],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["", "listener.name.plaintext.oauthbearer."])
def test_credentials_in_a_url_are_refused(url: str, prefix: str) -> None:
    name = f"{prefix}sasl.oauthbearer.jwks.endpoint.url"
    for more in ([], ["--show-config"]):
        result = run(app, ["serve", "--listen", "127.0.0.1:0", "--set", f"{name}={url}", *more])
        assert result.exit_code == 2
        assert f"{name}: there must be no user or password in the URL" in result.stderr
        assert "secret" not in result.output


@pytest.mark.parametrize("url", ["https://issuer/@/keys", "/etc/a@b", "file:///etc/a@b"])
def test_paths_of_key_sets_may_have_any_characters(url: str) -> None:
    name = "sasl.oauthbearer.jwks.endpoint.url"
    assert collect({}, [(name, url)], {}, None).settings[name].text == url


def test_options_are_printed_without_secrets() -> None:
    environ = {
        "KAFKAWIRE_SET_DELEGATION_TOKEN_SECRET_KEY": "secret-key",
        "KAFKAWIRE_METADATA": "postgresql://u:secret-word@h/db",
    }
    found = collect({}, [("listener.name.plaintext.max.connections", "77")], environ, None)
    options = serve_options(found)
    assert options.settings["delegation.token.secret.key"] == "secret-key"
    assert "secret-" not in f"{options} {options!r} {found!r}"


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"metrics.listener": "0.0.0.0:1"}, True), ({"metrics.listener": "[::]:1"}, True),
        ({"metrics.listener": "monitors.example:1"}, True), ({"metrics.listener": ":1"}, True),
        ({"metrics.listener": "127.0.0.1:1"}, False), ({"metrics.listener": "[::1]:1"}, False),
        ({"metrics.listener": "0.0.0.0:1", "metrics.tls": "true"}, False), ({}, False),
        ({"metrics.listener": "0.0.0.0:1", "metrics.token.file": ""}, False),
    ],
)  # fmt: skip
def test_warning_about_tokens_that_are_not_encrypted(
    settings: dict[str, str], warned: bool
) -> None:
    found = collect({}, list({"metrics.token.file": "/token", **settings}.items()), {}, None)
    sentences = notes(serve_options(found), found)
    assert [each for each in sentences if "metrics.token.file" in each] == sentences
    assert bool(sentences) is warned
