"""`sandlog status`: is it me, NATS or the API server. Judges a survey and says what to do; exit code 1 if anything is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec
from rich.text import Text

from bus.times import SECOND
from sandlog import fitting, output
from sandlog.exits import failed
from sandlog.survey import ClusterSurvey, Survey, take
from sandlog.transport import Transport

OK: Final = "ok"
NOTE: Final = "note"
WRONG: Final = "wrong"
COLOURS: Final = {OK: "green", NOTE: "yellow", WRONG: "bold red"}

SLOW_ROUND_TRIP: Final = 250.0
"""Milliseconds of a question to NATS, from which on everything is slow."""
LAG: Final = 10.0
"""Seconds that a message waits to be folded, or a command to be performed, before something is wrong."""
OLD_LIST: Final = 1800.0
"""Seconds after which a list is overdue: they come every few minutes."""


SILENT: Final = 120.0
"""Seconds without a word on a watch; bookmarks come every minute."""


class Finding(msgspec.Struct, frozen=True):
    """One sentence about a part. `level` is ok, note or wrong; `advice` says what to do."""

    level: str
    part: str
    text: str
    advice: str = ""


def judge(survey: Survey) -> list[Finding]:
    """What there is to say, in the order in which to look: NATS, projector, reconciler, then each cluster. Pure."""
    return [*_nats(survey), *_deciders(survey), *_clusters(survey), *_processes(survey), *_dead(survey)]


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def _nats(survey: Survey) -> Iterator[Finding]:
    bounds = survey.bounds
    limit = f" of {_size(survey.max_bytes)}" if survey.max_bytes > 0 else ""
    text = (
        f"answers in {survey.round_trip_ms:g} ms; log {bounds.first_sequence}–{bounds.last_sequence}, "
        f"{survey.messages} messages, {_size(survey.bytes)}{limit}, kept {output.age(int(survey.max_age_seconds * SECOND))}"
    )
    if survey.round_trip_ms > SLOW_ROUND_TRIP:
        yield Finding(WRONG, "nats", text, "NATS is slow: look at its CPU and disk, and at the network between")
    else:
        yield Finding(OK, "nats", text)


def _deciders(survey: Survey) -> Iterator[Finding]:
    groups = Counter(member.group for member in survey.members)
    late = [lag for lag in survey.lags if lag.seconds > LAG]
    behind = max(survey.lags, key=lambda lag: lag.seconds, default=None)
    if not groups["projector"]:
        yield Finding(WRONG, "projector", "none runs: no view is kept up to date", "start one: sandlog run projector")
    elif late and behind is not None:
        yield Finding(
            WRONG,
            "projector",
            f"{groups['projector']} run, {len(late)} partitions are behind; partition {behind.partition} by {behind.seconds:.0f} s",
            "look at the projectors' logs and CPU; start more of them",
        )
    else:
        yield Finding(OK, "projector", f"{groups['projector']} run, {len(survey.lags)} partitions have news to fold")
    if not groups["reconciler"]:
        yield Finding(WRONG, "reconciler", "none runs: nothing is decided", "start one: sandlog run reconciler")
    else:
        yield Finding(OK, "reconciler", f"{groups['reconciler']} run")


def _clusters(survey: Survey) -> Iterator[Finding]:
    if not survey.clusters:
        yield Finding(WRONG, "clusters", "none is known", "start a bridge: sandlog run bridge --kubeconfig FILE")
    groups = Counter(member.group for member in survey.members)
    for cluster in survey.clusters:
        yield _watching(cluster, groups[f"bridge.{cluster.name}"], _complaints(survey, cluster.name))
        yield _executing(cluster, groups[f"executor.{cluster.name}"])


def _complaints(survey: Survey, cluster: str) -> list[str]:
    """What the bridges of a cluster hear from its API server that is not as it should be."""
    found: list[tuple[str, str]] = []
    for pulse in survey.pulses:
        for scope in pulse.roles.get("bridge", {}).get("scopes") or () if pulse.cluster == cluster else ():
            age = scope.get("age")
            if scope.get("error"):
                found.append((str(scope.get("scope")), str(scope["error"])))
            elif age is not None and age > SILENT:
                found.append((str(scope.get("scope")), f"nothing heard for {age:.0f} s"))
    return fitting.by_text(found)


def _processes(survey: Survey) -> Iterator[Finding]:
    """Processes that say they are not ready, and members that do not answer: hung, or cut off."""
    for pulse in survey.pulses:
        for role, why in pulse.not_ready.items():
            yield Finding(WRONG, f"{pulse.member} {role}", f"not ready: {why}", "its log says more")
    silent = sorted({member.name for member in survey.members} - {pulse.member for pulse in survey.pulses})
    if silent:
        yield Finding(
            NOTE, "processes", f"no answer from {', '.join(silent)}", "just ended, very busy, or of another make"
        )


def _watching(cluster: ClusterSurvey, bridges: int, complaints: list[str]) -> Finding:
    part = f"{cluster.name} watch"
    if not bridges:
        seen = (
            "" if cluster.seen_age is None else f", it was last seen {output.age(int(cluster.seen_age * SECOND))} ago"
        )
        what = f"nobody watches this cluster{seen}"
        advice = (
            f"start a bridge: sandlog run bridge --cluster {cluster.name}; "
            f"if the cluster is gone for good: sandlog forget {cluster.name}"
        )
        return Finding(WRONG, part, what, advice)
    if complaints:
        more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
        what = f"{bridges} run; the API server does not answer as it should: {complaints[0]}{more}"
        return Finding(WRONG, part, what, "look at the API server, the network to it, and the bridge's rights")
    oldest = max((scope.list_age for scope in cluster.scopes if scope.list_age is not None), default=None)
    if oldest is None:
        what = f"{bridges} run, nothing was listed yet"
        return Finding(WRONG, part, what, "is the API server up, may the bridge list (deploy/rbac.yaml)? Its log says")
    lacking = [scope.word for scope in cluster.scopes if scope.incomplete]
    if lacking:
        what = f"{bridges} run; not complete: {', '.join(lacking)}: nothing is decided from absence there"
        return Finding(WRONG, part, what, "a list is asked for every 30 s; the bridge's log says why none comes")
    seen = output.age(int((cluster.seen_age or 0) * SECOND))
    text = f"{bridges} run, last news {seen} ago, oldest list {output.age(int(oldest * SECOND))} ago, epoch {cluster.epoch}"
    if oldest > OLD_LIST:
        return Finding(WRONG, part, text, "the API server does not let itself be listed: see the bridge's log")
    return Finding(OK, part, text)


def _executing(cluster: ClusterSurvey, executors: int) -> Finding:
    part, work = f"{cluster.name} execute", cluster.work
    advice = f"start one: sandlog run executor --cluster {cluster.name}"
    if work is None or not (executors or work.asking or work.in_progress):
        waits = f", {work.pending} commands wait" if work is not None and work.pending else ""
        return Finding(WRONG, part, f"nobody performs this cluster's commands{waits}", advice)
    text = f"{work.pending} commands wait, {work.in_progress} are being performed, {work.redelivered} again"
    if work.oldest_seconds is not None and work.oldest_seconds > LAG:
        advice = "the API server or the executors do not keep up: see the executors' logs for 429 and time-outs"
        return Finding(WRONG, part, f"{text}; the oldest for {work.oldest_seconds:.0f} s", advice)
    return Finding(OK, part, text)


def _dead(survey: Survey) -> Iterator[Finding]:
    if survey.dead:
        text = f"{survey.dead} messages were given up"
        yield Finding(NOTE, "dead letters", text, "look at them: sandlog dead; try them again: sandlog dead retry")


class Report(msgspec.Struct, frozen=True):
    """What `--output json` prints."""

    ok: bool
    findings: list[Finding]
    survey: Survey


async def run(transport: Transport, *, as_json: bool) -> None:
    """Print what was found. Raises Stop with exit code 1 if something is wrong."""
    survey = await take(transport)
    findings = judge(survey)
    wrong = [finding for finding in findings if finding.level == WRONG]
    if as_json:
        output.say(Report(not wrong, findings, survey))
    else:
        _print(survey, findings)
    if wrong:
        raise failed(f"{len(wrong)} of {len(findings)} checks found something wrong")


def _print(survey: Survey, findings: list[Finding]) -> None:
    console = output.console()
    console.print(Text(f"NATS {survey.server} at {survey.url}, {survey.bounds.partitions} partitions", style="bold"))
    rows: list[tuple[str | Text, ...]] = []
    for finding in findings:
        rows.append((Text(finding.level, style=COLOURS[finding.level]), finding.part, finding.text))
        if finding.advice:
            rows.append(("", "", Text(f"→ {finding.advice}", style="dim")))
    output.show(output.table(("", "PART", ""), rows))
    names = ", ".join(f"{member.group}/{member.name}" for member in survey.members)
    console.print(Text(f"members: {names or 'none'}", style="dim"))
