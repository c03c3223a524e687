"""What is given wrongly ends with one plain line and its exit code (docs/cli.md), never with a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.text import Text
from sandlog_helpers import Cli, Nats

from sandlog.fitting import by_text, few, fitted
from sandlog.transport import SERVER_FILE


def one_line(text: str) -> bool:
    return text.startswith("sandlog: ") and text.count("\n") == 1 and "Traceback" not in text


@pytest.mark.parametrize(
    "url", ["foo:bar:baz", "nats://127.0.0.1:notaport", "nats://127.0.0.1:99999", "http://x:1", ","]
)
def test_a_malformed_url_is_told_apart_from_a_server_that_does_not_answer(cli: Cli, url: str) -> None:
    ran = cli("get", "--nats", url)

    assert ran.code == 2
    assert one_line(ran.err)
    assert "nats://host:4222" in ran.err


@pytest.mark.parametrize("password", ["geheim", "geheim/x", "geheim,x", "x@geheim"])
def test_a_password_in_a_malformed_url_is_not_said(cli: Cli, password: str) -> None:
    ran = cli("get", "--nats", f"nats://me:{password}@127.0.0.1:notaport")

    assert ran.code == 2
    assert "geheim" not in ran.err
    assert "127.0.0.1:notaport" in ran.err


@pytest.mark.parametrize("flag", ["--tlsca", "--creds", "--nkey", "--tlscert"])
def test_a_file_of_the_connection_that_is_missing_is_named_with_its_flag(cli: Cli, nats: Nats, flag: str) -> None:
    ran = cli("get", flag, "/nonexist/file", "--nats", nats.url)

    assert ran.code == 2
    assert one_line(ran.err)
    for part in ("/nonexist/file", "No such file", flag):
        assert part in ran.err


def test_a_file_that_is_no_certificate(cli: Cli, nats: Nats, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("none")

    ran = cli("get", "--tlsca", str(tmp_path / "ca.pem"), "--nats", nats.url)

    assert ran.code == 2
    assert one_line(ran.err)
    assert "ca.pem" in ran.err


def test_run_says_the_same(cli: Cli) -> None:
    ran = cli("run", "projector", "--tlsca", "/nonexist", "--nats", "nats://127.0.0.1:1")

    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("sandlog: cannot read /nonexist")
    assert "Traceback" not in ran.err


def test_a_log_file_that_cannot_be_written(cli: Cli) -> None:
    ran = cli("run", "projector", "--enable-file-log", "--log-file-path", "/proc/x/y", "--nats", "nats://127.0.0.1:1")

    assert ran.code == 2
    assert one_line(ran.err)
    assert "/proc/x/y" in ran.err
    assert "--log-file-path" in ran.err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "no such file"),
        (b"just words", "not a YAML mapping"),
        (b"a: [", "not YAML (line 1)"),
        (b"\xff\xfe\x00", "not text"),
        (b"{}", "current-context"),
        (b"", "not a YAML mapping"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used(
    cli: Cli, nats: Nats, tmp_path: Path, content: bytes | None, text: str
) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_bytes(content)

    ran = cli("run", "bridge", "--kubeconfig", str(path), "--nats", nats.url)

    said = ran.err.splitlines()[-1]
    assert ran.code == 4
    assert text in said
    assert str(path) in said
    assert said.count("--kubeconfig") == 1
    assert "Traceback" not in ran.err


def test_a_data_directory_whose_server_lies_below_it_is_suggested(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / SERVER_FILE).write_text('{"url":"nats://127.0.0.1:1"}')

    ran = cli("status", "--data-dir", str(tmp_path))

    assert ran.code == 3
    assert f"--data-dir {tmp_path / 'nats'}" in ran.err


def test_a_table_is_cut_to_the_terminal_at_its_widest_columns() -> None:
    rows: list[list[str | Text]] = [["team", "a" * 40, Text("f" * 30, style="red")], ["other", "b", "-"]]

    cut = fitted(("NAMESPACE", "NAME", "FAILURE"), rows, 50, ("NAME", "FAILURE"))

    # 9 for NAMESPACE and two gaps of 3 leave 35: 18 and 17, the wider one cut first.
    assert [len(cell) for cell in cut[0]] == [4, 17, 18]
    assert str(cut[0][1]) == "a" * 16 + "…"
    assert cut[1] == ["other", "b", "-"]
    assert fitted(("NAMESPACE", "NAME", "FAILURE"), rows, None, ("NAME",)) == rows


def test_columns_that_are_not_to_be_cut_stay_whole() -> None:
    rows: list[list[str | Text]] = [["x" * 40, "y" * 40]]

    assert [[str(cell) for cell in row] for row in fitted(("A", "B"), rows, 30, ("B",))] == [["x" * 40, "y" * 7 + "…"]]


def test_a_list_of_many_says_how_many_more() -> None:
    assert few([str(n) for n in range(12)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 … and 2 more"
    assert few(["a"]) == "a"


def test_what_several_scopes_say_is_said_once() -> None:
    assert by_text([("pod", "refused"), ("job", "refused"), ("pool", "403")]) == ["pod, job: refused", "pool: 403"]
