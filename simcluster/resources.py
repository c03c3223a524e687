"""The kinds that the simulated cluster serves, as one table."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources as package_files
from pathlib import Path
from typing import Any

import msgspec
import yaml

Json = dict[str, Any]


class Resource(msgspec.Struct, frozen=True):
    """One served resource. `schema` is the structural schema of a custom resource, else None.

    `unconditional_update`: a PUT without resourceVersion is taken (most built-in kinds).
    `has_generation`: metadata.generation counts changes of what is not metadata or status.
    `returns_deleted`: a delete that takes effect at once answers the object, not a Status.
    """

    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool = True
    status_subresource: bool = False
    has_generation: bool = False
    unconditional_update: bool = True
    returns_deleted: bool = False
    short_names: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    schema: Json | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`pods`, `batchsandboxes.sandbox.opensandbox.io`: how messages name the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def is_custom(self) -> bool:
        return self.schema is not None

    @property
    def prefix(self) -> str:
        """The path prefix of its group and version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The request path of a collection, an object or a subresource."""
        parts = [self.prefix]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


_INVOLVED = tuple(
    f"involvedObject.{name}"
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
)

BUILT_IN = (
    Resource(
        "",
        "v1",
        "namespaces",
        "namespace",
        "Namespace",
        namespaced=False,
        status_subresource=True,
        returns_deleted=True,
        short_names=("ns",),
        fields=("status.phase",),
    ),
    Resource(
        "",
        "v1",
        "nodes",
        "node",
        "Node",
        namespaced=False,
        status_subresource=True,
        short_names=("no",),
        fields=("spec.unschedulable",),
    ),
    Resource(
        "",
        "v1",
        "pods",
        "pod",
        "Pod",
        status_subresource=True,
        has_generation=True,
        returns_deleted=True,
        short_names=("po",),
        fields=(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
    ),
    Resource(
        "",
        "v1",
        "events",
        "event",
        "Event",
        short_names=("ev",),
        fields=(*_INVOLVED, "reason", "reportingComponent", "source", "type"),
    ),
    Resource("", "v1", "configmaps", "configmap", "ConfigMap", short_names=("cm",)),
    Resource("", "v1", "secrets", "secret", "Secret", fields=("type",)),
    Resource(
        "batch",
        "v1",
        "jobs",
        "job",
        "Job",
        status_subresource=True,
        has_generation=True,
        fields=("status.successful",),
    ),
    Resource("coordination.k8s.io", "v1", "leases", "lease", "Lease", unconditional_update=False),
)


def custom_resource(definition: Json) -> Resource:
    """A row from a CustomResourceDefinition document (its storage version)."""
    spec = definition["spec"]
    names = spec["names"]
    version = next(v for v in spec["versions"] if v["storage"])
    return Resource(
        spec["group"],
        version["name"],
        names["plural"],
        names["singular"],
        names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        status_subresource="status" in version.get("subresources", {}),
        has_generation=True,
        unconditional_update=False,
        short_names=tuple(names.get("shortNames", ())),
        schema=version["schema"]["openAPIV3Schema"],
    )


def _crd_texts() -> Iterable[str]:
    checkout = Path(__file__).resolve().parent.parent / "deploy" / "crds"
    if checkout.is_dir():
        yield from (path.read_text() for path in sorted(checkout.glob("*.yaml")))
        return
    installed = package_files.files("sandlog") / "crds"
    for entry in sorted(installed.iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".yaml"):
            yield entry.read_text()


def load_custom_resources(texts: Iterable[str] | None = None) -> tuple[Resource, ...]:
    """The custom resources of deploy/crds (or of the given YAML texts)."""
    return _parsed(tuple(_crd_texts() if texts is None else texts))


@cache
def _parsed(texts: tuple[str, ...]) -> tuple[Resource, ...]:
    documents = [doc for text in texts for doc in yaml.safe_load_all(text) if doc]
    return tuple(custom_resource(doc) for doc in documents)
