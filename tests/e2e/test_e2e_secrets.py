"""A secret env value is found in nothing that sandlog writes (issue 3, done when 5; DESIGN §4, §7)."""

from __future__ import annotations

from typing import Any

import pytest
from support.api import Api, conditions, endpoints, sandbox
from support.programs import Program

from bus.connection import Connection, ConnectionSettings
from bus.log_nats import NatsLog
from bus.viewstore_nats import NatsViewStore

pytestmark = pytest.mark.cluster
SECRET = "hunter2-4f1c9d"
SHARD_SECRET = "correct-horse-77aa"


def with_secret(name: str, **spec: Any) -> dict[str, Any]:
    made = sandbox(name, 2, **spec)
    made["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "API_KEY", "value": SECRET}]
    made["spec"]["shardPatches"] = [
        {"spec": {"containers": [{"name": "main", "env": [{"name": "SHARD_KEY", "value": SHARD_SECRET}]}]}}
    ]
    return made


async def written(nats_url: str) -> dict[str, str]:
    """All that is stored, read back through its own readers (stored bytes are compressed)."""
    async with await Connection.open(ConnectionSettings(url=nats_url)) as connection:
        log = await NatsLog.open(connection)
        views = await NatsViewStore.open(connection)
        records = await log.read(["log.>"])
        entries = await views.list("")
    messages = "\n".join(f"{r.subject} {dict(r.headers)} {r.data.decode(errors='replace')}" for r in records)
    return {"log": messages, "views": "\n".join((e.data or b"").decode(errors="replace") for e in entries)}


async def test_a_secret_is_in_nothing_that_we_write(api: Api, kubelet: Program, sandlog: Any) -> None:
    await api.create("BatchSandbox", with_secret("good"))
    # The API server refuses this one: it has no image; the real one minds the odd values too, and its answer quotes some.
    refused = with_secret("refused")
    container = refused["spec"]["template"]["spec"]["containers"][0]
    del container["image"]
    container["env"].append({"name": "BAD NAME=", "value": SECRET})
    container["imagePullPolicy"] = "Sometimes"
    await api.create("BatchSandbox", refused)
    # This one cannot even be built.
    broken = with_secret("broken")
    broken["spec"]["shardPatches"] = [
        {"spec": {"containers": [{"env": [{"name": "K", "value": SHARD_SECRET}]}]}},
        SECRET,
    ]
    await api.create("BatchSandbox", broken)
    await api.until(
        "each has its end",
        "BatchSandbox",
        lambda o: (
            len(endpoints(o["good"])) == 2 and all("PodFailed" in conditions(o[name]) for name in ("refused", "broken"))
        ),
        trouble=sandlog.trouble,
    )
    events = await api.until(
        "failures are told as Events",
        "Event",
        lambda o: (
            {e["involvedObject"]["name"] for e in o.values() if e["reason"] == "FailedCreate"} >= {"refused", "broken"}
        ),
        trouble=sandlog.trouble,
    )
    places = await written(sandlog.nats_url)
    places["events"] = str(list(events.values()))
    places["statuses"] = str([o.get("status") for o in await api.list("BatchSandbox")])
    places["metrics"] = sandlog.metrics()
    places["process logs"] = sandlog.output()
    assert "good-0" in places["log"]
    assert "good" in places["views"]
    for place, text in places.items():
        assert SECRET not in text, place
        assert SHARD_SECRET not in text, place
