"""Discovery documents: enough for kubectl-like clients."""

from __future__ import annotations

from typing import Any

from simcluster.resources import Resource

Json = dict[str, Any]

VERSION: Json = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3-sim",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "simulated",
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def document(path: str, resources: tuple[Resource, ...]) -> Json | None:
    """What a GET of a discovery path answers; None for any other path."""
    if path == "/version":
        return VERSION
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    groups = sorted({(r.group, r.version) for r in resources if r.group})
    if path == "/apis":
        listed = [_group(group, version) for group, version in groups]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    for group, version in groups:
        if path == f"/apis/{group}":
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, version)}
    found = [r for r in resources if r.prefix == path]
    return _resource_list(found) if found else None


def _group(group: str, version: str) -> Json:
    entry = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def _resource_list(resources: list[Resource]) -> Json:
    listed: list[Json] = []
    for resource in resources:
        base = {"namespaced": resource.namespaced, "kind": resource.kind}
        entry: Json = {"name": resource.plural, "singularName": resource.singular, **base, "verbs": _VERBS}
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        listed.append(entry)
        if resource.status_subresource:
            verbs = ["get", "patch", "update"]
            listed.append({"name": f"{resource.plural}/status", "singularName": "", **base, "verbs": verbs})
        if resource.plural == "pods":
            kind = {"namespaced": True, "kind": "Binding", "verbs": ["create"]}
            listed.append({"name": "pods/binding", "singularName": "", **kind})
    version = resources[0].api_version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}
