"""`sandlog history`: the timeline of one sandbox, read from that sandbox's subjects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from bus import subjects
from bus.log import Record
from bus.subjects import Aggregate
from history import timeline
from sandlog import output, selection
from sandlog.transport import Transport

COLOURS: Final = {"seen": "", "gone": "magenta", "decided": "cyan", "done": "green", "tick": "dim"}
WRONG: Final = "red"
NOT_DONE: Final = (": failed", ": conflict", ": expired", ": unfinished", ": unknown", ": missing")
POSSIBLE_CLUSTERS: Final = "*"


async def find(transport: Transport, namespace: str, name: str, kind: str, cluster: str | None) -> Aggregate:
    """The aggregate of this name that the log knows, whether it still exists or not. Raises Stop."""
    own = timeline.own_subjects(Aggregate(cluster or POSSIBLE_CLUSTERS, namespace, kind, name))
    records = await transport.log.read(own)
    clusters = sorted({subjects.parse(record.subject).cluster for record in records})
    found = [Aggregate(c, namespace, kind, name) for c in clusters]
    hint = "the log holds nothing of it (any more); `sandlog get` lists what is"
    return selection.one(found, f"{kind} {namespace}/{name}", hint)


async def records_of(transport: Transport, aggregate: Aggregate) -> list[Record]:
    """All that the log holds about an aggregate and the pods it ever had, by position."""
    own = await transport.log.read(timeline.own_subjects(aggregate))
    pods = timeline.pods_named(own)
    theirs = await transport.log.read(timeline.pod_subjects(aggregate, pods)) if pods else []
    return sorted((*own, *theirs), key=lambda record: record.sequence)


def lines(entries: Sequence[timeline.Entry], own: str) -> list[tuple[str | Text, ...]]:
    """TIME, POSITION, WHAT, ABOUT, TEXT of each; `own` is how the aggregate calls itself, shown as itself."""
    return [_line(entry, own) for entry in entries]


def _line(entry: timeline.Entry, own: str) -> tuple[str | Text, ...]:
    colour = COLOURS.get(entry.what, WRONG)
    if entry.what == "done" and any(word in entry.text for word in NOT_DONE):
        colour = "yellow"
    text = Text(entry.text)
    if entry.why:
        text.append(f"  because {entry.why}" if entry.what == "decided" else f"  {entry.why}", style="dim")
    if entry.cause:
        text.append(f"  ← {entry.cause}", style="dim")
    return (
        Text(output.moment(entry.time), style="dim"),
        str(entry.sequence),
        Text(entry.what, style=colour),
        "" if entry.about == own else entry.about,
        text,
    )


async def run(
    transport: Transport, *, name: str, namespace: str, cluster: str | None, kind: str, all: bool, as_json: bool
) -> None:
    """Print the timeline. Raises Stop if the log knows no such thing."""
    aggregate = await find(transport, namespace, name, kind, cluster)
    entries = timeline.timeline(await records_of(transport, aggregate))
    shown = [entry for entry in entries if all or not entry.repeat]
    if as_json:
        output.say({"aggregate": aggregate, "entries": shown})
        return
    console = output.console()
    output.show(output.table(("TIME (UTC)", "POSITION", "WHAT", "ABOUT", ""), lines(shown, f"{kind}/{name}")))
    repeats = len(entries) - len(shown)
    if repeats:
        console.print(Text(f"{repeats} repeats not shown (--all shows them)", style="dim"))
