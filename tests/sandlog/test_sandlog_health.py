"""/healthz, /readyz and /metrics on the stock controller's flags (controller-behaviour.md §8.1)."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from sandlog.exits import FAILURE, Stop
from sandlog.health import Address, Endpoints, parse_address, serve
from sandlog.metrics import PrometheusMetrics

ANY = Address("127.0.0.1", 0)


async def fetch(url: str, **options: object) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, **options) as answer:  # type: ignore[arg-type]
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0", None),
        ("", None),
        (":8081", Address(None, 8081)),
        ("127.0.0.1:9", Address("127.0.0.1", 9)),
        ("[::1]:8443", Address("::1", 8443)),
    ],
)
def test_addresses_are_gos(text: str, address: Address | None) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["8081", ":http", ":70000", "host"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        parse_address(text)


async def test_readyz_names_what_is_not_ready_and_healthz_does_not_mind() -> None:
    wrong = {"bridge": "batchsandbox: listing", "projector": "catching up"}
    async with serve(Endpoints(health=ANY), PrometheusMetrics(), dict, lambda: wrong) as urls:
        assert await fetch(f"{urls['health']}/readyz") == (
            503,
            "bridge: batchsandbox: listing\nprojector: catching up\n",
        )
        assert await fetch(f"{urls['health']}/healthz") == (200, "ok")
        wrong.clear()
        assert await fetch(f"{urls['health']}/readyz") == (200, "ok")
        assert (await fetch(f"{urls['health']}/metrics"))[0] == 404


async def test_metrics_are_on_their_own_address() -> None:
    figures = PrometheusMetrics()
    figures.count("projector_records", 5)
    async with serve(Endpoints(metrics=ANY), figures, dict, dict) as urls:
        status, text = await fetch(f"{urls['metrics']}/metrics")
        assert status == 200
        assert "sandlog_projector_records_total 5.0" in text
        assert "process_cpu_seconds_total" in text
        assert (await fetch(f"{urls['metrics']}/healthz"))[0] == 404


async def test_one_address_for_both_is_one_server() -> None:
    async with serve(Endpoints(health=ANY, metrics=ANY), PrometheusMetrics(), dict, dict) as urls:
        assert urls["health"] == urls["metrics"]
        assert (await fetch(f"{urls['health']}/metrics"))[0] == 200


async def test_a_port_that_is_taken_is_said_with_its_flag() -> None:
    async with serve(Endpoints(health=ANY), PrometheusMetrics(), dict, dict) as urls:
        taken = Address("127.0.0.1", int(urls["health"].rpartition(":")[2]))
        with pytest.raises(Stop) as stopped:
            async with serve(Endpoints(health=taken), PrometheusMetrics(), dict, dict):
                pass
    assert stopped.value.code == FAILURE
    assert "--health-probe-bind-address" in stopped.value.message


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A folder with tls.crt and tls.key for this machine's loopback."""
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    files = ["-keyout", str(tmp_path / "tls.key"), "-out", str(tmp_path / "tls.crt")]
    if subprocess.run([*command.split(), *files], capture_output=True, check=False).returncode:
        pytest.skip("no openssl to make a certificate with")
    return tmp_path


async def test_metrics_over_https_with_a_certificate(certificate: Path) -> None:
    trust = ssl.create_default_context(cafile=str(certificate / "tls.crt"))
    endpoints = Endpoints(
        health=ANY, metrics=Address("localhost", 0), certificate=certificate / "tls.crt", key=certificate / "tls.key"
    )

    async with serve(endpoints, PrometheusMetrics(), dict, dict) as urls:
        assert urls["metrics"].startswith("https://")
        port = urls["metrics"].rpartition(":")[2]
        assert (await fetch(f"https://127.0.0.1:{port}/metrics", ssl=trust))[0] == 200
        assert (await fetch(f"{urls['health']}/healthz"))[0] == 200


async def test_a_certificate_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    endpoints = Endpoints(metrics=ANY, certificate=tmp_path / "none", key=tmp_path / "none")
    with pytest.raises(Stop, match="cannot read the metrics certificate"):
        async with serve(endpoints, PrometheusMetrics(), dict, dict):
            pass
