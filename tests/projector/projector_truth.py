"""A cluster's true history, the observations that tell of it, and what views must hold in the end: a second, plain account of DESIGN §4."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace
from projector_world import CLUSTER, NAMESPACE, SCOPE_OF, Story, metadata, owner, pod, sandbox

from bus import messages, scopes, subjects
from bus.messages import Gone, Listed, Seen
from bus.subjects import Aggregate
from bus.views import SandboxView, SnapshotView, View

Message = tuple[str, bytes]
PODS = ("s-0", "s-1", "t-0")
THINGS = (
    ("batchsandbox", "s"),
    ("batchsandbox", "t"),
    ("sandboxsnapshot", "s-pause"),
    ("pod", "s-0"),
    ("pod", "s-1"),
    ("pod", "t-0"),
)
Thing = tuple[str, str]


class Truth:
    """Changes one thing at a time; each change is one resourceVersion."""

    def __init__(self) -> None:
        self.rv = 10
        self.now: dict[Thing, dict[str, Any]] = {}
        self.told: list[tuple[Thing, Message]] = []
        """each change and the observation of it, in order"""
        self.generations: dict[Thing, int] = {}

    def change(self, thing: Thing, what: int) -> None:
        """`what`: 0 deletes what is there; else it is made or changed in one of several ways."""
        self.rv += 1
        kind, name = thing
        before = self.now.get(thing)
        if what == 0:
            if before is not None:
                del self.now[thing]
                self.told.append((thing, gone(kind, name, self.rv, before["metadata"]["uid"])))
            return
        uid = before["metadata"]["uid"] if before is not None else f"u{self.rv}"
        if kind == "batchsandbox":
            generation = (before["metadata"]["generation"] + (what > 2)) if before is not None else 1
            body = sandbox(self.rv, name, uid, generation, pause=(None, True, False)[what % 3], ready=what)
        elif kind == "sandboxsnapshot":
            meta = metadata(name, uid, self.rv, ownerReferences=owner("BatchSandbox", "s") if what % 2 else [])
            body = {"metadata": meta, "spec": {"sandboxName": "s"}, "status": {"phase": f"p{what}"}}
        else:
            of = ("s", "t")[what % 2]
            body = pod(self.rv, name, uid, of, ready=what > 2, waiting="" if what != 4 else "ErrImagePull")
        self.now[thing] = body
        self.told.append((thing, seen(kind, body)))

    def list_messages(self) -> list[Message]:
        """What a bridge appends: the objects, then the list of each scope."""
        told: list[Message] = []
        for scope in scopes.SCOPES:
            mine = {t: o for t, o in self.now.items() if SCOPE_OF[t[0]] == scope.word}
            told += [seen(kind, body, listed=True) for (kind, _), body in mine.items()]
            told.append(self.list_message(scope.word))
        return told

    def list_message(self, word: str) -> Message:
        there = [
            (t[1], o["metadata"]["uid"], int(o["metadata"]["resourceVersion"]))
            for t, o in self.now.items()
            if SCOPE_OF[t[0]] == word
        ]
        body = Listed(f"{word}@{self.rv}", 1, word, self.rv, {NAMESPACE: there} if there else {})
        return subjects.list_of(CLUSTER, word), messages.encode(body)

    def expected(self) -> dict[Aggregate, set[tuple[str, int]]]:
        """Which view holds what, at which version, once nothing is on its way any more."""
        held: dict[Aggregate, set[tuple[str, int]]] = {}

        def hold(aggregate_kind: str, name: str, thing: Thing) -> None:
            rv = int(self.now[thing]["metadata"]["resourceVersion"])
            held.setdefault(Aggregate(CLUSTER, NAMESPACE, aggregate_kind, name), set()).add(("/".join(thing), rv))

        for thing, body in self.now.items():
            kind, name = thing
            owners = body["metadata"].get("ownerReferences") or []
            if kind == "batchsandbox":
                hold(subjects.SANDBOX, name, thing)
            elif kind == "pod":
                hold(subjects.SANDBOX, owners[0]["name"], thing)
            else:
                hold(subjects.SNAPSHOT, name, thing)
                if owners:
                    hold(subjects.SANDBOX, "s", thing)
        return held


def held(view: View) -> set[tuple[str, int]]:
    """The living objects of a view and their versions."""
    found = {(f"pod/{name}", slot.version[1]) for name, slot in view.pods.items() if not slot.gone}
    if isinstance(view, SandboxView):
        if view.object is not None:
            found.add((f"batchsandbox/{view.name}", view.object.version[1]))
        if view.snapshot is not None and not view.snapshot.gone:
            found.add((f"sandboxsnapshot/{view.snapshot.name}", view.snapshot.version[1]))
    if isinstance(view, SnapshotView) and view.object is not None:
        found.add((f"sandboxsnapshot/{view.name}", view.object.version[1]))
    return found


def timeless(view: View, *, memory: bool = True) -> View:
    """The view without what depends on when, and (`memory` False) on which versions, something was seen."""
    pods = {name: replace(slot, since=0) for name, slot in sorted(view.pods.items())}
    view = replace(view, sequence=0, now=0, pods=pods)
    if not memory and view.object is None:
        view = replace(view, known=(0, 0))
    if isinstance(view, SandboxView):
        view = replace(
            view, unshown_since=0, unshown_last=0, pause_generation=view.pause_generation if memory else None
        )
    return view


def seen(kind: str, body: dict[str, Any], *, listed: bool = False) -> Message:
    meta = body["metadata"]
    raw = msgspec.Raw(msgspec.json.encode(body))
    message = Seen(1, int(meta["resourceVersion"]), meta["uid"], SCOPE_OF[kind], raw, listed=listed)
    return subjects.observation(0, CLUSTER, NAMESPACE, kind, meta["name"]), messages.encode(message)


def gone(kind: str, name: str, rv: int, uid: str) -> Message:
    return subjects.observation(0, CLUSTER, NAMESPACE, kind, name), messages.encode(Gone(1, rv, uid, SCOPE_OF[kind]))


def tell(told: list[Message], story: Story | None = None) -> Story:
    story = story or Story()
    for subject, data in told:
        folded = story.say(subject, data)
        assert folded.error is None, folded.error
    return story
