"""Who makes a request."""

from __future__ import annotations

import msgspec


class Caller(msgspec.Struct, frozen=True):
    """`agent` is the User-Agent; its first word becomes the manager in managedFields."""

    agent: str = "sim"
    user: str = "admin"

    @property
    def manager(self) -> str:
        return self.agent.partition("/")[0] or "unknown"


INTERNAL = Caller("kube-controller-manager", "system:kube-controller-manager")
