"""Subjects of the log and keys of the views (DESIGN §4, §5)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from bus.hashing import fnv1a32

DEFAULT_PARTITIONS: Final = 64
ALL: Final = "all"

# The kinds of message, as they stand in a subject.
OBSERVATION: Final = "obs"
LIST: Final = "list"
ASK: Final = "ask"
EPOCH: Final = "epoch"
COMMAND: Final = "cmd"
OUTCOME: Final = "out"
TICK: Final = "tick"
DEAD: Final = "dead"

# The kinds of aggregate.
SANDBOX: Final = "sandbox"
POOL: Final = "pool"
SNAPSHOT: Final = "snapshot"
AGGREGATES: Final = (SANDBOX, POOL, SNAPSHOT)

_CLUSTER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class Aggregate(msgspec.Struct, frozen=True, order=True):
    """What is decided about as one: a sandbox, a pool or a snapshot of a cluster."""

    cluster: str
    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.cluster}/{self.namespace}/{self.kind}/{self.name}"


def check_cluster(name: str) -> str:
    """A cluster's name as given by the user, if it can be one: a DNS label that is not `all`. Raises ValueError."""
    if not _CLUSTER.fullmatch(name) or len(name) > 63 or name == ALL:
        raise ValueError(
            f"cluster name {name!r} cannot be used: lower-case letters, digits and '-', at most 63, and not 'all'"
        )
    return name


def token(name: str) -> str:
    """A Kubernetes name as one subject token: a '.' becomes '_', which no Kubernetes name contains."""
    return name.replace(".", "_")


def untoken(text: str) -> str:
    return text.replace("_", ".")


def partition_of(cluster: str, namespace: str, partitions: int) -> int:
    """Which partition a namespace of a cluster is: one for all its objects, so that pools and their sandboxes share it."""
    return fnv1a32(cluster + namespace) % partitions


class Subject(msgspec.Struct, frozen=True):
    """A parsed subject. `partition` is None for what concerns all of them; `kind` is a resource or aggregate kind, or a scope."""

    message: str
    cluster: str
    partition: int | None = None
    namespace: str = ""
    kind: str = ""
    name: str = ""

    @property
    def aggregate(self) -> Aggregate:
        return Aggregate(self.cluster, self.namespace, self.kind, self.name)


def parse(subject: str) -> Subject:
    """Raises ValueError for what is no subject of ours."""
    tokens = subject.split(".")
    if len(tokens) == 7 and tokens[0] == "log":
        _, partition, cluster, namespace, message, kind, name = tokens
        return Subject(message, cluster, int(partition), namespace, kind, untoken(name))
    if len(tokens) in (4, 5) and tokens[:2] == ["log", ALL]:
        return Subject(tokens[3], tokens[2], kind=tokens[4] if len(tokens) == 5 else "")
    raise ValueError(f"not a subject of the log: {subject!r}")


def _of(partition: int, cluster: str, namespace: str, message: str, kind: str, name: str) -> str:
    return f"log.{partition}.{cluster}.{namespace}.{message}.{kind}.{token(name)}"


def observation(partition: int, cluster: str, namespace: str, kind: str, name: str) -> str:
    """`kind` is the resource kind in lower case (`pod`, `batchsandbox`)."""
    return _of(partition, cluster, namespace, OBSERVATION, kind, name)


def of_aggregate(message: str, partition: int, aggregate: Aggregate) -> str:
    """The subject of an aggregate's commands, outcomes, ticks or dead letters."""
    return _of(partition, aggregate.cluster, aggregate.namespace, message, aggregate.kind, aggregate.name)


def list_of(cluster: str, scope: str) -> str:
    return f"log.{ALL}.{cluster}.{LIST}.{scope}"


def ask_for(cluster: str, scope: str) -> str:
    return f"log.{ALL}.{cluster}.{ASK}.{scope}"


def epoch_of(cluster: str) -> str:
    return f"log.{ALL}.{cluster}.{EPOCH}"


def folded_by(partitions: tuple[int, ...] | None) -> tuple[str, ...]:
    """What the projector of these partitions reads; None for all of them. Dead letters are folded into nothing."""
    per = ("*",) if partitions is None else tuple(str(p) for p in partitions)
    kinds = (OBSERVATION, COMMAND, OUTCOME, TICK)
    return tuple(f"log.{p}.*.*.{kind}.>" for p in per for kind in kinds) + tuple(
        f"log.{ALL}.*.{kind}" for kind in (f"{LIST}.>", EPOCH)
    )


def commands_of(cluster: str) -> str:
    return f"log.*.{cluster}.*.{COMMAND}.>"


FENCE: Final = "_"


def fence_key(partition: int) -> str:
    return f"{partition}.{FENCE}"


def view_key(partition: int, aggregate: Aggregate) -> str:
    return f"{partition}.{aggregate.cluster}.{aggregate.namespace}.{aggregate.kind}.{token(aggregate.name)}"


VIEW_KEYS: Final = ("*.*.*.*.*", "*.*.*.*.*.*")
"""Patterns of the keys of views, heads and parts: all keys but the fences, which change with every commit."""


def parse_view_key(key: str) -> tuple[int, Aggregate | None, int | None]:
    """(partition, aggregate or None for the fence, number of the part or None for the head). Raises ValueError."""
    tokens = key.split(".")
    if len(tokens) == 2 and tokens[1] == FENCE:
        return int(tokens[0]), None, None
    if len(tokens) not in (5, 6):
        raise ValueError(f"not a key of a view: {key!r}")
    aggregate = Aggregate(tokens[1], tokens[2], tokens[3], untoken(tokens[4]))
    return int(tokens[0]), aggregate, int(tokens[5]) if len(tokens) == 6 else None
