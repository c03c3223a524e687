"""The published SDK behind standard input and output, one JSON line a call: `{"verb": …, …}` → `{"result": …}` or `{"error": …}`.

Runs in the real client's own environment, which has none of sandlog's packages, so that tests can drive the SDK step by step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from opensandbox import SandboxManagerSync, SandboxSync
from opensandbox.config import ConnectionConfigSync
from opensandbox.exceptions import SandboxException
from opensandbox.models.sandboxes import SandboxFilter

# The server may wait for 60 s in a creation; the SDK's own 30 s would give up on it and leave the sandbox behind.
REQUEST_LIMIT = timedelta(seconds=90)


class Client:
    """Verbs over one server. Sandboxes are named by their ids; each answer is plain JSON."""

    def __init__(self, domain: str, key: str) -> None:
        self._config = ConnectionConfigSync(domain=domain, api_key=key, request_timeout=REQUEST_LIMIT)
        self._manager = SandboxManagerSync.create(connection_config=self._config)
        self._sandboxes: dict[str, SandboxSync] = {}
        self.verbs: dict[str, Callable[..., Any]] = {
            verb: getattr(self, verb)
            for verb in ("create", "info", "renew", "endpoint", "healthy", "pause", "resume", "list", "kill")
        }

    def create(self, image: str, seconds: int, metadata: dict[str, str]) -> str:
        """Returns once the sandbox runs, has an endpoint, and its /ping answers."""
        sandbox = SandboxSync.create(
            image,
            timeout=timedelta(seconds=seconds),
            metadata=metadata,
            env={"COLOUR": "blue"},
            entrypoint=["sleep", "infinity"],
            connection_config=self._config,
        )
        self._sandboxes[sandbox.id] = sandbox
        return str(sandbox.id)

    def info(self, id: str) -> dict[str, Any]:
        info = self._manager.get_sandbox_info(id)
        return {
            "state": info.status.state,
            "reason": info.status.reason,
            "message": info.status.message,
            "expires_at": info.expires_at.isoformat() if info.expires_at else None,
        }

    def renew(self, id: str, seconds: int) -> str:
        """The new time of expiry."""
        renewed = self._manager.renew_sandbox(id, timedelta(seconds=seconds))
        return str(renewed.expires_at.isoformat())

    def endpoint(self, id: str, port: int) -> str:
        return str(self._sandboxes[id].get_endpoint(port).endpoint)

    def healthy(self, id: str) -> bool:
        return bool(self._sandboxes[id].is_healthy())

    def pause(self, id: str) -> None:
        """Returns once the server has taken the request, not once the sandbox is paused."""
        self._sandboxes[id].pause()

    def resume(self, id: str) -> None:
        """Returns once /ping answers at the sandbox's endpoint, which is a new one."""
        self._sandboxes[id] = SandboxSync.resume(id, connection_config=self._config)

    def list(self, metadata: dict[str, str]) -> list[str]:
        """Ids and states, `id state`, in order."""
        page = self._manager.list_sandbox_infos(SandboxFilter(metadata=metadata))
        return sorted(f"{info.id} {info.status.state}" for info in page.sandbox_infos)

    def kill(self, id: str) -> None:
        self._sandboxes.pop(id).kill()


def main() -> None:
    client = Client(*sys.argv[1:3])
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = {"result": client.verbs[call.pop("verb")](**call)}
        except SandboxException as refused:
            answer = {"error": f"{type(refused).__name__}: {refused}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
