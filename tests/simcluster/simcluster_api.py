"""A thin client for tests of API behaviour: the same calls on the simulator and on a real API server."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from simcluster.client import HttpClient, WatchEnded

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
GROUP = "sandbox.opensandbox.io/v1alpha1"
PREFIXES = {
    "batchsandboxes": f"/apis/{GROUP}",
    "pools": f"/apis/{GROUP}",
    "sandboxsnapshots": f"/apis/{GROUP}",
    "jobs": "/apis/batch/v1",
    "leases": "/apis/coordination.k8s.io/v1",
}
COUNTS = ("replicas", "allocated", "ready", "taskRunning", "taskFailed", "taskPending", "taskSucceed", "taskUnknown")


class Api:
    """`ns` is the test's own namespace."""

    def __init__(self, client: HttpClient, ns: str, real: bool) -> None:
        self.client, self.ns, self.real = client, ns, real

    def path(self, plural: str, name: str = "", sub: str = "", ns: str | None = None) -> str:
        parts = [PREFIXES.get(plural, "/api/v1"), "namespaces", ns or self.ns, plural, name, sub]
        return "/".join(part for part in parts if part)

    async def call(
        self, method: str, path: str, body: Any = None, ctype: str = "application/json", **query: Any
    ) -> tuple[int, Any]:
        texts = {key: str(value) for key, value in query.items()}
        code, _, data = await self.client.call(method, path, body, ctype, texts or None)
        try:
            return code, msgspec.json.decode(data)
        except msgspec.MsgspecError:
            return code, data.decode()

    async def create(self, plural: str, obj: Json, **query: Any) -> tuple[int, Any]:
        return await self.call("POST", self.path(plural), obj, **query)

    async def made(self, plural: str, obj: Json) -> Json:
        code, answer = await self.create(plural, obj)
        assert code == 201, answer
        return answer

    async def get(self, plural: str, name: str) -> tuple[int, Any]:
        return await self.call("GET", self.path(plural, name))

    async def list(self, plural: str, **query: Any) -> tuple[int, Any]:
        return await self.call("GET", self.path(plural), **query)

    async def names(self, plural: str, **query: Any) -> list[str]:
        code, answer = await self.list(plural, **query)
        assert code == 200, answer
        return [item["metadata"]["name"] for item in answer["items"]]

    async def version(self, plural: str) -> str:
        """The version of a list made now."""
        return (await self.list(plural))[1]["metadata"]["resourceVersion"]

    async def patch(self, plural: str, name: str, patch: Any, sub: str = "", ctype: str = MERGE) -> tuple[int, Any]:
        return await self.call("PATCH", self.path(plural, name, sub), patch, ctype)

    async def put(self, plural: str, name: str, obj: Json, sub: str = "") -> tuple[int, Any]:
        return await self.call("PUT", self.path(plural, name, sub), obj)

    async def delete(self, plural: str, name: str, body: Any = None, **query: Any) -> tuple[int, Any]:
        return await self.call("DELETE", self.path(plural, name), body, **query)

    async def events(self, plural: str, count: int, **query: Any) -> list[tuple[str, Json]]:
        """The first `count` events of a watch."""
        found: list[tuple[str, Json]] = []
        texts = {key: str(value) for key, value in query.items()}
        async with asyncio.timeout(20):
            async for event in self.client.watch(self.path(plural), texts):
                found.append(event)
                if len(found) == count:
                    break
        return found

    async def watch_error(self, plural: str, **query: Any) -> int:
        """The code of the error that ends a watch."""
        try:
            await self.events(plural, 1, **query)
        except WatchEnded as ended:
            return ended.code
        raise AssertionError("the watch did not end in an error")

    async def gone(self, plural: str, name: str) -> None:
        """Waits until there is no such object (garbage collection takes its time)."""
        async with asyncio.timeout(20):
            while (await self.get(plural, name))[0] != 404:
                await asyncio.sleep(0.02)

    async def until(self, plural: str, name: str, holds: Any) -> Json:
        """Waits until the object is as wanted."""
        async with asyncio.timeout(20):
            while True:
                code, obj = await self.get(plural, name)
                if code == 200 and holds(obj):
                    return obj
                await asyncio.sleep(0.02)


def sandbox(name: str, spec: Json | None = None, **metadata: Any) -> Json:
    return {
        "apiVersion": GROUP,
        "kind": "BatchSandbox",
        "metadata": {"name": name, **metadata},
        "spec": {"replicas": 1} if spec is None else spec,
    }


def pool(name: str, **spec: Any) -> Json:
    capacity = {"bufferMax": 1, "bufferMin": 0, "poolMax": 2, "poolMin": 0}
    return {
        "apiVersion": GROUP,
        "kind": "Pool",
        "metadata": {"name": name},
        "spec": {"capacitySpec": capacity, **spec},
    }


def pod(name: str, spec: Json | None = None, **metadata: Any) -> Json:
    base = {"containers": [{"name": "main", "image": "registry.test/a:1"}]}
    return {"metadata": {"name": name, **metadata}, "spec": {**base, **(spec or {})}}


def job(name: str, **spec: Any) -> Json:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "commit", "image": "c:1"}]}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def status(**fields: Any) -> Json:
    """A complete BatchSandbox status with these fields."""
    return {"status": {**dict.fromkeys(COUNTS, 0), **fields}}


def owner(obj: Json, **more: Any) -> Json:
    metadata = obj["metadata"]
    named = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": metadata["name"]}
    return {**named, "uid": metadata["uid"], **more}
