"""A small client of a Kubernetes API server for tests: JSON in, JSON out, and waiting for what a watch shows."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

import aiohttp

GROUP = "/apis/sandbox.opensandbox.io/v1alpha1"
COLLECTIONS = {
    "BatchSandbox": (GROUP, "batchsandboxes"),
    "Pool": (GROUP, "pools"),
    "SandboxSnapshot": (GROUP, "sandboxsnapshots"),
    "Pod": ("/api/v1", "pods"),
    "Event": ("/api/v1", "events"),
    "Secret": ("/api/v1", "secrets"),
    "ResourceQuota": ("/api/v1", "resourcequotas"),
    "Job": ("/apis/batch/v1", "jobs"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
}
ENDPOINTS = "sandbox.opensandbox.io/endpoints"
AGAIN = 0.1


class Refused(Exception):
    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {str(body)[:300]}")
        self.status = status
        self.body = body


class Api:
    """Calls in one namespace."""

    def __init__(self, url: str, token: str, namespace: str) -> None:
        self.url, self.token, self.namespace = url, token, namespace
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=64),
            read_bufsize=4 * 1024 * 1024,  # a watch's line is a whole object
            headers={"Authorization": f"Bearer {self.token}", "User-Agent": "sandlog-tests"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    def path(self, kind: str, name: str = "", subresource: str = "") -> str:
        base, plural = COLLECTIONS[kind]
        path = f"{base}/namespaces/{self.namespace}/{plural}"
        return "/".join(part for part in (path, name, subresource) if part)

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
    ) -> Any:
        """Raises Refused for a status of 300 or more."""
        assert self._session is not None
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(method, self.url + path, data=data, headers=headers, params=query) as answer:
            text = await answer.text()
            content = json.loads(text) if text[:1] in "{[" else text
            if answer.status >= 300:
                raise Refused(answer.status, content)
            return content

    async def ensure_namespace(self) -> None:
        try:
            await self.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        except Refused as refused:
            if refused.status != 409:
                raise

    async def get(self, kind: str, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self.call("GET", self.path(kind, name))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise
        return found

    async def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        query = {"labelSelector": selector} if selector else {}
        found: list[dict[str, Any]] = (await self.call("GET", self.path(kind), **query))["items"]
        return found

    async def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = await self.call("POST", self.path(kind), body)
        return made

    async def patch(self, kind: str, name: str, body: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        path = self.path(kind, name, subresource)
        patched: dict[str, Any] = await self.call("PATCH", path, body, "application/merge-patch+json")
        return patched

    async def delete(self, kind: str, name: str, **query: str) -> None:
        await self.call("DELETE", self.path(kind, name), **query)

    async def until(
        self,
        what: str,
        kind: str,
        condition: Callable[[dict[str, dict[str, Any]]], bool],
        limit: float = 60.0,
        trouble: Callable[[], str | None] = lambda: None,
    ) -> dict[str, dict[str, Any]]:
        """Follow a kind by list and watch until `condition` holds of all its objects by name.

        Raises AssertionError after `limit` seconds, or at once when `trouble` names one.
        """
        seen: dict[str, dict[str, Any]] = {}
        try:
            async with asyncio.timeout(limit):
                await self._follow(kind, seen, condition, trouble)
        except TimeoutError:
            shown = {name: _shown(o) for name, o in sorted(seen.items())[:20]}
            raise AssertionError(f"not within {limit:g} s: {what}; {kind} seen: {shown}; {trouble()}") from None
        return seen

    async def _follow(
        self,
        kind: str,
        seen: dict[str, dict[str, Any]],
        condition: Callable[[dict[str, dict[str, Any]]], bool],
        trouble: Callable[[], str | None],
    ) -> None:
        while True:
            try:
                if await self._list_and_watch(kind, seen, condition):
                    return
            except (aiohttp.ClientError, OSError, Refused) as problem:
                # The API server is away, or comes back.
                if isinstance(problem, Refused) and problem.status < 500:
                    raise
                await asyncio.sleep(AGAIN)
            wrong = trouble()
            assert wrong is None, wrong

    async def _list_and_watch(
        self, kind: str, seen: dict[str, dict[str, Any]], condition: Callable[[dict[str, dict[str, Any]]], bool]
    ) -> bool:
        async for _ in self.changes(kind, seen):
            if condition(seen):
                return True
        return False

    async def changes(self, kind: str, seen: dict[str, dict[str, Any]]) -> AsyncIterator[dict[str, Any] | None]:
        """Keep `seen` (by name) as a list and then a watch of 2 s tell: None for the list, then each event. Raises Refused, ClientError."""
        assert self._session is not None
        listed = await self.call("GET", self.path(kind))
        seen.clear()
        seen.update({o["metadata"]["name"]: o for o in listed["items"]})
        yield None
        query = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"], "timeoutSeconds": "2"}
        async with self._session.get(self.url + self.path(kind), params=query) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR" or "object" not in event:
                    return
                name = event["object"]["metadata"]["name"]
                if event["type"] == "DELETED":
                    seen.pop(name, None)
                else:
                    seen[name] = event["object"]
                yield event


def _shown(o: dict[str, Any]) -> str:
    status = o.get("status") or {}
    counts = "/".join(str(status.get(key)) for key in ("ready", "allocated", "replicas"))
    seen = f"{status.get('observedGeneration')} of {o['metadata'].get('generation')}"
    return f"{status.get('phase')} {counts} generation {seen} {sorted(conditions(o))} {(o['metadata'].get('annotations') or {}).get(ENDPOINTS)}"


def sandbox(name: str, replicas: int = 1, **spec: Any) -> dict[str, Any]:
    """A template-mode BatchSandbox with one container; `spec` adds to or overrides its spec."""
    container = {"name": "main", "image": "busybox:1", "command": ["sleep", "1000"]}
    template = {"spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}
    return {
        "apiVersion": "sandbox.opensandbox.io/v1alpha1",
        "kind": "BatchSandbox",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "template": template, **spec},
    }


def endpoints(o: dict[str, Any]) -> list[str]:
    found: list[str] = json.loads((o["metadata"].get("annotations") or {}).get(ENDPOINTS, "[]"))
    return found


def conditions(o: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {c["type"]: c for c in o.get("status", {}).get("conditions") or []}


def phase(o: dict[str, Any] | None) -> str | None:
    return (o or {}).get("status", {}).get("phase")
