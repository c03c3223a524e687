"""What the API server does to pods: reads them into known fields, fills defaults, validates."""

from __future__ import annotations

from typing import Any

from simcluster.errors import Cause
from simcluster.metadata import LABEL_TEXT, is_label_name
from simcluster.schema import shown

Json = dict[str, Any]

DEFAULT_GRACE_SECONDS = 30
_POLICIES = ("Always", "OnFailure", "Never")
_FORBIDDEN = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
    "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)"
)
_SPEC_FIELDS = frozenset(
    [
        "activeDeadlineSeconds",
        "affinity",
        "automountServiceAccountToken",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "ephemeralContainers",
        "hostAliases",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostUsers",
        "hostname",
        "hostnameOverride",
        "imagePullSecrets",
        "initContainers",
        "nodeName",
        "nodeSelector",
        "os",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "readinessGates",
        "resourceClaims",
        "resources",
        "restartPolicy",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "securityContext",
        "serviceAccount",
        "serviceAccountName",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "subdomain",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
        "workloadRef",
    ]
)
_CONTAINER_FIELDS = frozenset(
    [
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resizePolicy",
        "resources",
        "restartPolicy",
        "restartPolicyRules",
        "securityContext",
        "startupProbe",
        "stdin",
        "stdinOnce",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "tty",
        "volumeDevices",
        "volumeMounts",
        "workingDir",
    ]
)
_TOLERATIONS: list[Json] = [
    {
        "key": f"node.kubernetes.io/{name}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for name in ("not-ready", "unreachable")
]


def with_defaults(pod: Json) -> Json:
    """A pod as stored: unknown fields gone, defaults filled in."""
    return {**pod, "spec": spec_with_defaults(pod.get("spec") or {}, admitted=True)}


def spec_with_defaults(spec: Json, admitted: bool) -> Json:
    """`admitted`: also what admission adds to pods, but not to templates."""
    known = {k: v for k, v in spec.items() if k in _SPEC_FIELDS and v is not None}
    result: Json = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": DEFAULT_GRACE_SECONDS,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        **known,
    }
    for name in ("containers", "initContainers"):
        if result.get(name):
            result[name] = [_container(container) for container in result[name]]
    if admitted:
        tolerations = result.get("tolerations") or []
        keys = {t.get("key") for t in tolerations}
        result["tolerations"] = [*tolerations, *(t for t in _TOLERATIONS if t["key"] not in keys)]
        result.setdefault("priority", 0)
        result.setdefault("enableServiceLinks", True)
        result.setdefault("preemptionPolicy", "PreemptLowerPriority")
    return result


def _container(container: Json) -> Json:
    known = {k: v for k, v in container.items() if k in _CONTAINER_FIELDS and v is not None}
    image = known.get("image", "")
    tag = image.rpartition("/")[2].partition(":")[2]
    latest = "@" not in image and tag in ("", "latest")
    if known.get("ports"):
        known["ports"] = [{"protocol": "TCP", **port} for port in known["ports"]]
    return {
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if latest else "IfNotPresent",
        **known,
    }


def initial_status(pod: Json) -> Json:
    """A new pod's status: whatever the client sent is dropped."""
    return {"phase": "Pending", "qosClass": _quality(pod["spec"])}


def _quality(spec: Json) -> str:
    resources = [c.get("resources") or {} for c in spec.get("containers") or []]
    if not any(r.get("limits") or r.get("requests") for r in resources):
        return "BestEffort"
    full = all(
        {"cpu", "memory"} <= set(r.get("limits") or {})
        and all((r.get("requests") or r["limits"]).get(k, v) == v for k, v in r["limits"].items())
        for r in resources
    )
    return "Guaranteed" if full else "Burstable"


def spec_causes(spec: Json, field: str) -> list[Cause]:
    """Validation of a pod spec; `field` is where it stands (`spec`, `spec.template.spec`)."""
    containers = spec.get("containers") or []
    if not containers:
        return [Cause.required(f"{field}.containers")]
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    found: list[Cause] = []
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or []):
            where = f"{field}.{group}[{index}]"
            found += _container_causes(container, where, volumes, seen)
    if spec.get("restartPolicy") not in _POLICIES:
        found.append(Cause.unsupported(f"{field}.restartPolicy", shown(spec.get("restartPolicy")), list(_POLICIES)))
    return found


def _container_causes(container: Json, where: str, volumes: set[Any], seen: set[str]) -> list[Cause]:
    found = []
    name = container.get("name") or ""
    if not name:
        found.append(Cause.required(f"{where}.name"))
    elif not is_label_name(name):
        found.append(Cause.invalid(f"{where}.name", shown(name), LABEL_TEXT))
    elif name in seen:
        found.append(Cause.duplicate(f"{where}.name", shown(name)))
    seen.add(name)
    if not container.get("image"):
        found.append(Cause.required(f"{where}.image"))
    for index, variable in enumerate(container.get("env") or []):
        if not variable.get("name"):
            found.append(Cause.required(f"{where}.env[{index}].name"))
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            found.append(Cause.missing(f"{where}.volumeMounts[{index}].name", shown(mount.get("name"))))
    return found


def update_causes(old: Json, new: Json) -> list[Cause]:
    """A pod's spec is fixed but for images, activeDeadlineSeconds and added tolerations."""
    before, after = old["spec"], new["spec"]
    if before == after:
        return []
    causes = spec_causes(after, "spec")
    if causes:
        return causes
    tolerated = all(t in (after.get("tolerations") or []) for t in before.get("tolerations") or [])
    if _fixed(before) == _fixed(after) and tolerated:
        return []
    return [Cause.forbidden("spec", _FORBIDDEN)]


def _fixed(spec: Json) -> Json:
    result = {k: v for k, v in spec.items() if k not in ("activeDeadlineSeconds", "tolerations")}
    for name in ("containers", "initContainers"):
        if name in result:
            result[name] = [{**container, "image": ""} for container in result[name]]
    return result


def synced_addresses(status: Json) -> Json:
    """podIP and the first of podIPs are one value; whichever is set fills the other."""
    address, addresses = status.get("podIP"), status.get("podIPs")
    if address and (not addresses or addresses[0].get("ip") != address):
        return {**status, "podIPs": [{"ip": address}]}
    if addresses and not address:
        return {**status, "podIP": addresses[0].get("ip")}
    return status
