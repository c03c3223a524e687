"""Which pods of a template-mode sandbox there are, are missing, and are too many."""

from __future__ import annotations

from typing import Final

import msgspec

from bus.names import pod_name
from bus.ops import CreatePods, DeletePod, Target
from bus.views import Pod, SandboxObject, SandboxView
from reconciler import events
from reconciler.plan import PODS, Plan, sandbox_target

UNNUMBERED: Final = 1 << 62
"""The index of a pod of ours whose label and name hold none (SCL-08, SCL-15): counted, never wanted, never deleted for its number."""

LISTED: Final = 10_000
"""So many addresses fit an annotation (256 KiB with all others); `replicas` may be any int32."""

MAX_DIGITS: Final = 10
"""of an int32"""

Numbered = tuple[int, str, Pod]


class Pods(msgspec.Struct, frozen=True):
    """The pods that this uid controls (identity is uid, DESIGN §8.9), in order of index; those that go away included."""

    ours: tuple[Numbered, ...]
    addresses: tuple[str, ...]
    """by wanted index: the address of a pod that can be used, '' for none (B87); the first `LISTED` of them"""
    usable: int
    """how many wanted indices have an address"""


def _place(numbered: Numbered) -> tuple[int, str]:
    return numbered[0], numbered[1]


def usable(pod: Pod) -> bool:
    """It can be handed to a user: ready, with an address, not going away."""
    return pod.ready and not pod.deleting and pod.ip != ""


def survey(view: SandboxView, object: SandboxObject) -> Pods:
    """The pods it controls; of a pooled sandbox those that its annotations give it, by their place there."""
    if object.pooled:
        named = [(index, name, view.pods.get(name)) for index, name in enumerate(object.allocated)]
        ours = [(index, name, pod) for index, name, pod in named if pod is not None and not pod.gone]
    else:
        ours = [
            (UNNUMBERED if pod.index is None else pod.index, name, pod)
            for name, pod in view.pods.items()
            if pod.owner == object.uid and not pod.gone
        ]
    if len(ours) > 1:
        ours.sort(key=_place)
    size = min(object.replicas, LISTED)
    addresses = [""] * size
    found: set[int] = set()
    for index, _, pod in ours:
        if index < object.replicas and usable(pod) and index not in found:
            found.add(index)
            if index < size:
                addresses[index] = pod.ip
    return Pods(tuple(ours), tuple(addresses), len(found))


def is_released(object: SandboxObject) -> bool:
    """All pods that a pooled sandbox was given were given back: it has none any more, and wants none (B90)."""
    return object.pooled and object.released


def absent(view: SandboxView, name: str) -> bool:
    """No object of that name exists. One that goes away, or an old incarnation's, still holds the name."""
    pod = view.pods.get(name)
    return pod is None or pod.gone


def wanted(view: SandboxView, object: SandboxObject, name: str) -> bool:
    """Whether a pod of that name is one that this sandbox makes."""
    number = name.rpartition("-")[2]
    if not number.isascii() or not number.isdigit() or len(number) > MAX_DIGITS or int(number) >= object.replicas:
        return False
    return pod_name(view.name, int(number)) == name


def foreign(view: SandboxView, object: SandboxObject) -> str | None:
    """The first wanted name that a pod of another owner holds and does not give up; None mostly."""
    for name, pod in view.pods.items():
        if pod.owner != object.uid and not pod.gone and not pod.deleting and wanted(view, object, name):
            return name
    return None


def scale_in(plan: Plan, object: SandboxObject, pods: Pods) -> None:
    """Delete what lies above the wanted indices, highest first (B105); never for its label alone."""
    surplus = [
        (name, pod)
        for index, name, pod in reversed(pods.ours)
        if object.replicas <= index < UNNUMBERED
        and not pod.deleting
        and plan.free(PODS, name)
        and not wanted(plan.view, object, name)
    ]
    if not surplus or plan.refused(PODS):
        return
    ops = [
        DeletePod(plan.next_id(), Target(PODS, name, pod.uid))
        for name, pod in surplus[: plan.settings.creates_per_command]
    ]
    for op in ops:
        plan.add(op)
    for op in ops:
        events.deleted(plan, op)
    plan.because(f"scale in by {len(ops)}")


def scale_out(plan: Plan, object: SandboxObject) -> None:
    """Create the wanted pods that do not exist (SCL-01, SCL-03, SCL-04)."""
    names = missing(plan, object)
    if not names or _waits(plan, object):
        return
    op = CreatePods(plan.next_id(), sandbox_target(plan.view, object), object.generation, object.template, names)
    plan.add(op)
    events.created(plan, op)
    plan.because(f"create {len(names)} pods")


def missing(plan: Plan, object: SandboxObject) -> dict[str, int]:
    """Names to create now, lowest index first, at most what one command may hold (re-issued creates included)."""
    view = plan.view
    room = plan.settings.creates_per_command - sum(len(op.names) for op in plan.ops if isinstance(op, CreatePods))
    found: dict[str, int] = {}
    for index in range(object.replicas):
        if len(found) >= room:
            break
        name = pod_name(view.name, index)
        if absent(view, name) and plan.free(PODS, name):
            found[name] = index
    return found


def _waits(plan: Plan, object: SandboxObject) -> bool:
    """A refused create backs off; an edit of the sandbox since is tried at once."""
    failure = plan.view.failure
    if failure is not None and 0 < failure.generation < object.generation:
        return False
    return plan.refused(PODS)
