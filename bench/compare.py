"""Measures the floor and sandlog on one real control plane, one after the other, and prints them side by side with the bars.

    KUBEBUILDER_ASSETS=DIR python bench/compare.py --floor 'python floor.py {server}' [--work steady40 …] [--rounds 3]

The floor is the least that a controller must do, as a program of the user's; SANDLOG_FLOOR is its default. Every contender gets a new
namespace and an empty log for each work; the control plane and the kubelet stand-in are shared. Nothing else should run meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import click
import contenders
import msgspec
import structlog
from bars import FIGURES, WORKS, Reports, Work, judge, value
from contenders import ALL, FLOOR, FLOOR_USER, SPLIT, Running
from costs import busy_cores
from figures import show
from rich.console import Console
from support import controlplane
from support.controlplane import ControlPlane

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 8
"""Sandboxes made and deleted before anything counts: connections are open and code is loaded by then."""
TRIES = 2
QUIET = 0.2
"""Cores that others may use."""

Results = dict[str, dict[str, Reports]]
"""work → contender → reports, one a round"""


async def lifecycle(plane: ControlPlane, running: Running, work: Work) -> dict[str, Any]:
    """One run of lifecycle.py, as a process of its own. Raises RuntimeError with what it, or the contender, said."""
    command = [sys.executable, str(ROOT / "bench" / "lifecycle.py"), "--output", "json"]
    command += ["--kubeconfig", str(plane.kubeconfig("admin")), "--audit-log", str(plane.folder / "audit.log")]
    command += ["--sandboxes", str(work.sandboxes), "--rate", str(work.rate)]
    command += ["--pause"] if work.pause else []
    command += [word for name, pid in running.processes.items() for word in ("--process", f"{name}={pid}")]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    answer, errors = await process.communicate()
    problem = running.trouble()
    if problem or not answer:
        raise RuntimeError(problem or errors.decode(errors="replace")[-2000:])
    report: dict[str, Any] = msgspec.json.decode(answer)
    if report["watches_resumed"]:
        click.echo(f"{work.name}: {report['watches_resumed']} of our watches were cut off", err=True)
    for stage in report["stages"]:
        if stage["reached"] < stage["asked"]:
            click.echo(f"{work.name}: only {stage['reached']} of {stage['asked']} {stage['name']}", err=True)
    return report


async def one(name: str, floor: str | None, plane: ControlPlane, folder: Path, work: Work) -> dict[str, Any]:
    """Measured once more, should the API server have cut off one of our watches."""
    report: dict[str, Any] = {}
    for _ in range(TRIES):
        async with contenders.start(name, floor, plane, folder) as running:
            await lifecycle(plane, running, Work("warm-up", WARM_UP))
            report = await lifecycle(plane, running, work)
        if not report["watches_resumed"]:
            break
    return report


async def measure(works: list[Work], names: list[str], floor: str | None, rounds: int, folder: Path) -> Results:
    # The floor has a user of its own, so that its calls can be told from others'.
    controlplane.USERS.setdefault(FLOOR_USER, "system:masters")
    results: Results = {work.name: {name: [] for name in names} for work in works}
    plane = ControlPlane(folder / "controlplane")
    try:
        plane.start()
        kubelet = contenders.kubelet(plane, folder, start_delay=0.05, commit_delay=0.0)
        try:
            for round_number in range(rounds):
                for work in works:
                    for name in names:
                        click.echo(f"round {round_number + 1}/{rounds}: {work.name}, {name}", err=True)
                        results[work.name][name].append(await one(name, floor, plane, folder, work))
        finally:
            kubelet.stop()
    finally:
        plane.stop()
    return results


def show_results(results: Results, names: list[str]) -> bool:
    """Whether every bar was met that could be judged, by one sandlog with all roles."""
    console, all_met = Console(), True
    for work, found in results.items():
        rows: list[tuple[object, ...]] = []
        for figure in FIGURES:
            values = {name: value(figure, found[name]) for name in names}
            if all(each is None for each in values.values()):
                continue
            floor = values.get(FLOOR)
            verdicts = {name: judge(figure, work, values[name], floor) for name in names if name != FLOOR}
            bar = next((verdict.bar for verdict in verdicts.values()), None)
            row: list[object] = [figure.name, floor]
            for name, verdict in verdicts.items():
                mark = {None: "", True: " ✓", False: " ✗"}[verdict.met]
                times = f" {verdict.ratio:g}×" if verdict.ratio is not None else ""
                row.append(None if values[name] is None else f"{values[name]:g}{times}{mark}")
                all_met = all_met and (name != ALL or verdict.met is not False)
            rows.append((*row, bar))
        columns = (work, FLOOR, *(name for name in names if name != FLOOR), "bar")
        show(console, work, columns, rows)
        for name in names:
            _show_calls(console, name, found[name][-1])
    return all_met


def _show_calls(console: Console, name: str, report: dict[str, Any]) -> None:
    for stage in report["stages"]:
        for user, writes in stage["writes"].items():
            if user.startswith(("sandlog ", f"{FLOOR_USER} ")) and writes["calls"]:
                calls = ", ".join(f"{count} {call}" for call, count in writes["calls"].items())
                console.print(f"{name}, {stage['name']}: {calls}", style="dim", soft_wrap=True)
        if stage["cpu"]:
            cpu = ", ".join(f"{process} {ms:g}" for process, ms in stage["cpu"].items())
            console.print(f"{name}, {stage['name']}: CPU ms per sandbox: {cpu}", style="dim", soft_wrap=True)


@click.command(help=__doc__)
@click.option("--floor", envvar="SANDLOG_FLOOR", help="the floor's command; may say {server}, {token}, {kubeconfig}")
@click.option(
    "--work", "works", multiple=True, type=click.Choice(list(WORKS)), help="default: steady40, burst128, burst512"
)
@click.option(
    "--contender", "names", multiple=True, type=click.Choice([FLOOR, ALL, SPLIT]), help="default: all of them"
)
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(1, 20), help="the median of them is shown")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="where logs are kept; default: nowhere",
)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    floor: str | None, works: tuple[str, ...], names: tuple[str, ...], rounds: int, folder: Path | None, output: str
) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    wanted = [WORKS[name] for name in works or ("steady40", "burst128", "burst512")]
    chosen = [name for name in names or (FLOOR, ALL, SPLIT) if name != FLOOR or floor]
    if not floor:
        click.echo("no floor given (--floor): figures without ratios", err=True)
    if controlplane.assets() is None:
        raise click.ClickException(
            "KUBEBUILDER_ASSETS must name a folder with the control plane: tests/controlplane/build.sh"
        )
    if (busy := busy_cores()) > QUIET:
        click.echo(f"this machine is busy ({busy:.1f} cores): the figures will say little", err=True)
    with tempfile.TemporaryDirectory(prefix="sandlog-bench-") as scratch:
        # A folder that is used again must not bring back the etcd of an earlier run.
        kept = Path(tempfile.mkdtemp(prefix="compare-", dir=folder)) if folder else Path(scratch)
        results = asyncio.run(measure(wanted, chosen, floor, rounds, kept.absolute()))
    if output == "json":
        sys.stdout.write(msgspec.json.encode(results).decode() + "\n")
    else:
        sys.exit(0 if show_results(results, chosen) else 1)


if __name__ == "__main__":
    main()
