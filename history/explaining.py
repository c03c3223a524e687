"""Which flag of the time explains why a recorded command was decided otherwise. Pure.

A file holds one value of each flag, while a restart in the middle of the log may have changed it. What a command shows of the flag's value
(the pull secret's name, the registry in an image's name) is tried as it stands; of a patience only whether it was over, so both are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from bus.messages import Command
from bus.ops import PatchSnapshotStatus, RewriteTemplate
from bus.views import SandboxView, View
from reconciler.settings import Settings

PULL_SECRET: Final = "resume_pull_secret"
REGISTRY: Final = "snapshot_registry"
FLAGS: Final = {
    PULL_SECRET: "--resume-pull-secret",
    REGISTRY: "--snapshot-registry",
    "pod_failure_grace": "--pod-failure-grace",
    "snapshot_patience": "--commit-job-timeout",
}
_PATIENCES: Final = ("pod_failure_grace", "snapshot_patience")
_NEVER: Final = 1 << 62
_NOT_CONFIGURED: Final = "RegistryNotConfigured"


def shown(command: Command) -> Iterator[tuple[str, str]]:
    """(setting, value) as a command itself shows them."""
    for op in command.ops:
        if isinstance(op, RewriteTemplate):
            yield PULL_SECRET, op.pull_secret
        elif isinstance(op, PatchSnapshotStatus):
            if op.status.containers and op.status.phase == "Committing":
                yield REGISTRY, op.status.containers[0].image_uri.rpartition("/")[0]
            elif any(each.reason == _NOT_CONFIGURED for each in op.status.conditions or ()):
                yield REGISTRY, ""


def alternatives(
    command: Command, view: View, settings: Settings, given: frozenset[str]
) -> Iterator[tuple[str, Settings]]:
    """(flag, settings with another value of it) under which the command may have been decided; `given` are not to be doubted."""
    tried: list[tuple[str, Any]] = list(shown(command))
    if isinstance(view, SandboxView):
        tried += [(name, value) for name in _PATIENCES for value in (0, _NEVER)]
    for name, value in tried:
        if name not in given and getattr(settings, name) != value:
            yield FLAGS[name], replace(settings, **{name: value})
