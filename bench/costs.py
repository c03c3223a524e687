"""What the work cost: calls from the API server's audit log, and CPU time of processes from /proc."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import msgspec
from kube import AGENT

READS = ("get", "list", "watch")
AUDIT_DELAY = 1.5
"""Seconds after which a batching audit log has written what happened."""


class _User(msgspec.Struct):
    username: str = ""


class _Reference(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _Answer(msgspec.Struct):
    code: int = 0


class _AuditEvent(msgspec.Struct, rename="camel"):
    stage: str = ""
    verb: str = ""
    user: _User = msgspec.field(default_factory=_User)
    user_agent: str = ""
    object_ref: _Reference | None = None
    response_status: _Answer | None = None


_decoder = msgspec.json.Decoder(_AuditEvent)


class Writes(msgspec.Struct, frozen=True):
    """One user's writes per sandbox; leases, which are paced by time, left out. `calls`: `verb resource[/sub] [code]` → number."""

    all: float
    without_events: float
    without_events_and_conflicts: float
    calls: dict[str, int]
    reads: dict[str, int]


def audit(path: Path, start: int, sandboxes: int) -> dict[str, Writes]:
    """The calls since byte `start`, by user and, where programs share a user, by program. Lines that cannot be read are skipped."""
    writes: dict[str, Counter[str]] = {}
    reads: dict[str, Counter[str]] = {}
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            try:
                event = _decoder.decode(line)
            except msgspec.DecodeError:
                continue
            if event.stage != "ResponseComplete" or event.user_agent.startswith(AGENT) or event.object_ref is None:
                continue
            if event.object_ref.resource == "leases":
                continue
            user = f"{event.user.username} ({event.user_agent.partition('/')[0]})"
            (reads if event.verb in READS else writes).setdefault(user, Counter())[_call(event)] += 1
    return {
        user: _writes(writes.get(user, Counter()), reads.get(user, Counter()), sandboxes)
        for user in sorted({*writes, *reads})
    }


def _call(event: _AuditEvent) -> str:
    assert event.object_ref is not None
    what = "/".join(part for part in (event.object_ref.resource, event.object_ref.subresource) if part)
    code = event.response_status.code if event.response_status else 0
    return f"{event.verb} {what}" + (f" {code}" if code >= 300 else "")


def _writes(writes: Counter[str], reads: Counter[str], sandboxes: int) -> Writes:
    def share(chosen: list[str]) -> float:
        return round(sum(writes[call] for call in chosen) / max(1, sandboxes), 3)

    quiet = [call for call in writes if call.split()[1] != "events"]
    return Writes(
        share(list(writes)),
        share(quiet),
        share([call for call in quiet if not call.endswith(" 409")]),
        dict(writes.most_common()),
        dict(reads.most_common()),
    )


class Processes:
    """CPU time, user and system, of processes given as name → process id."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids
        self._tick = os.sysconf("SC_CLK_TCK")
        self._before = self.seconds()

    def seconds(self) -> dict[str, float]:
        """Seconds since each began; a process that has ended is left out."""
        found = {}
        for name, pid in self._ids.items():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[name] = (int(fields[11]) + int(fields[12])) / self._tick
        return found

    def since(self, sandboxes: int) -> dict[str, float]:
        """Milliseconds per sandbox since this was last asked."""
        before, self._before = self._before, self.seconds()
        return {
            name: round((now - before.get(name, 0.0)) * 1000 / max(1, sandboxes), 2)
            for name, now in self._before.items()
        }


def busy_cores(seconds: float = 2.0) -> float:
    """How many cores' worth of time this machine spends on work just now."""

    def ticks() -> tuple[int, int]:
        values = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return sum(values), values[3] + values[4]

    total, idle = ticks()
    time.sleep(seconds)
    total_then, idle_then = ticks()
    passed = max(1, total_then - total)
    return (passed - (idle_then - idle)) / passed * (os.cpu_count() or 1)


def resident_bytes(pid: int) -> int:
    """RSS. Raises OSError when the process is gone."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no memory")
