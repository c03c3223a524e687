"""deploy/crds accept what the published CRDs accept, and PoolAllocationPending as a condition type."""

from __future__ import annotations

import pytest
from simcluster_api import COUNTS, sandbox

from simcluster.direct import DirectClient
from simcluster.resources import load_custom_resources
from simcluster.store import Store

BS = "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/batchsandboxes"
MERGE = "application/merge-patch+json"
TYPES = ["Ready", "Progressing", "Paused", "PauseFailed", "ResumeFailed", "PodFailed", "PoolAllocationPending"]


def test_the_three_kinds_are_served() -> None:
    kinds = {r.kind: r for r in load_custom_resources()}
    assert kinds.keys() == {"BatchSandbox", "Pool", "SandboxSnapshot"}
    assert all(r.status_subresource and r.namespaced for r in kinds.values())


@pytest.mark.parametrize("kind", TYPES)
def test_condition_types_of_a_batch_sandbox(store: Store, kind: str) -> None:
    client = DirectClient(store)
    client.request("POST", BS, sandbox("a"))
    conditions = [{"type": kind, "status": "True"}]
    patch = {"status": {**dict.fromkeys(COUNTS, 0), "conditions": conditions}}
    assert client.request("PATCH", f"{BS}/a/status", patch, MERGE)[0] == 200
