"""The flags of `sandlog run`: ours, and those of the stock controller that have a meaning here (controller-behaviour.md §8.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from bridge.jobbuild import CommitSettings
from bus import subjects
from bus.log_nats import LogSettings as StreamSettings
from bus.viewstore_nats import ViewStoreSettings
from sandlog import logs
from sandlog.health import Address, Endpoints, parse_address
from sandlog.namespaces import is_name
from sandlog.options import DURATION, GO_BOOL, SIGNED_DURATION, SIZE, boolean, option
from sandlog.registry import REGISTRY
from sandlog.stock import ignored_options

MEGABYTE: Final = 1024 * 1024


class RunSettings(msgspec.Struct, frozen=True):
    """What the flags of `run` say. Times in seconds."""

    kubeconfig: Path | None = None
    context: str | None = None
    cluster: str | None = None
    namespaces: tuple[str, ...] = ()
    qps: float = 0.0
    burst: int = 200
    api_calls: int = 24
    """API calls at a time of an executor; creates take half of them at the most"""
    pod_failure_grace: float = 20.0
    relist_interval: float = 300.0
    redaction_key: bytes | None = None
    redacted_annotations: tuple[str, ...] = ()
    ignore_stock_lease: bool = False
    commit: CommitSettings = CommitSettings()
    snapshot_registry: str = ""
    resume_pull_secret: str = ""
    member: str | None = None
    stream: StreamSettings = StreamSettings()
    views: ViewStoreSettings = ViewStoreSettings()
    endpoints: Endpoints = Endpoints()
    logs: logs.LogSettings = logs.LogSettings()
    warnings: tuple[str, ...] = ()
    """sentences to be logged once: flags that have less effect here than there"""


class _AddressType(click.ParamType[Address | None]):
    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address | None:
        if value is None or isinstance(value, Address):
            return value
        try:
            return parse_address(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _LevelType(click.ParamType[int]):
    name = "level"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return logs.level_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_concurrency(texts: tuple[str, ...]) -> dict[str, int]:
    """`batchsandbox=32;pool=128`, given once or more; the same complaints as the stock controller's. Raises click.BadParameter."""
    found: dict[str, int] = {}
    for pair in (part.strip() for text in texts for part in text.split(";")):
        if not pair:
            continue
        name, equals, number = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise click.BadParameter(
                f"invalid concurrency config format: {pair}, expected format: controller=value",
                param_hint="--concurrency",
            )
        if not re.fullmatch(r"[+-]?\d+", number):
            raise click.BadParameter(f"invalid concurrency value for {name}: {number!r}", param_hint="--concurrency")
        if int(number) <= 0:
            raise click.BadParameter(
                f"concurrency value must be positive for {name}: {number}", param_hint="--concurrency"
            )
        found[name] = int(number)
    return found


_OURS: Final = (
    option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help="Of the cluster.  [default: KUBECONFIG, else the pod's own, else ~/.kube/config]",
    ),
    option("--context", metavar="NAME", help="Context of the kubeconfig."),
    option("--cluster", metavar="NAME", help="Name of the cluster in the log.  [default: from the context]"),
    option("--namespace", "-n", "namespaces", multiple=True, help="Only these namespaces; repeatable."),
    option("--member", metavar="NAME", help="This process's name among its peers.  [default: host and process]"),
    option(
        "--api-calls",
        type=click.IntRange(1),
        default=24,
        help="API calls at a time of an executor; of these a few create pods, up to half where that does not only make a queue.",
    ),
    option("--pod-failure-grace", type=DURATION, default="20s", help="How long a pod that may heal is given."),
    option("--relist-interval", type=DURATION, default="5m", help="How often everything is listed anew."),
    option("--redaction-key", help="Key of the digests that stand for secret values; the same for all bridges."),
    option(
        "--redaction-key-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="File with that key."
    ),
    option(
        "--redact-annotation",
        "redacted_annotations",
        multiple=True,
        help="Annotation whose value is secret; repeatable.",
    ),
    boolean("--ignore-stock-lease", help="Start although the stock controller holds its lease."),
    option(
        "--partitions",
        type=click.IntRange(1, 1024),
        default=subjects.DEFAULT_PARTITIONS,
        help="Of the log, when it is made.",
    ),
    option("--stream-max-age", type=DURATION, default="72h", help="How long the log keeps messages."),
    option(
        "--stream-max-bytes", type=SIZE, help="How large the log may grow.  [default: 8G, or what there is room for]"
    ),
    option(
        "--views-storage", type=click.Choice(("memory", "file")), default="memory", help="Where the views are kept."
    ),
    option(
        "--replicas", type=click.Choice(("1", "3", "5")), default="1", help="Copies of log and views in a NATS cluster."
    ),
    option(
        "--log-format",
        type=click.Choice(("auto", "text", "json")),
        default="auto",
        help="auto: text on a terminal, else JSON.",
    ),
)
_STOCK: Final = (
    option("--health-probe-bind-address", type=_AddressType(), default=":8081", help="/healthz and /readyz; 0: off."),
    option("--metrics-bind-address", type=_AddressType(), default="0", help="/metrics; 0: off."),
    boolean(
        "--metrics-secure", default=True, help="HTTPS, if --metrics-cert-path is given; else plain with a warning."
    ),
    option("--metrics-cert-path", type=click.Path(path_type=Path), help="Folder of the metrics' certificate."),
    option("--metrics-cert-name", default="tls.crt", help="Its file."),
    option("--metrics-cert-key", default="tls.key", help="Its key's file."),
    option(
        "--kube-client-qps",
        type=float,
        default=0.0,
        help="API calls a second. 0 is no limit: what bounds us is how many calls are under way at a time.",
    ),
    option("--kube-client-burst", type=int, default=200, help="API calls in a burst."),
    option("--concurrency", multiple=True, help="batchsandbox=32;pool=128: the largest is the API calls at a time."),
    option("--zap-log-level", type=_LevelType(), default="info", help="debug, info, error, panic or a verbosity."),
    option("--zap-encoder", type=click.Choice(("json", "console")), help="Like --log-format json or text."),
    option("--image-committer-image", default=CommitSettings().committer_image, help="Image of the Jobs that commit."),
    option(
        "--containerd-socket-path",
        default=CommitSettings().containerd_socket,
        help="containerd's socket on the nodes, for those Jobs.",
    ),
    option(
        "--commit-job-timeout",
        type=SIGNED_DURATION,
        default="10m",
        help="How long a commit may take, retries included; 0 or less is the default.",
    ),
    option(
        "--snapshot-registry",
        type=REGISTRY,
        default="",
        metavar="TEXT",
        help="Where snapshots are pushed to; without it none is made.",
    ),
    boolean("--snapshot-registry-insecure", help="Push over plain HTTP, or without a look at the certificate."),
    option("--snapshot-push-secret", default="", help="Secret of the registry, in each sandbox's namespace."),
    option("--resume-pull-secret", default="", help="Image pull secret that a resumed sandbox is given."),
    boolean("--zap-devel", help="Text, and everything from debug on."),
    boolean("--enable-file-log", help="Also log to a file, and to standard output instead of standard error."),
    option(
        "--log-file-path",
        type=click.Path(path_type=Path),
        default="/var/log/sandbox-controller/controller.log",
        help="That file.",
    ),
    option("--log-max-size", type=click.IntRange(1), default=100, help="MB after which it is begun anew."),
    option("--log-max-backups", type=click.IntRange(0), default=10, help="Old ones kept."),
    option("--log-max-age", type=click.IntRange(0), default=30, help="Days that they are kept; 0: without limit."),
    option("--log-compress", type=GO_BOOL, default=True, metavar="[true|false]", help="Keep them compressed."),
)


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """All flags of `run`; the command gets them as they are, for `settings`."""
    for decorate in reversed((*_OURS, *_STOCK)):
        function = decorate(function)
    return ignored_options(function)  # type: ignore[no-any-return]


def settings(given: Mapping[str, Any]) -> RunSettings:
    """The values of `run_options` as one struct. Raises click.UsageError."""
    if given["cluster"] is not None:
        try:
            subjects.check_cluster(given["cluster"])
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--cluster") from error
    for namespace in given["namespaces"]:
        if not is_name(namespace):
            text = f"{namespace!r} cannot be the name of a namespace (a-z, 0-9 and -, at most 63, no - at the ends)"
            raise click.BadParameter(text, param_hint="--namespace")
    limits = parse_concurrency(given["concurrency"])
    warnings: list[str] = []
    replicas = int(given["replicas"])
    return RunSettings(
        kubeconfig=given["kubeconfig"],
        context=given["context"],
        cluster=given["cluster"],
        namespaces=tuple(given["namespaces"]),
        qps=given["kube_client_qps"],
        burst=given["kube_client_burst"],
        api_calls=max(limits.values(), default=given["api_calls"]),
        pod_failure_grace=given["pod_failure_grace"],
        relist_interval=given["relist_interval"],
        redaction_key=_key(given),
        redacted_annotations=tuple(given["redacted_annotations"]),
        ignore_stock_lease=given["ignore_stock_lease"],
        commit=CommitSettings(
            committer_image=given["image_committer_image"] or CommitSettings().committer_image,
            containerd_socket=given["containerd_socket_path"] or CommitSettings().containerd_socket,
            timeout=commit_timeout(given["commit_job_timeout"]),
            registry_insecure=given["snapshot_registry_insecure"],
            push_secret=given["snapshot_push_secret"],
        ),
        snapshot_registry=given["snapshot_registry"],
        resume_pull_secret=given["resume_pull_secret"],
        member=given["member"],
        stream=StreamSettings(
            partitions=given["partitions"],
            max_age=given["stream_max_age"],
            max_bytes=given["stream_max_bytes"],
            replicas=replicas,
        ),
        views=ViewStoreSettings(storage=given["views_storage"], replicas=replicas),
        endpoints=_endpoints(given, warnings),
        logs=_logs(given),
        warnings=tuple(warnings),
    )


def commit_timeout(seconds: float) -> int:
    """Whole seconds; one that is not positive is the default (controller-behaviour.md §7.7), and one below a second is no such."""
    return max(1, int(seconds)) if seconds > 0 else CommitSettings().timeout


def _key(given: Mapping[str, Any]) -> bytes | None:
    if given["redaction_key"] and given["redaction_key_file"]:
        raise click.UsageError("--redaction-key and --redaction-key-file: give one of them")
    if given["redaction_key_file"]:
        key = bytes(given["redaction_key_file"].read_bytes().strip())
        if not key:
            raise click.BadParameter("the file is empty", param_hint="--redaction-key-file")
        return key
    return given["redaction_key"].encode() if given["redaction_key"] else None


def _endpoints(given: Mapping[str, Any], warnings: list[str]) -> Endpoints:
    folder, metrics, secure = given["metrics_cert_path"], given["metrics_bind_address"], given["metrics_secure"]
    tls = secure and folder is not None
    if metrics is not None and secure:
        warnings.append(
            "metrics are served without authentication: let only Prometheus reach the port (NetworkPolicy)"
            if tls
            else "--metrics-secure without --metrics-cert-path: metrics are served over plain HTTP, without authentication"
        )
    if tls and metrics is not None and metrics == given["health_probe_bind_address"]:
        raise click.UsageError("probes are plain HTTP and the metrics HTTPS: give them different addresses")
    return Endpoints(
        health=given["health_probe_bind_address"],
        metrics=metrics,
        certificate=folder / given["metrics_cert_name"] if tls else None,
        key=folder / given["metrics_cert_key"] if tls else None,
    )


def _logs(given: Mapping[str, Any]) -> logs.LogSettings:
    format_ = given["log_format"]
    if format_ == "auto" and (given["zap_encoder"] or given["zap_devel"]):
        format_ = "json" if given["zap_encoder"] == "json" else "text"
    file = None
    if given["enable_file_log"]:
        file = logs.LogFile(
            path=given["log_file_path"],
            size=given["log_max_size"] * MEGABYTE,
            backups=given["log_max_backups"],
            days=given["log_max_age"],
            compress=given["log_compress"],
        )
    level = logs.level_of("debug") if given["zap_devel"] else given["zap_log_level"]
    return logs.LogSettings(format=format_, level=level, file=file)
