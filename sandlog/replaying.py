"""`sandlog replay`: fold an exported history again, decide again at each recorded command, and report every difference (DESIGN §10)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.text import Text

from bus import viewcodec
from history import archive, replay
from sandlog import output
from sandlog.exits import failed
from sandlog.importing import opened


def replayed(found: archive.Archive, changed: Mapping[str, str] | None = None) -> replay.Report:
    """With the settings of the file but for those that are `changed`. Raises Unusable; ValueError and viewcodec.Unreadable where a newer
    version wrote it.
    """
    manifest, changed = found.manifest, changed or {}
    history = replay.History(
        manifest.partitions,
        manifest.first_sequence,
        manifest.last_sequence,
        msgspec.structs.replace(manifest.settings, **changed),
        found.start(),
        found.stored(),
        manifest.cursors,
        manifest.narrowed,
        manifest.start == archive.INCOMPLETE,
        frozenset(changed),
    )
    return replay.replay(history, found.records())


def run(path: Path, *, changed: dict[str, str], check: bool, as_json: bool) -> None:
    """Print the report; `changed` settings instead of the file's. With `check`, raises Stop if anything differs that no flag of the time
    explains.
    """
    with opened(path) as found:
        start = found.manifest.start
        try:
            report = replayed(found, changed)
        except archive.Unusable as error:
            raise failed(str(error)) from error
        except (viewcodec.Unreadable, ValueError) as error:
            raise failed(f"{path} cannot be folded by this version: {error}") from error
    if as_json:
        output.say({"file": str(path), "start": start, "report": report})
    else:
        _print(report, start)
    if check and report.differences:
        raise failed(f"{len(report.differences)} differences")


def _print(report: replay.Report, start: str) -> None:
    console = output.console()
    rows = [
        (str(each.position), each.what, each.aggregate, Text(line, style="yellow"))
        for each in report.differences
        for line in each.details or ("",)
    ]
    rows += [
        (str(each.position), each.what, each.aggregate, Text(f"explained by {each.explained}: {line}", style="dim"))
        for each in report.explained
        for line in each.details or ("",)
    ]
    rows += [
        (str(each.position), "unchecked", each.aggregate, Text(each.why, style="dim")) for each in report.unchecked
    ]
    if rows:
        output.show(output.table(("POSITION", "WHAT", "ABOUT", "DIFFERENCE"), rows))
    console.print(
        f"{report.records} messages folded, {report.commands} commands decided again, {report.views} stored views compared: "
        f"{len(report.differences)} differences, {len(report.explained)} explained by a flag that was another, "
        f"{len(report.unchecked)} not checked"
    )
    if report.not_folded:
        console.print(f"{report.not_folded} messages could not be folded; `sandlog dead` lists those of a log")
    if start == archive.INCOMPLETE and report.differences:
        console.print("the log had been trimmed before: what the views lack at the start may be the reason")
