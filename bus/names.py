"""The names of the API that users and other programs rely on, and how names are made (controller-behaviour.md §0, §6, §9)."""

from __future__ import annotations

import hashlib
from typing import Final

GROUP: Final = "sandbox.opensandbox.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

# Labels
POD_INDEX: Final = "batch-sandbox.sandbox.opensandbox.io/pod-index"
SANDBOX_NAME: Final = "batch-sandbox.sandbox.opensandbox.io/name"
POOL_NAME: Final = "sandbox.opensandbox.io/pool-name"
POOL_REVISION: Final = "sandbox.opensandbox.io/pool-revision"
SNAPSHOT_NAME: Final = "sandbox.opensandbox.io/sandbox-snapshot-name"
"""As an annotation of the same key on a Job and its pods, the whole name where the label is shortened (B106)."""
PRIVILEGED_NODE_ACCESS: Final = "sandbox.opensandbox.io/privileged-node-access"

# Annotations
ENDPOINTS: Final = "sandbox.opensandbox.io/endpoints"
ALLOC_STATUS: Final = "sandbox.opensandbox.io/alloc-status"
ALLOC_RELEASE: Final = "sandbox.opensandbox.io/alloc-release"
ALLOC_RELEASED: Final = "sandbox.opensandbox.io/alloc-released"
TEMPLATE_DIGEST: Final = "sandbox.opensandbox.io/template-digest"
"""On what we create: the intent it was made for (DESIGN §6); for a pod the digest of the template it was built from."""
PAUSE_GENERATION: Final = "sandbox.opensandbox.io/pause-generation"
"""On a pause snapshot: the generation of the intent it was made for (DESIGN §6)."""
SOURCE_POD_NAME: Final = "sandbox.opensandbox.io/source-pod-name"
SOURCE_POD_UID: Final = "sandbox.opensandbox.io/source-pod-uid"
"""On pause snapshots, Jobs and Jobs' pods: the pod they commit. A snapshot counts only for the pod of this uid (DESIGN §8.2)."""
FAILED_SPEC_DIGEST: Final = "sandbox.opensandbox.io/failed-spec-digest"
"""On a BatchSandbox whose pause or resume failed: digest of the spec, `pause` apart, when that was recorded (DESIGN §6, Intent)."""

# Finalizers
TASK_CLEANUP: Final = "batch-sandbox.sandbox.opensandbox.io/task-cleanup"
POOL_ALLOCATION: Final = "pool.sandbox.opensandbox.io/pool-allocation"
SNAPSHOT_CLEANUP: Final = "sandboxsnapshot.sandbox.opensandbox.io/cleanup"

# Event sources, as the stock controller names them (controller-behaviour.md §8.1)
SANDBOX_COMPONENT: Final = "batchsandbox-controller"
POOL_COMPONENT: Final = "pool-controller"
SNAPSHOT_COMPONENT: Final = "sandboxsnapshot-controller"

STOCK_LEASE: Final = "2fa1c467.opensandbox.io"
"""The stock controller's leader-election lease (controller-behaviour.md §8.3)."""

MAX_OBJECT_NAME: Final = 253
MAX_LABEL_VALUE: Final = 63
MAX_REPOSITORY: Final = 255
"""Characters that an image reference may have before its tag, the registry's among them (distribution's reference grammar)."""
MAX_REGISTRY: Final = 150
"""So much of them a registry may take that the longest container name and a sandbox's shortened one still fit."""
_HASH_LENGTH = 10


def shortened(name: str, limit: int) -> str:
    """`name`, or where it is longer than `limit` its beginning and a hash of the whole (B106).

    The cut never leaves a '-' or '.' before the hash, so that the result stays a legal name.
    """
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[: limit - _HASH_LENGTH - 1].rstrip('-.')}-{digest}"


def short_image(image: str) -> str:
    """An image without registry and path: what stays the same where a mirror or a webhook rewrites from where it is pulled."""
    return image.rpartition("/")[2]


def pod_name(sandbox: str, index: int) -> str:
    """The name of a template-mode pod: `<sandbox>-<index>`; the index is always whole, a too long sandbox name is shortened."""
    suffix = f"-{index}"
    return shortened(sandbox, MAX_OBJECT_NAME - len(suffix)) + suffix


def label_value(name: str) -> str:
    """An object's name as a label value, shortened where it is too long for one (B32, B106)."""
    return shortened(name, MAX_LABEL_VALUE)


def pause_snapshot_name(sandbox: str) -> str:
    """The internal snapshot of a pause: `<sandbox>-pause` (B106 for long names)."""
    return shortened(sandbox, MAX_OBJECT_NAME - len("-pause")) + "-pause"


def job_name(snapshot: str, action: str) -> str:
    """A snapshot's Job: `<snapshot>-<action>`; the name is a label value of the Job's pods, so a too long snapshot name is shortened (B106)."""
    suffix = f"-{action}"
    return shortened(snapshot, MAX_LABEL_VALUE - len(suffix)) + suffix


def image_repository(registry: str, sandbox: str, container: str) -> str:
    """Where a container's image is pushed to: `<registry>/<sandbox>-<container>` (§7.3); a sandbox name too long for it is shortened (B106)."""
    room = MAX_REPOSITORY - len(registry) - len(container) - 2
    return f"{registry}/{shortened(sandbox, max(room, 2 * _HASH_LENGTH))}-{container}"


def parse_pod_index(name: str, label: str | None) -> int | None:
    """A template-mode pod's index: its label, else what follows the last '-' of its name (SCL-06, SCL-07); None if neither is a number."""
    for text in (label, name.rpartition("-")[2]):
        if text and text.isascii() and text.isdigit():
            return int(text)
    return None
