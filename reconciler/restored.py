"""What became of a pause's snapshot: whether a pod was really made of it (DESIGN §8.2). Pure.

Told by images, those of the pod itself first: they stay what they are when the template is edited later, and show what a shard patch put in.
Only their last part is compared, for mirrors and webhooks rewrite the rest. Where the pod's own say nothing, its template's do.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from bus.names import short_image
from bus.resources import SnapshotContainer
from bus.views import Pod, SandboxObject, SandboxView, Snapshot
from reconciler.intent import PAUSE_FAILED, RESUME_FAILED
from reconciler.pods import Pods, usable

SNAPSHOT_UNUSED: Final = "SnapshotUnused"
"""No pod was made of the snapshot, or none can be: it is the only one that holds what it holds."""
SNAPSHOT_PARTLY_USED: Final = "SnapshotPartlyUsed"
"""The pod has not all of its containers: of the others the snapshot holds what no pod does."""


class Taken(StrEnum):
    """How much of a snapshot a pod or a template has taken."""

    ALL = "all"
    PART = "part"
    """what it could: the snapshot holds containers that it has not"""
    NONE = "none"
    """it has no container of the snapshot's"""
    OTHER = "other"
    """a container of the snapshot's runs another image"""


_SOME: Final = (Taken.ALL, Taken.PART)


def images(snapshot: Snapshot) -> dict[str, str]:
    """Container → image URI; empty if any is missing: such a snapshot brings nothing back."""
    containers = snapshot.status.containers or ()
    found = {each.container_name: each.image_uri for each in containers if each.container_name and each.image_uri}
    return found if len(found) == len(containers) else {}


def good(view: SandboxView, object: SandboxObject) -> Snapshot | None:
    """The sandbox's snapshot, if a resume can be made of it."""
    snapshot = view.snapshot
    if snapshot is None or snapshot.gone or snapshot.deleting:
        return None
    return snapshot if _brings_back(object, snapshot) else None


def _brings_back(object: SandboxObject, snapshot: Snapshot) -> bool:
    return snapshot.owner == object.uid and snapshot.status.phase == "Succeed" and bool(images(snapshot))


def taken(given: Mapping[str, str], snapshot: Snapshot) -> Taken:
    """`given`: container → image, as `bus.names.short_image`."""
    containers = snapshot.status.containers or ()
    shared = [each for each in containers if each.container_name in given]
    if not shared:
        return Taken.NONE
    if not all(_is_of(given[each.container_name], each) for each in shared):
        return Taken.OTHER
    return Taken.ALL if len(shared) == len(containers) else Taken.PART


def _is_of(image: str, made: SnapshotContainer) -> bool:
    name, _, digest = image.partition("@")
    if digest and digest == made.image_digest:
        return True
    return name == short_image(made.image_uri).partition("@")[0]


def template_holds(object: SandboxObject, snapshot: Snapshot) -> bool:
    """Whether the template has the snapshot's images, as far as it has its containers; true where its images are not known."""
    return not object.images or taken(object.images, snapshot) in _SOME


def pod_taken(object: SandboxObject, pod: Pod, snapshot: Snapshot) -> Taken:
    if pod.images:
        own = taken(dict(zip(pod.containers, pod.images, strict=False)), snapshot)
        if own in _SOME:
            return own
    if pod.template != object.template or object.patched or not template_holds(object, snapshot):
        return Taken.OTHER
    return taken(object.images, snapshot) if object.images else Taken.ALL


def is_restored(view: SandboxView, object: SandboxObject, pod: Pod) -> bool:
    """Whether a pod was made of the snapshot. One that is gone still tells, while it is remembered."""
    snapshot = view.snapshot
    if snapshot is None or not _brings_back(object, snapshot):
        return False
    return pod_taken(object, pod, snapshot) in _SOME


def counts(view: SandboxView, object: SandboxObject, pod: Pod) -> bool:
    """Whether a pod may end a resume: restored; or of the present template, if that holds the images as far as it can (N-15)."""
    if is_restored(view, object, pod):
        return True
    snapshot = good(view, object)
    return pod.template == object.template and (snapshot is None or template_holds(object, snapshot))


def used_up(object: SandboxObject, pods: Pods, snapshot: Snapshot) -> Taken:
    """How much of the snapshot lives on in a pod that can be used: one made of it, or the one that it was made of."""
    if any(pod.uid == snapshot.pod_uid for pod in _in_use(object, pods)):
        return Taken.ALL
    return _made_of(object, pods, snapshot)


def _in_use(object: SandboxObject, pods: Pods) -> list[Pod]:
    return [pod for index, _, pod in pods.ours if index < object.replicas and usable(pod)]


def _made_of(object: SandboxObject, pods: Pods, snapshot: Snapshot) -> Taken:
    found = {pod_taken(object, pod, snapshot) for pod in _in_use(object, pods)}
    return next((each for each in Taken if each in found), Taken.NONE)


def leftover(view: SandboxView, object: SandboxObject, pods: Pods) -> tuple[str, str] | None:
    """(reason, message) of the `ResumeFailed` that a running sandbox shows while its snapshot must stay; None mostly.

    A failed pause's snapshot is told of by `PauseFailed`.
    """
    snapshot = good(view, object)
    if snapshot is None or object.pooled:
        return None
    stood = object.status.condition(RESUME_FAILED)
    if stood is None and object.status.condition(PAUSE_FAILED) is not None:
        return None
    if not pods.usable:
        kept = stood is not None and stood.reason in (SNAPSHOT_UNUSED, SNAPSHOT_PARTLY_USED)
        return (stood.reason, stood.message) if stood is not None and kept else None
    match used_up(object, pods, snapshot) if stood is None else _made_of(object, pods, snapshot):
        case Taken.ALL:
            return None
        case Taken.PART:
            names = ", ".join(_unused(object, pods, snapshot))
            return SNAPSHOT_PARTLY_USED, f"the pod has no container {names}: the snapshot is kept until the next pause"
    return (
        SNAPSHOT_UNUSED,
        f"the pod was not made of snapshot {snapshot.name}: it is kept, and a pause refused, until it is used or deleted",
    )


def _unused(object: SandboxObject, pods: Pods, snapshot: Snapshot) -> list[str]:
    there = {name for pod in _in_use(object, pods) for name in pod.containers}
    return sorted(set(images(snapshot)) - (there or set(object.images)))


def is_unused(object: SandboxObject, pods: Pods, snapshot: Snapshot) -> bool:
    """Whether a resume has failed and nothing has been made of its snapshot since: a new pause must not replace it (DESIGN §6)."""
    stood = object.status.condition(RESUME_FAILED)
    if stood is None or stood.reason == SNAPSHOT_PARTLY_USED:
        return False
    return _made_of(object, pods, snapshot) not in _SOME
