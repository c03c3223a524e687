"""What is open under faults: a reconciler, executors that crash, stall and repeat themselves, and observations that are lost.

Two properties. *Nothing stays open for ever*: once faults stop (observations, lists and ticks arrive, commands are performed and
answered) no op is open and no command in flight, and the cluster is as wanted. *Nothing is let go too early*: as long as neither an
observation of its object, nor a list, nor an answer to it, nor the leaving of its sandbox has been folded since it was opened, an op
stays open, whatever else is folded: it may still take effect.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from projector_world import NAMESPACE, Story, create, delete, patch_status, pod, sandbox

from bus import messages, ops
from bus.messages import Created, Result
from bus.ops import Op
from bus.times import SECOND

Order = tuple[int, int, tuple[Op, ...]]
"""position, expiry, ops of a command that waits for an executor"""


class World:
    def __init__(self) -> None:
        self.story = Story()
        self.rv = 10
        self.uids = 0
        self.replicas = 2
        self.sandbox = ("u0", 10)
        self.shown = 0
        self.pods: dict[str, tuple[str, int, bool]] = {}
        self.queue: list[Order] = []
        self.lost = 0
        self.ids = 0
        self.touched: dict[str, set[str]] = {}
        """op id → its objects of which nothing was folded since it was opened"""
        self.observe_sandbox()

    # -- the cluster, and what is observed of it

    def next(self) -> int:
        self.rv += 1
        return self.rv

    def _told(self) -> bool:
        self.lost -= self.lost > 0
        return self.lost == 0

    def observe_sandbox(self) -> None:
        if self._told():
            uid, rv = self.sandbox
            self._folded(f"batchsandbox/{'s'}")
            self.story.seen("batchsandbox", sandbox(rv, uid=uid, ready=self.shown))

    def observe_pod(self, name: str, was: str = "") -> None:
        if not self._told():
            return
        self._folded(f"pod/{name}")
        if name in self.pods:
            uid, rv, deleting = self.pods[name]
            self.story.seen("pod", pod(rv, name, uid, deleting=deleting))
        else:
            self.story.gone("pod", name, self.rv, was)

    def lists(self) -> None:
        self.lost = 0
        self.observe_sandbox()
        for name in self.pods:
            self.observe_pod(name)
        self.touched.clear()
        uid, rv = self.sandbox
        there = [(name, uid_of, at) for name, (uid_of, at, _) in self.pods.items()]
        self.story.list_all(self.rv, batchsandbox=[("s", uid, rv)], pod=there)

    def user_deletes(self, name: str) -> None:
        if name in self.pods:
            uid, _, _ = self.pods[name]
            self.pods[name] = (uid, self.next(), True)
            self.observe_pod(name)

    def finish(self) -> None:
        for name in [name for name, (_, _, deleting) in self.pods.items() if deleting]:
            uid = self.pods.pop(name)[0]
            self.next()
            self.observe_pod(name, uid)

    def replace_sandbox(self) -> None:
        self.uids += 1
        self.sandbox = (f"u{self.uids}", self.next())
        self.shown = 0
        self.touched.clear()
        self.lost = 0
        self.observe_sandbox()

    # -- the reconciler

    def decide(self) -> None:
        view = self.story.sandbox()
        if view.in_flight is not None or self.story.time < view.retry_at or view.object is None:
            return
        wanted: list[Op] = [item.op for item in view.open]
        if not wanted:
            live = {name: slot for name, slot in view.pods.items() if not slot.gone}
            uid = view.object.uid
            missing = [n for n in range(self.replicas) if f"s-{n}" not in live]
            if missing:
                wanted.append(create(*missing, id=self._id(), uid=uid))
            for name, slot in live.items():
                if (slot.index or 0) >= self.replicas and not slot.deleting:
                    wanted.append(delete(name, slot.uid, self._id()))
            if view.object.status.ready != len(live):
                for _ in range(2):
                    wanted.append(patch_status(view.object.version[1], self._id(), uid))
        if wanted:
            at = self.story.command(*wanted, view=view.sequence)
            self.queue.append((at, self.story.time + 30 * SECOND, tuple(wanted)))
            still = self.story.sandbox()
            for item in still.open:
                self.touched.setdefault(item.op.id, set(item.waits))

    def _id(self) -> str:
        self.ids += 1
        return f"op{self.ids}"

    # -- executors

    def perform(self, how: int, *, keep: bool = False, stalled: bool = False, silent: bool = False) -> None:
        """`how` ops at most are performed, then the executor dies; `keep`: redelivered later; `silent`: the outcome is lost."""
        if not self.queue:
            return
        at, expires, wanted = self.queue[0] if keep else self.queue.pop(0)
        results: list[Result] = []
        chain: dict[str, int] = {}
        for n, op in enumerate(wanted):
            if n >= how:
                return
            if results and results[-1].result != messages.DONE:
                results.append(Result(op.id, messages.SKIPPED))
            elif self.story.time > expires and not stalled:
                results.append(Result(op.id, messages.EXPIRED))
            else:
                results.append(self._do(op, chain))
        if not silent:
            for result in results:
                self.touched.pop(result.id, None)
            self.story.outcome(at, *results)

    def _do(self, op: Op, chain: dict[str, int]) -> Result:
        uid, rv = self.sandbox
        match op:
            case ops.CreatePods():
                if op.sandbox.uid != uid:
                    return Result(op.id, messages.MISSING)
                made = {name: self._create(name) for name in op.names}
                bad = next((m.result for m in made.values() if m.result != messages.DONE), messages.DONE)
                return Result(op.id, bad, names=made)
            case ops.DeletePod():
                found = self.pods.get(op.target.name)
                if found is None or found[0] != op.target.uid:
                    return Result(op.id, messages.MISSING if self.rv % 2 else messages.DONE)
                if not found[2]:
                    self.user_deletes(op.target.name)
                return Result(op.id, messages.DONE, found[0], self.pods[op.target.name][1])
            case ops.PatchSandboxStatus():
                if op.target.uid != uid:
                    return Result(op.id, messages.MISSING)
                if rv != chain.get("s", op.resource_version):
                    return Result(op.id, messages.CONFLICT, uid, rv if self.rv % 3 else 0)
                self.shown = len(self.pods)
                self.sandbox = (uid, self.next())
                chain["s"] = self.rv
                self.observe_sandbox()
                return Result(op.id, messages.DONE, uid, chain["s"])
        raise AssertionError(op)

    def _create(self, name: str) -> Created:
        found = self.pods.get(name)
        if found is not None and found[2]:
            return Created(messages.CONFLICT, found[0], found[1])
        if found is None:
            self.uids += 1
            found = self.pods[name] = (f"p{self.uids}", self.next(), False)
            self.observe_pod(name)
        return Created(messages.DONE, found[0], found[1])

    # -- the properties

    def _folded(self, key: str) -> None:
        for keys in self.touched.values():
            keys.discard(key)

    def check_nothing_let_go(self) -> None:
        view = self.story.sandbox()
        still = {item.op.id: set(item.waits) for item in view.open}
        for id, keys in self.touched.items():
            assert keys <= still.get(id, set()), (id, keys, still)

    def settle(self) -> None:
        for _ in range(40):
            self.story.tick(self.story.time, after=400)
            self.finish()
            self.lists()
            self.decide()
            while self.queue:
                self.perform(99)

    def check_settled(self) -> None:
        view = self.story.sandbox()
        assert view.open == ()
        assert view.in_flight is None
        assert sorted(self.pods) == [f"s-{n}" for n in range(self.replicas)]
        live = {name: slot.uid for name, slot in view.pods.items() if not slot.gone}
        assert live == {name: uid for name, (uid, _, _) in self.pods.items()}
        assert self.shown == self.replicas


ACTIONS: dict[str, Any] = {
    "decide": lambda w, n: w.decide(),
    "perform": lambda w, n: w.perform(99),
    "perform twice": lambda w, n: w.perform(99, keep=True),
    "die": lambda w, n: w.perform(n, keep=n % 2 == 0),
    "lose outcome": lambda w, n: w.perform(99, silent=True),
    "stalled": lambda w, n: w.perform(99, stalled=True, keep=n % 2 == 0),
    "later first": lambda w, n: w.queue.reverse(),
    "lose": lambda w, n: setattr(w, "lost", n + 1),
    "user": lambda w, n: w.user_deletes(f"s-{n}"),
    "scale": lambda w, n: setattr(w, "replicas", n),
    "finish": lambda w, n: w.finish(),
    "replace": lambda w, n: w.replace_sandbox(),
    "tick": lambda w, n: w.story.tick(w.story.time, after=n * 15),
    "lists": lambda w, n: w.lists(),
}
WEIGHTED = ["decide"] * 6 + ["perform"] * 2 + ["tick"] * 3 + list(ACTIONS)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(WEIGHTED), st.integers(0, 3)), max_size=40))
def test_nothing_stays_open_and_nothing_is_let_go_too_early(script: list[tuple[str, int]]) -> None:
    world = World()
    for action, n in script:
        ACTIONS[action](world, n)
        world.check_nothing_let_go()
    world.settle()
    world.check_settled()


def test_the_model_sees_an_op_that_is_let_go() -> None:
    """The check itself can fail."""
    world = World()
    world.decide()
    view = world.story.sandbox()
    assert {item.op.id for item in view.open} == set(world.touched)
    from msgspec.structs import replace

    world.story.partition.views[view.aggregate] = replace(view, open=())
    try:
        world.check_nothing_let_go()
    except AssertionError:
        return
    raise RuntimeError(f"not seen in {NAMESPACE}")
