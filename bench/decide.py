"""How long one look at a view takes: decoding it, and deciding. Microseconds, the best of several rounds.

python bench/decide.py
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

from msgspec.structs import replace

from bus import viewcodec
from bus.names import ENDPOINTS
from bus.resources import Condition, SandboxStatus
from bus.times import SECOND
from bus.views import Pod, SandboxObject, SandboxView
from reconciler.decide import decide

NOW = 1_800_000_000 * SECOND
ROUNDS, TIMES = 5, 5000


def views() -> dict[str, SandboxView]:
    ready = Condition("Ready", "True", "PodsReady", "Sandbox is running", "2026-01-01T00:00:00Z")
    stands = SandboxStatus(1, 1, 1, 1, phase="Succeed", pause_observed_generation=1, conditions=(ready,))
    object = SandboxObject(
        (1, 100),
        "5b0d3c1e-0001",
        1,
        NOW,
        has_template=True,
        template="0123456789abcdef",
        expire_time=NOW + 600 * SECOND,
    )
    shown = replace(object, status=stands, annotations={ENDPOINTS: '["10.0.0.1"]'})
    pod = Pod((1, 101), "5b0d3c1e-0002", "pods", owner=object.uid, index=0, phase="Pending", node="node-1")
    running = replace(pod, phase="Running", ready=True, ip="10.0.0.1")
    name = "0d6f2c58-8a3f-4a8e-9f9c-3c2b1a0d4e5f"
    view = SandboxView("c1", "opensandbox", name, 500, NOW, True, object=object, unshown_since=NOW, pause_generation=0)
    many = {f"{name}-{i}": replace(running, index=i, ip=f"10.0.0.{i + 1}") for i in range(64)}
    return {
        "new: create": view,
        "pod pending: wait": replace(view, pods={f"{name}-0": pod}),
        "pod ready: endpoints, status": replace(view, pods={f"{name}-0": running}),
        "at rest": replace(view, object=shown, pods={f"{name}-0": running}, unshown_since=0),
        "64 pods ready: endpoints, status": replace(view, object=replace(object, replicas=64), pods=many),
    }


def microseconds(work: Callable[[], object], times: int) -> float:
    return min(timeit.repeat(work, number=times, repeat=ROUNDS)) / times * 1e6


def main() -> None:
    print(f"{'view':36}{'decode µs':>12}{'decide µs':>12}")
    for title, view in views().items():
        changes = viewcodec.encode(5, view, None)
        times = TIMES if len(view.pods) < 10 else TIMES // 10

        def decode(changes: dict[str, bytes | None] = changes) -> None:
            assembler = viewcodec.Assembler()
            for key, data in changes.items():
                assembler.feed(key, data)

        def choose(view: SandboxView = view) -> None:
            decide(view)

        print(f"{title:36}{microseconds(decode, times):12.1f}{microseconds(choose, times):12.1f}")


if __name__ == "__main__":
    main()
