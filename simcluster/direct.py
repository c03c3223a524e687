"""A client of the store without sockets, for runs in one thread under virtual time."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from simcluster.caller import Caller
from simcluster.node import Node
from simcluster.requests import Request, Response, handle
from simcluster.resources import Resource
from simcluster.store import Store, Write
from simcluster.watch import Watch

Json = dict[str, Any]
Result = tuple[int, dict[str, str], bytes]


class DirectClient:
    """HTTP's verbs on a store: each answers (status, headers, body) as the skin would."""

    def __init__(self, store: Store, agent: str = "direct", user: str = "admin") -> None:
        self.store = store
        self._caller = Caller(agent, user)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> Result:
        """One request. `body` is bytes, or anything that becomes JSON; a query may stand in the path."""
        answer = handle(self.store, self._request(method, path, body, content_type, query))
        if isinstance(answer, Watch):
            raise TypeError("use watch() for watches")
        return answer.status, self._headers(answer), answer.body

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> Result:
        """`request`, for code that awaits."""
        return self.request(method, path, body, content_type, query)

    def watch(self, path: str, query: dict[str, str] | None = None) -> Watch | Result:
        """A watch to poll, or the answer that refuses it."""
        wanted = {**(query or {}), "watch": "1"}
        answer = handle(self.store, self._request("GET", path, None, "application/json", wanted))
        if isinstance(answer, Watch):
            return answer
        return answer.status, self._headers(answer), answer.body

    def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """The object, decoded; raises KeyError when there is none."""
        status, _, body = self.request("GET", resource.path(namespace, name))
        if status != 200:
            raise KeyError(f"{resource.plural} {namespace}/{name}")
        return msgspec.json.decode(body, type=dict)

    def _request(self, method: str, path: str, body: Any, content_type: str, query: dict[str, str] | None) -> Request:
        split = urlsplit(path)
        data = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        parameters = {**dict(parse_qsl(split.query, keep_blank_values=True)), **(query or {})}
        return Request(method, split.path, parameters, data, content_type, self._caller)

    def _headers(self, answer: Response) -> dict[str, str]:
        headers = {
            "Content-Type": answer.content_type,
            "Date": self.store.now().strftime("%a, %d %b %Y %H:%M:%S GMT"),
        }
        if answer.retry_after is not None:
            headers["Retry-After"] = str(answer.retry_after)
        return headers


class WriteCounter:
    """Counts stored writes by (agent, verb, resource[/subresource])."""

    def __init__(self, store: Store) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        store.observers.append(self._observe)

    def _observe(self, write: Write) -> None:
        target = write.resource.plural + (f"/{write.subresource}" if write.subresource else "")
        self.counts[(write.caller.agent, write.verb, target)] += 1


class DirectKubelet:
    """A Node on a store, stepped: the kubelet of a run in one thread under virtual time."""

    def __init__(self, store: Store, node: Node) -> None:
        self.node = node
        self._client = DirectClient(store, agent="sim-kubelet", user="kubelet")
        self._pods = store.kind("v1", "Pod")
        self._watch = self._relist()

    def _relist(self) -> Watch:
        store = self._client.store
        pods = [version.obj for version in store.select(self._pods)]
        self.node.sync(pods, store.now())
        return store.watch(self._pods, start=store.resource_version)

    def step(self, limit: int = 1000) -> int:
        """Takes what was written and does what is due; the number of requests made."""
        store = self._client.store
        while lines := self._watch.poll():
            if self._watch.ended:
                self._watch = self._relist()
                break
            for line in lines:
                event = msgspec.json.decode(line, type=dict)
                self.node.observe(event["type"], event["object"], store.now())
        made = 0
        for work in self.node.due(store.now(), limit):
            for action in work.actions:
                self._client.request(action.method, action.path, action.body, action.content_type)
                made += 1
        return made

    def next_event_at(self) -> datetime | None:
        """Now if there is something to take in, else the next timer."""
        return self._client.store.now() if self._watch.pending() else self.node.next_event_at()
