"""The command `sandlog`: its subcommands and their flags. What they do is in the modules they call."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import click

from bus.subjects import AGGREGATES
from bus.version import CODE_VERSION
from sandlog import exits
from sandlog.argv import go_style, long_flags
from sandlog.options import (
    DURATION,
    SIGNED_DURATION,
    Target,
    cluster_option,
    connection_options,
    option,
    output_option,
)
from sandlog.registry import REGISTRY
from sandlog.run_options import run_options, settings
from sandlog.stock import warnings
from sandlog.transport import Transport, for_reading

ROLES: Final = ("bridge", "executor", "projector", "reconciler", "all")

namespace_option = option("--namespace", "-n", metavar="NAME", help="Only this namespace.")
kind_option = option("--kind", type=click.Choice(AGGREGATES), default="sandbox", help="Of what.")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=f"Every flag has an environment variable, SANDLOG_ and its name. {exits.help_text()}",
)
@click.version_option(CODE_VERSION, "--version", prog_name="sandlog", message="%(prog)s %(version)s")
def cli() -> None:
    """OpenSandbox's Kubernetes controller as an event-sourced system over NATS JetStream.

    `sandlog demo` shows it. `sandlog run all` runs it. `status`, `get`, `history` and `dead` look at what it does; `export` takes some of it away,
    `import` loads it elsewhere, `replay` decides again; `forget` removes a cluster that is gone.
    """


def _run(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop where there is one.

    Views are many long-lived small objects without cycles: Python's default thresholds would walk all of them several times a second.
    """
    gc.set_threshold(50_000, 20, 100)
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def _reading(target: Target, work: Callable[[Transport], Coroutine[Any, Any, None]]) -> None:
    """Connect, do one thing, and say it plainly if NATS stops answering meanwhile."""
    import logging

    from sandlog import logs
    from sandlog.failures import plain

    logs.configure(logs.LogSettings("text", logging.ERROR))

    async def whole() -> None:
        with plain():
            async with for_reading(target) as transport:
                await work(transport)

    _run(whole())


@cli.command("run", epilog=exits.help_text())
@click.argument("role", type=click.Choice(ROLES))
@run_options
@connection_options
@click.pass_context
def run_command(context: click.Context, /, target: Target, role: str, **given: Any) -> None:
    """Run one of the roles, or all of them, until SIGTERM or Ctrl-C.

    bridge watches a cluster, executor performs its commands, projector folds the log into views, reconciler decides. Start as many of
    each as you like. The stock controller's flags are understood in Go's notation too; those without a meaning here only bring a warning.
    """
    from sandlog import running

    ignored = tuple(f"{flag} has no effect: {why}" for flag, why in warnings(context))
    _run(running.run(role, target, settings(given), ignored))


@cli.command(epilog=exits.help_text())
@option("--sandboxes", type=click.IntRange(1, 2000), default=100, help="How many to create.")
@option("--rate", type=click.FloatRange(0), default=40.0, help="How many a second; 0: all at once.")
@option("--within", type=click.IntRange(1), default=60, help="Seconds in which all must be ready.")
@option("--plain", is_flag=True, help="Plain lines, as when the output is no terminal.")
@option("--keep", is_flag=True, help="Leave everything running until Ctrl-C, to look at it from another shell.")
@option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Of NATS.  [default: a temporary one]")
@output_option
def demo(sandboxes: int, rate: float, within: int, plain: bool, keep: bool, data_dir: Path | None, output: str) -> None:
    """Create sandboxes in a simulated cluster, and watch them become ready."""
    from sandlog import demonstration

    wanted = demonstration.DemoSettings(sandboxes, rate, within, plain, keep, data_dir, output == "json")
    _run(demonstration.run(wanted))


@cli.command("status", epilog=exits.help_text())
@connection_options
@output_option
def status_command(target: Target, output: str) -> None:
    """Is it me, NATS or the API server: lag and age of every part. Exit code 1 if anything is wrong."""
    from sandlog import status

    _reading(target, lambda transport: status.run(transport, as_json=output == "json"))


@cli.command("get", epilog=exits.help_text())
@click.argument("name", required=False, metavar="[NAMESPACE/NAME]")
@namespace_option
@cluster_option
@kind_option
@option("--wide", "-w", is_flag=True, help="Do not cut long names to the terminal's width.")
@connection_options
@output_option
def get_command(
    target: Target, name: str | None, namespace: str | None, cluster: str | None, kind: str, wide: bool, output: str
) -> None:
    """The current views: a table of all, or one in detail."""
    from sandlog import get, selection

    if name is not None:
        namespace, name = selection.split_name(name, namespace)

    def work(transport: Transport) -> Coroutine[Any, Any, None]:
        return get.run(
            transport,
            name=name,
            namespace=namespace,
            cluster=cluster,
            kind=kind,
            wide=wide,
            as_json=output == "json",
        )

    _reading(target, work)


@cli.command("history", epilog=exits.help_text())
@click.argument("name", metavar="NAMESPACE/NAME")
@namespace_option
@cluster_option
@kind_option
@option("--all", "everything", is_flag=True, help="Also what says nothing new (repeats of lists).")
@connection_options
@output_option
def history_command(
    target: Target,
    name: str,
    namespace: str | None,
    cluster: str | None,
    kind: str,
    everything: bool,
    output: str,
) -> None:
    """The timeline of one sandbox: what was seen, decided and done, and why."""
    from sandlog import selection, timelines

    namespace, name = selection.split_name(name, namespace)

    def work(transport: Transport) -> Coroutine[Any, Any, None]:
        return timelines.run(
            transport,
            name=name,
            namespace=namespace,
            cluster=cluster,
            kind=kind,
            all=everything,
            as_json=output == "json",
        )

    _reading(target, work)


@cli.command("dead", epilog=exits.help_text())
@click.argument("action", required=False, type=click.Choice(("retry",)))
@click.argument("positions", nargs=-1, type=int, metavar="[POSITION]...")
@option("--all", "everything", is_flag=True, help="With retry: all that were not tried again yet.")
@cluster_option
@connection_options
@output_option
def dead_command(
    target: Target, action: str | None, positions: Sequence[int], everything: bool, cluster: str | None, output: str
) -> None:
    """Messages that could not be understood or performed: list them, or `retry` some (append them once more)."""
    from sandlog import dead

    as_json = output == "json"

    def work(transport: Transport) -> Coroutine[Any, Any, None]:
        if action is None:
            return dead.show(transport, cluster=cluster, as_json=as_json)
        return dead.retry_some(transport, sequences=positions, everything=everything, cluster=cluster, as_json=as_json)

    _reading(target, work)


@cli.command("export", epilog=exits.help_text())
@click.argument("names", nargs=-1, metavar="[NAMESPACE/NAME]...")
@option("--namespace", "-n", "namespaces", multiple=True, metavar="NAME", help="Only this namespace. Repeatable.")
@cluster_option
@kind_option
@option("--since", metavar="WHEN", help="From a position, a time (RFC 3339), or how long ago (10m) on.")
@option("--until", metavar="WHEN", help="Up to then.")
@option(
    "--output-file", "-f", type=click.Path(path_type=Path, dir_okay=False), default="sandlog-export.zip", help="To."
)
@option("--pod-failure-grace", type=DURATION, default="20s", help="As the reconciler was given.")
@option(
    "--snapshot-registry",
    type=REGISTRY,
    metavar="TEXT",
    default="",
    help="As the reconciler was given; else what its commands show.",
)
@option("--resume-pull-secret", default="", help="As the reconciler was given; else what its commands show.")
@option("--commit-job-timeout", type=SIGNED_DURATION, default="10m", help="As the reconciler was given.")
@connection_options
@output_option
def export_command(
    target: Target,
    names: Sequence[str],
    namespaces: Sequence[str],
    cluster: str | None,
    kind: str,
    since: str | None,
    until: str | None,
    output_file: Path,
    output: str,
    **flags: Any,
) -> None:
    """Write a slice of the log to a file, with the views it starts from: a bug report, or a test.

    Of everything, of some namespaces, or of some sandboxes with all that belongs to them. Secret values are digests in the log already.
    """
    from sandlog import export

    def work(transport: Transport) -> Coroutine[Any, Any, None]:
        return export.run(
            transport,
            names=names,
            namespaces=namespaces,
            cluster=cluster,
            kind=kind,
            since=since,
            until=until,
            path=output_file,
            settings=export.settings(flags),
            as_json=output == "json",
        )

    _reading(target, work)


@cli.command("import", epilog=exits.help_text())
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@option("--as", "renamed", multiple=True, metavar="NAME", help="Under this cluster name; OLD=NEW for one of several.")
@option("--append", is_flag=True, help="Also into a log that holds something.")
@option("--live", is_flag=True, help="Also under the name of a cluster that the log knows.")
@option("--keep", is_flag=True, help="Leave the local server that it starts running until Ctrl-C, to look at.")
@connection_options
@output_option
def import_command(
    target: Target, file: Path, renamed: Sequence[str], append: bool, live: bool, keep: bool, output: str
) -> None:
    """Load an exported file into a log, to look at with `get` and `history`. Without --nats: into the local server's."""
    import logging

    from sandlog import importing, logs
    from sandlog.failures import plain

    logs.configure(logs.LogSettings("text", logging.ERROR))
    permission = importing.Permission(append, live)

    async def whole() -> None:
        with plain():
            await importing.run(
                target, path=file, renamed=renamed, permission=permission, keep=keep, as_json=output == "json"
            )

    _run(whole())


@cli.command("replay", epilog=exits.help_text())
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@option("--check", is_flag=True, help="Exit code 1 if anything differs that no flag of the time explains.")
@click.option("--snapshot-registry", type=REGISTRY, metavar="TEXT", help="Decide with this one instead of the file's.")
@click.option("--resume-pull-secret", help="Decide with this one instead of the file's.")
@output_option
def replay_command(
    file: Path, check: bool, snapshot_registry: str | None, resume_pull_secret: str | None, output: str
) -> None:
    """Fold an exported file again, decide again at each command with this version, and say what differs. Needs no connection."""
    from sandlog import replaying

    given = {"snapshot_registry": snapshot_registry, "resume_pull_secret": resume_pull_secret}
    changed = {name: value for name, value in given.items() if value is not None}
    replaying.run(file, changed=changed, check=check, as_json=output == "json")


@cli.command("forget", epilog=exits.help_text())
@click.argument("cluster", metavar="CLUSTER")
@click.option("--yes", is_flag=True, help="It is meant.")
@connection_options
@output_option
def forget_command(target: Target, cluster: str, yes: bool, output: str) -> None:
    """Remove a cluster that left for good: its history from the log, and its views. Its API server is not touched.

    Refused while a bridge or an executor of it is alive.
    """
    from sandlog import forget

    _reading(target, lambda transport: forget.run(transport, cluster=cluster, yes=yes, as_json=output == "json"))


@cli.command("phases")
@option("--mermaid", is_flag=True, help="The phases of a sandbox as a Mermaid state diagram.")
@output_option
def phases_command(mermaid: bool, output: str) -> None:
    """Print what is decided in which phase: the tables of sandboxes and snapshots. Needs no connection."""
    from sandlog import phases

    phases.run(as_mermaid=mermaid, as_json=output == "json")


@cli.command("crds")
def crds_command() -> None:
    """Print the CustomResourceDefinitions, for `kubectl apply --server-side -f -`."""
    from sandlog import crds

    click.echo(crds.text(), nl=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: exits with one of `sandlog.exits`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        cli.main(go_style(given, long_flags(cli)), prog_name="sandlog")
    except exits.Stop as stop:
        click.echo(f"sandlog: {stop.message}", err=True)
        sys.exit(stop.code)
