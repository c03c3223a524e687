"""The simulated cluster over HTTP: what kubectl-like clients and the project's own client talk to.

All rules are in the store; here are sockets, tokens, faults, and the task that steps the controllers.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog
from aiohttp import web

from simcluster.caller import Caller
from simcluster.controllers import Controllers
from simcluster.errors import ApiError, bad_request, failure
from simcluster.faults import Fault, Faults, error_of
from simcluster.jobs import JobTiming
from simcluster.requests import (
    REQUEST_LIMIT,
    NoSuchPath,
    Request,
    Response,
    handle,
    refusal,
    target_of,
    verb_of,
)
from simcluster.store import Store, Write
from simcluster.streams import Streams
from simcluster.watch import Watch, event_line

log = structlog.get_logger(__name__)

Json = dict[str, Any]

MAX_COUNTERS = 10_000
CONTROLLER_PAUSE = 1.0


def _utc_now() -> datetime:
    return datetime.now(UTC)


class SimServer:
    """A simulated API server on a socket. `tokens` maps bearer tokens to users; None lets anybody in.

    `store` may be given to share one (a test can look into it); else one is made from `seed`.
    `bookmark_seconds`: how often a watch that asked for bookmarks gets one.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        store: Store | None = None,
        seed: int | None = None,
        tokens: Mapping[str, str] | None = None,
        timing: JobTiming | None = None,
        bookmark_seconds: float = 3.0,
        history_limit: int = 10_000,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.store = store or Store(now, random.Random(seed), history_limit=history_limit)
        self.controllers = Controllers(self.store, timing)
        self.faults = Faults(self._drop_watches, self.compact)
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.controller_failures = 0
        self.url = ""
        self._host, self._port = host, port
        self._tokens = tokens
        self.streams = Streams(self._date, self.faults.permission, bookmark_seconds)
        self._wake = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listens; the URL."""
        app = web.Application(client_max_size=REQUEST_LIMIT + 1)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        self.url = f"http://{self._host}:{self._runner.addresses[0][1]}"
        self.store.observers.append(self._observe)
        self._task = asyncio.create_task(self._run_controllers(), name="simcluster-controllers")
        return self.url

    async def stop(self) -> None:
        """Cuts the watches, stops listening and stops the controllers."""
        self.faults.clear()
        self.streams.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._observe in self.store.observers:
            self.store.observers.remove(self._observe)
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> SimServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def kubeconfig(self, token: str = "") -> Json:
        """A kubeconfig for this server; by default with the first token that it knows."""
        known = token or next(iter(self._tokens or {}), "sim-token")
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "sim",
            "clusters": [{"name": "sim", "cluster": {"server": self.url}}],
            "users": [{"name": "sim", "user": {"token": known}}],
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim"}}],
        }

    def compact(self) -> None:
        """Forgets every resource's history."""
        for resource in self.store.resources:
            self.store.history(resource).compact(self.store.resource_version)
        self.streams.wake()

    def _drop_watches(self) -> int:
        return self.streams.drop()

    # --- controllers ------------------------------------------------------------------------------------

    async def _run_controllers(self) -> None:
        while True:
            self._wake.clear()
            try:
                self.controllers.step()
            except Exception:
                self.controller_failures += 1
                log.exception("controller step failed", failures=self.controller_failures)
                await asyncio.sleep(CONTROLLER_PAUSE)
            due = self.controllers.next_event_at()
            delay = None if due is None else max((due - self.store.now()).total_seconds(), 0.001)
            try:
                await asyncio.wait_for(self._wake.wait(), delay)
            except TimeoutError:
                continue

    def _observe(self, write: Write) -> None:
        self._wake.set()
        self.streams.wake(write.resource.qualified)

    # --- requests ---------------------------------------------------------------------------------------

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(http)
        except ApiError as error:
            return self._reply(refusal(error))
        except web.HTTPRequestEntityTooLarge:
            text = f"Request entity too large: limit is {REQUEST_LIMIT}"
            return self._reply(refusal(failure(413, "RequestEntityTooLarge", text)))

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        user = self._user(http)
        if http.path == "/sim/faults":
            return await self._control(http)
        agent = http.headers.get("User-Agent", "unknown")
        request = Request(
            http.method,
            http.path,
            dict(http.query),
            await http.read(),
            http.content_type,
            Caller(agent, user),
        )
        verb, plural, namespace, name = self._describe(request)
        self._count(verb, plural, agent)
        watch = verb == "watch"
        if (delay := self.faults.delay(verb)) > 0:
            await asyncio.sleep(delay)
        if not await self.faults.permission(watch):
            raise failure(504, "Timeout", "the simulated server was silent")
        fault = self.faults.take(verb, plural, agent, namespace)
        if fault is not None and not fault.after:
            return await self._injected(http, fault, plural, name, watch)
        answer = handle(self.store, request)
        if fault is not None:
            raise error_of(fault, plural, name)
        if isinstance(answer, Watch):
            return await self.streams.serve(http, answer, request.query)
        return self._reply(answer)

    def _user(self, http: web.Request) -> str:
        scheme, _, token = http.headers.get("Authorization", "").partition(" ")
        if self._tokens is None:
            return token or "anonymous"
        if scheme.lower() != "bearer" or token not in self._tokens:
            raise failure(401, "Unauthorized", "Unauthorized")
        return self._tokens[token]

    def _describe(self, request: Request) -> tuple[str, str, str, str]:
        try:
            target = target_of(self.store, request.path)
        except NoSuchPath:
            return "", "", "", ""
        if target is None:
            return "", "", "", ""
        return verb_of(request.method, target, request.query), target.resource.plural, target.namespace, target.name

    def _count(self, verb: str, plural: str, agent: str) -> None:
        key = (agent, verb, plural)
        if verb and (key in self.requests or len(self.requests) < MAX_COUNTERS):
            self.requests[key] += 1

    async def _injected(
        self, http: web.Request, fault: Fault, plural: str, name: str, watch: bool
    ) -> web.StreamResponse:
        error = error_of(fault, plural, name)
        if not watch or fault.code != 410:
            raise error
        return await self.streams.serve_line(http, event_line("ERROR", msgspec.json.encode(error.status)))

    async def _control(self, http: web.Request) -> web.Response:
        if http.method == "GET":
            return web.json_response(self.faults.state())
        if http.method == "DELETE":
            self.faults.clear()
            return web.json_response(self.faults.state())
        try:
            body = msgspec.json.decode(await http.read(), type=dict)
        except msgspec.MsgspecError as problem:
            raise bad_request(str(problem)) from None
        return web.json_response({"result": self.faults.perform(body)})

    def _reply(self, answer: Response) -> web.Response:
        headers = {"Date": self._date(), "Content-Type": answer.content_type}
        if answer.retry_after is not None:
            headers["Retry-After"] = str(answer.retry_after)
        return web.Response(status=answer.status, body=answer.body, headers=headers)

    def _date(self) -> str:
        return self.store.now().strftime("%a, %d %b %Y %H:%M:%S GMT")
