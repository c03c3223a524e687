"""`sandlog get`: the current views, as a table, in detail, or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import click
import msgspec
from rich.text import Text

from bus import names
from bus.resources import Condition
from bus.subjects import Aggregate
from bus.times import format_time
from bus.views import PoolView, SandboxView, SnapshotView, View
from history.wording import op_text
from sandlog import fitting, output, selection, watched
from sandlog.transport import Transport

COLOURS: Final = {
    "Succeed": "green",
    "Running": "green",
    "Ready": "green",
    "Failed": "red",
    "Paused": "blue",
    "Pausing": "yellow",
    "Resuming": "yellow",
    "Pending": "yellow",
}
HEADINGS: Final = {
    "sandbox": ("NAMESPACE", "NAME", "PHASE", "READY", "ENDPOINT", "AGE", "OPEN", "TRIES", "FAILURE"),
    "pool": ("NAMESPACE", "NAME", "PODS", "AGE", "OPEN", "TRIES", "FAILURE"),
    "snapshot": ("NAMESPACE", "NAME", "PHASE", "SANDBOX", "AGE", "OPEN", "TRIES", "FAILURE"),
}
SEEN: Final = "LAST SEEN"
"""A column that is there only where a cluster is shown that nobody watches."""
SHRINKABLE: Final = ("CLUSTER", "NAMESPACE", "NAME", "ENDPOINT", "SANDBOX", "FAILURE")


def endpoints(view: SandboxView) -> list[str]:
    """The addresses of its ready pods, as the endpoints annotation says."""
    text = view.object.annotations.get(names.ENDPOINTS, "") if view.object is not None else ""
    try:
        addresses = msgspec.json.decode(text or b"[]", type=list[str])
    except msgspec.DecodeError:
        return [f"malformed: {text[:40]}"]
    return [address for address in addresses if address]


def _coloured(phase: str) -> Text:
    return Text(phase or "-", style=COLOURS.get(phase, ""))


def _endpoint(view: SandboxView) -> str:
    found = endpoints(view)
    return "-" if not found else found[0] if len(found) == 1 else f"{found[0]} +{len(found) - 1}"


def phase(view: View) -> str:
    """What it is in, as a word."""
    if isinstance(view, PoolView) or view.object is None:
        return "" if view.object is not None else "gone"
    if view.object.deleting:
        return "Terminating"
    return view.object.status.phase


def _age(view: View, now: int) -> str:
    return output.age(now - view.object.created) if view.object is not None and view.object.created else "-"


def _trouble(view: View) -> tuple[str, str, str]:
    failure = f"{view.failure.reason or view.failure.code}: {view.failure.message}"[:80] if view.failure else "-"
    if failure == "-" and not view.settled:
        failure = "waits for a list"
    return str(len(view.open)), str(view.tries), failure


def row(view: View, now: int) -> tuple[str | Text, ...]:
    """The cells of HEADINGS; `now` is log time, nanoseconds."""
    start = (view.namespace, view.name)
    match view:
        case SandboxView():
            wanted = view.object.replicas if view.object is not None else 0
            ready = f"{sum(pod.ready for pod in view.live_pods().values())}/{wanted}"
            middle: tuple[str | Text, ...] = (_coloured(phase(view)), ready, _endpoint(view))
        case PoolView():
            middle = (str(sum(not pod.gone for pod in view.pods.values())),)
        case SnapshotView():
            middle = (_coloured(phase(view)), view.object.sandbox if view.object is not None else "-")
    return (*start, *middle, _age(view, now), *_trouble(view))


def _conditions(conditions: Iterable[Condition]) -> str:
    return ", ".join(f"{c.type}={c.status} {c.reason} {c.message}".strip() for c in conditions) or "none"


def details(view: View, now: int) -> list[tuple[str, str]]:
    """What there is to say of one, as (title, text)."""
    lines = [
        ("cluster", view.cluster),
        ("phase", phase(view) or "-"),
        ("age", _age(view, now)),
        ("position", f"{view.sequence} (as of {format_time(view.now)})" if view.now else str(view.sequence)),
        ("settled", "yes" if view.settled else "no: a complete list is awaited, nothing is decided from absence"),
    ]
    if isinstance(view, SandboxView) and view.object is not None:
        lines += _of_sandbox(view)
    if view.in_flight is not None:
        lines.append(("in flight", f"command {view.in_flight.sequence}, expires {format_time(view.in_flight.expires)}"))
    lines += [("open", f"{op_text(o.op)}, since {o.since}, waits for {', '.join(o.waits)}") for o in view.open]
    if view.tries:
        lines.append(("failed tries", f"{view.tries}, next not before {format_time(view.retry_at)}"))
    if view.failure is not None:
        failure = view.failure
        lines.append(("failure", f"{failure.op} {failure.object}: {failure.code} {failure.reason} {failure.message}"))
    return lines


def _of_sandbox(view: SandboxView) -> list[tuple[str, str]]:
    assert view.object is not None
    sandbox, status = view.object, view.object.status
    lines = [
        ("generation", f"{sandbox.generation}, observed {status.observed_generation}"),
        ("replicas", f"{sandbox.replicas} wanted, {status.replicas} there, {status.ready} ready (as written)"),
        ("endpoints", fitting.few(endpoints(view)) or "none"),
        ("conditions", _conditions(status.conditions)),
    ]
    if sandbox.expire_time is not None:
        lines.append(("expires", format_time(sandbox.expire_time)))
    for name, pod in view.live_pods().items():
        words = [pod.phase or "?", "ready" if pod.ready else "not ready", pod.ip, pod.node, pod.reason]
        if pod.deleting:
            words.append("deleting")
        lines.append((f"pod {name}", " ".join(word for word in words if word)))
    return lines


async def run(
    transport: Transport,
    *,
    name: str | None,
    namespace: str | None,
    cluster: str | None,
    kind: str,
    wide: bool,
    as_json: bool,
) -> None:
    """Print the views asked for. Raises Stop if the one named, or the cluster, is not known."""
    views = await selection.all_views(transport.views)
    if cluster is not None and all(aggregate.cluster != cluster for aggregate in views):
        known = await watched.known(transport)
        if cluster not in known:
            raise watched.unknown(cluster, known)
    found = selection.selected(views, kind=kind, cluster=cluster, namespace=namespace)
    now = transport.clock.now()
    if name is None:
        seen = await watched.unwatched(transport, {a.cluster for a in found}) if not as_json else {}
        _print_all(found, kind, now, seen, None if wide else fitting.terminal_width(), as_json)
        return
    matching = [a for a in found if a.name == name]
    hint = "`sandlog get` lists what is; `sandlog history` also knows what was"
    aggregate = selection.one(matching, f"{kind} {namespace}/{name}", hint)
    seen = await watched.unwatched(transport, {aggregate.cluster}) if not as_json else {}
    _print_one(aggregate, found[aggregate], now, watched.ago(seen, aggregate.cluster, now), as_json)


def _cells(
    aggregate: Aggregate, view: View, now: int, seen: Mapping[str, int | None], several: bool
) -> list[str | Text]:
    cells: list[str | Text] = [aggregate.cluster] if several else []
    cells += row(view, now)
    if seen:
        cells.append(Text(watched.ago(seen, aggregate.cluster, now) or "-", style="yellow"))
    return cells


def _print_all(
    found: dict[Aggregate, View],
    kind: str,
    now: int,
    seen: Mapping[str, int | None],
    width: int | None,
    as_json: bool,
) -> None:
    """`seen`: the clusters that nobody watches. `width`: of the terminal, None for tables of any width."""
    if as_json:
        output.say(list(found.values()))
        return
    if not found:
        output.console().print(f"no {kind} found")
        return
    several = len({a.cluster for a in found}) > 1
    headings = (("CLUSTER",) if several else ()) + HEADINGS[kind] + ((SEEN,) if seen else ())
    rows = [_cells(a, view, now, seen, several) for a, view in found.items()]
    output.show(output.table(headings, fitting.fitted(headings, rows, width, SHRINKABLE)))
    for cluster in seen:
        # Beside the table, which may be read by a program.
        click.echo(
            f"no live bridge watches the cluster {cluster}: it was last seen {watched.ago(seen, cluster, now)}",
            err=True,
        )


def _print_one(aggregate: Aggregate, view: View, now: int, seen: str, as_json: bool) -> None:
    """`seen`: how long ago, if nobody watches its cluster."""
    if as_json:
        output.say(view)
        return
    console = output.console()
    console.print(Text(f"{aggregate.kind} {aggregate.namespace}/{aggregate.name}", style="bold"))
    lines = details(view, now)
    if seen:
        lines.insert(1, ("last seen", f"{seen}: no live bridge watches its cluster"))
    grid: Any = output.table(("", ""), [(Text(title, style="cyan"), text) for title, text in lines])
    grid.show_header = False
    output.show(grid)
    console.print(Text(f"\nits timeline: sandlog history {aggregate.namespace}/{aggregate.name}", style="dim"))
