"""Flags in Go's notation and the stock controller's own (controller-behaviour.md §8.1); values, variables, usage errors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from bridge.jobbuild import CommitSettings
from bus.connection import ConnectionSettings
from bus.times import SECOND
from sandlog import roles
from sandlog.argv import go_style, long_flags
from sandlog.health import Address
from sandlog.main import cli, main
from sandlog.options import DURATION, GO_BOOL, SIGNED_DURATION, SIZE, Target
from sandlog.run_options import RunSettings, parse_concurrency
from sandlog.stock import IGNORED

FLAGS = {"leader-elect": True, "metrics-bind-address": False, "namespace": False}

STOCK_DEFAULTS = (
    ("metrics-bind-address", "0"),
    ("metrics-secure", "true"),
    ("metrics-cert-path", ""),
    ("metrics-cert-name", "tls.crt"),
    ("metrics-cert-key", "tls.key"),
    ("webhook-cert-path", ""),
    ("webhook-cert-name", "tls.crt"),
    ("webhook-cert-key", "tls.key"),
    ("health-probe-bind-address", ":8081"),
    ("leader-elect", "false"),
    ("enable-http2", "false"),
    ("allow-weak-tls-keylengths", "false"),
    ("enable-file-log", "false"),
    ("log-file-path", "/var/log/sandbox-controller/controller.log"),
    ("log-max-size", "100"),
    ("log-max-backups", "10"),
    ("log-max-age", "30"),
    ("log-compress", "true"),
    ("kube-client-qps", "0"),
    ("kube-client-burst", "200"),
    ("concurrency", "batchsandbox=32;pool=128"),
    ("image-committer-image", "image-committer:dev"),
    ("containerd-socket-path", "/var/run/containerd/containerd.sock"),
    ("commit-job-timeout", "10m"),
    ("snapshot-registry", ""),
    ("snapshot-registry-insecure", "false"),
    ("snapshot-push-secret", ""),
    ("resume-pull-secret", ""),
    ("expectation-timeout", "5m"),
    ("kubeconfig", "/dev/null"),
    ("zap-devel", "false"),
    ("zap-encoder", "json"),
    ("zap-log-level", "info"),
    ("zap-stacktrace-level", "error"),
    ("zap-time-encoding", "iso8601"),
)
"""The table of §8.1 with its defaults, or a legal value where it has none."""


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["-metrics-bind-address=:1"], ["--metrics-bind-address=:1"]),
        (["-metrics-bind-address", ":1"], ["--metrics-bind-address", ":1"]),
        (["--leader-elect", "all"], ["--leader-elect=true", "all"]),
        (["-leader-elect=false"], ["--leader-elect=false"]),
        (["-n", "team"], ["-n", "team"]),
        (["-nleader-elect"], ["-nleader-elect"]),
        (["--no-such-flag"], ["--no-such-flag"]),
        (["--", "-leader-elect"], ["--", "-leader-elect"]),
        (["leader-elect"], ["leader-elect"]),
    ],
)
def test_go_notation_becomes_ours_and_the_rest_stays(given: list[str], made: list[str]) -> None:
    assert go_style(given, FLAGS) == made


def run_with(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, **env: str
) -> tuple[RunSettings, Target, tuple[str, ...]]:
    """What `sandlog run all` would be started with."""
    seen: list[Any] = []

    async def run(role: str, target: Target, settings: RunSettings, warnings: tuple[str, ...]) -> None:
        seen.extend((settings, target, warnings))

    monkeypatch.setattr("sandlog.running.run", run)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main(["run", "all", *arguments])
    assert ended.value.code in (0, None)
    return seen[0], seen[1], seen[2]


def test_every_flag_of_the_stock_controller_is_accepted_in_gos_notation(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [f"-{name}={value}" for name, value in STOCK_DEFAULTS]

    settings, _, warnings = run_with(monkeypatch, *arguments)

    warned = {sentence.split()[0].removeprefix("--") for sentence in warnings}
    assert len(warnings) == len(IGNORED)
    assert warned == set(IGNORED)
    assert all(IGNORED[sentence.split()[0].removeprefix("--")].why in sentence for sentence in warnings)
    assert settings.endpoints.metrics is None
    assert settings.endpoints.health == Address(None, 8081)


def test_defaults_are_the_stock_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, target, warnings = run_with(monkeypatch)

    assert warnings == ()
    assert settings.endpoints.metrics is None
    assert settings.endpoints.health == Address(None, 8081)
    assert (settings.qps, settings.burst) == (0.0, 200)
    assert settings.logs.level == logging.INFO
    assert settings.logs.file is None
    assert target.connection is None


def test_ignored_flags_warn_when_they_come_by_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, warnings = run_with(monkeypatch, SANDLOG_LEADER_ELECT="true")

    assert [sentence.split()[0] for sentence in warnings] == ["--leader-elect"]


def test_flags_win_over_variables_and_ours_over_those_of_the_nats_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, target, _ = run_with(
        monkeypatch,
        "--namespace",
        "a",
        "-n",
        "b",
        "--pod-failure-grace=1m30s",
        SANDLOG_POD_FAILURE_GRACE="5s",
        SANDLOG_NATS="nats://ours:1",
        NATS_URL="nats://theirs:1",
        NATS_CREDS="/secret/creds",
    )

    assert settings.namespaces == ("a", "b")
    assert settings.pod_failure_grace == 90.0
    assert target.connection == ConnectionSettings(
        url="nats://ours:1", credentials=Path("/secret/creds"), connect_timeout=10.0
    )


def test_a_user_without_a_password_is_a_token_as_in_the_nats_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    _, target, _ = run_with(monkeypatch, "--nats", "nats://x:1", "--user", "t0ken")

    assert target.connection is not None
    assert (target.connection.token, target.connection.user) == ("t0ken", None)


def test_metrics_over_https_only_with_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _, _ = run_with(monkeypatch, "--metrics-bind-address=:8443")
    secure, _, _ = run_with(monkeypatch, "--metrics-bind-address=:8443", "--metrics-cert-path=/certs")
    off, _, _ = run_with(monkeypatch, "--metrics-bind-address=:8443", "--metrics-secure=false")

    assert plain.endpoints.certificate is None
    assert "plain HTTP" in plain.warnings[0]
    assert (secure.endpoints.certificate, secure.endpoints.key) == (Path("/certs/tls.crt"), Path("/certs/tls.key"))
    assert "without authentication" in secure.warnings[0]
    assert off.warnings == ()


def test_concurrency_is_read_as_the_stock_controller_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_concurrency((" batchsandbox=32 ;; pool=128", "pool=7")) == {"batchsandbox": 32, "pool": 7}
    settings, _, _ = run_with(monkeypatch, "--concurrency", "batchsandbox=32;pool=16")
    assert settings.api_calls == 32
    assert run_with(monkeypatch)[0].api_calls == 24


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("batchsandbox", "invalid concurrency config format: batchsandbox, expected format: controller=value"),
        ("pool=many", "invalid concurrency value for pool"),
        ("pool=0", "concurrency value must be positive for pool: 0"),
        ("pool=-3", "concurrency value must be positive for pool: -3"),
    ],
)
def test_concurrency_complaints_are_the_stock_controllers(text: str, complaint: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        parse_concurrency((text,))
    assert complaint in refused.value.message


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "all", "--no-such-flag"],
        ["run", "nothing"],
        ["run", "all", "--cluster", "Not Legal"],
        ["run", "all", "--cluster", "all"],
        ["run", "all", "--pod-failure-grace", "soon"],
        ["run", "all", "--metrics-bind-address", "nowhere"],
        ["run", "all", "--zap-log-level", "loud"],
        ["run", "all", "--leader-elect=maybe"],
        ["run", "all", "--creds", "x"],
        ["run", "all", "--redaction-key", "a", "--redaction-key-file", "pyproject.toml"],
        ["get", "--kind", "pod"],
    ],
)
def test_what_cannot_be_understood_is_exit_code_2_with_a_hint(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, go_style(arguments, long_flags(cli)))

    assert result.exit_code == 2
    assert "Usage:" in result.output


def test_a_misspelled_flag_is_answered_with_the_right_one() -> None:
    result = CliRunner().invoke(cli, ["run", "all", "--pod-failure-grase=1s"])

    assert "--pod-failure-grace" in result.output


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("7d", 604800), ("20", 20), ("1.5s", 1.5)]
)
def test_durations_are_gos(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10 m", "m", "1x", "10m!", "-5m", "-1", "nan", "inf", "+-1s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize(("text", "seconds"), [("-5m", -300), ("+1m", 60), ("-1h30m", -5400), ("-7", -7), ("0", 0)])
def test_where_a_stock_flag_gives_it_a_meaning_a_duration_may_be_negative(text: str, seconds: float) -> None:
    assert SIGNED_DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("-5m", 600), ("0", 600), ("0s", 600), ("-1ns", 600), ("500ms", 1), ("90.5s", 90)]
)
def test_a_commit_timeout_that_is_not_positive_is_the_default(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: int
) -> None:
    """controller-behaviour.md §7.7: in whole seconds, non-positive → 600."""
    settings, _, warnings = run_with(monkeypatch, f"--commit-job-timeout={text}", "--expectation-timeout=-1s")
    assert settings.commit.timeout == seconds
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:5000",
        "myorg",
        "[::1]:5000/x",
        "registry.default.svc.cluster.local:5000",
        "123.dkr.ecr.eu-west-1.amazonaws.com/team_a/x--y/a__b.c",
    ],
)
def test_a_registry_is_used_verbatim(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert run_with(monkeypatch, f"--snapshot-registry={text}")[0].snapshot_registry == text


def test_a_registrys_trailing_slash_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbatim it would make `reg:5000//a-main`, which no tool takes."""
    assert run_with(monkeypatch, "--snapshot-registry=reg:5000/")[0].snapshot_registry == "reg:5000"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("http://reg:5000/", "write reg:5000, and --snapshot-registry-insecure for plain HTTP"),
        ("https://reg.example.com/x", "write reg.example.com/x"),
        ("docker://reg", "write reg"),
        ("reg.example.com/Team", "lower case"),
        ("reg.example.com/x:v1", "tag"),
        ("reg.example.com/x@sha256:0", "tag"),
        ("reg:port", "HOST[:PORT][/PATH]"),
        ("reg//x", "HOST[:PORT][/PATH]"),
        ("/reg", "HOST[:PORT][/PATH]"),
        (" reg", "HOST[:PORT][/PATH]"),
        ("reg/" + "x" * 150, "longer than"),
    ],
)
@pytest.mark.parametrize("command", [["run", "all"], ["export"], ["replay", "x.zip"]])
def test_a_registry_with_which_no_image_name_is_valid_is_refused_at_once(
    command: list[str], text: str, hint: str
) -> None:
    result = CliRunner().invoke(cli, [*command, f"--snapshot-registry={text}"], terminal_width=1000)

    assert result.exit_code == 2
    assert hint in " ".join(result.output.replace("│", " ").split())


def test_sizes_are_powers_of_1024() -> None:
    assert [SIZE.convert(text, None, None) for text in ("512", "1K", "10MiB", "2G", "1.5g")] == [
        512,
        1024,
        10 * 1024**2,
        2 * 1024**3,
        1536 * 1024**2,
    ]


@pytest.mark.parametrize("word", ["true", "True", "1", "t", "T", "TRUE"])
def test_booleans_are_gos(word: str) -> None:
    assert GO_BOOL.convert(word, None, None) is True


def test_help_shows_each_flags_variable_and_the_exit_codes() -> None:
    for command in cli.commands.values():
        text = CliRunner().invoke(command, ["--help"], terminal_width=200).output
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden and option.envvar:
                assert option.envvar[0] in text, option.name  # type: ignore[index]
                assert option.envvar[0].startswith("SANDLOG_")  # type: ignore[index]
    assert "6 refused to start" in " ".join(CliRunner().invoke(cli, ["--help"]).output.split())


def test_version() -> None:
    assert CliRunner().invoke(cli, ["--version"], prog_name="sandlog").output == "sandlog 0.1.0\n"


def test_the_flags_of_snapshots_and_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """controller-behaviour.md §8.1."""
    settings, _, _ = run_with(monkeypatch)
    assert settings.commit == CommitSettings(
        "image-committer:dev", "/var/run/containerd/containerd.sock", 600, False, ""
    )
    assert (settings.snapshot_registry, settings.resume_pull_secret) == ("", "")
    settings, _, _ = run_with(
        monkeypatch,
        "--image-committer-image=committer:1",
        "-containerd-socket-path=/run/k3s/containerd.sock",
        "--commit-job-timeout=1h30m",
        "--snapshot-registry=reg.example.com/x",
        "-snapshot-registry-insecure",
        "--snapshot-push-secret=push",
        SANDLOG_RESUME_PULL_SECRET="pull",
    )
    assert settings.commit == CommitSettings("committer:1", "/run/k3s/containerd.sock", 5400, True, "push")
    assert (settings.snapshot_registry, settings.resume_pull_secret) == ("reg.example.com/x", "pull")


@pytest.mark.parametrize(
    ("arguments", "patience"),
    [((), 1800), (("--commit-job-timeout=30s",), 1800), (("--commit-job-timeout=1h",), 10800)],
)
def test_a_pause_outlasts_its_commit(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], patience: int
) -> None:
    settings, _, _ = run_with(monkeypatch, *arguments)
    assert roles.decide_settings(settings).snapshot_patience == patience * SECOND
