"""What `sandlog status` concludes: is it me, NATS or the API server. Pure, from surveys made by hand."""

from __future__ import annotations

import msgspec
import pytest

from bus.log import Bounds
from bus.membership import Member
from sandlog.pulse import Pulse
from sandlog.status import NOTE, OK, WRONG, judge
from sandlog.survey import ClusterSurvey, Lag, ScopeSurvey, Survey, Work

CLUSTER = ClusterSurvey(
    name="c1",
    epoch=1,
    seen_age=2.0,
    scopes=[ScopeSurvey("batchsandbox", 40.0, 0), ScopeSurvey("pod-sandbox", 41.0, 0)],
    work=Work("execute-c1", 0, 0, 0, 1),
)
WELL = Survey(
    url="nats://x:4222",
    server="2.14.0",
    round_trip_ms=0.4,
    bounds=Bounds("id", 1, 900, 0, 64),
    messages=900,
    bytes=1_000_000,
    max_bytes=8 * 1024**3,
    max_age_seconds=259_200.0,
    replicas=1,
    members=[Member(group, "a") for group in ("projector", "reconciler", "bridge.c1", "executor.c1")],
    pulses=[Pulse("a", "0.1.0", "c1", {"bridge": {"scopes": [{"scope": "job", "age": 61.0, "error": ""}]}}, {})],
    lags=[],
    clusters=[CLUSTER],
    dead=0,
)


def wrong(survey: Survey) -> dict[str, str]:
    """part → sentence and advice of what is wrong"""
    return {f.part: f"{f.text} {f.advice}" for f in judge(survey) if f.level == WRONG}


def without(group: str) -> Survey:
    return msgspec.structs.replace(WELL, members=[m for m in WELL.members if m.group != group])


def of_cluster(**changes: object) -> Survey:
    return msgspec.structs.replace(WELL, clusters=[msgspec.structs.replace(CLUSTER, **changes)])


def test_when_all_is_well_nothing_is_wrong() -> None:
    findings = judge(WELL)

    assert {finding.level for finding in findings} == {OK}
    assert [finding.part for finding in findings] == ["nats", "projector", "reconciler", "c1 watch", "c1 execute"]


@pytest.mark.parametrize(
    ("group", "part", "command"),
    [
        ("projector", "projector", "sandlog run projector"),
        ("reconciler", "reconciler", "sandlog run reconciler"),
        ("bridge.c1", "c1 watch", "sandlog run bridge --cluster c1"),
    ],
)
def test_a_part_that_does_not_run_is_named_with_how_to_start_it(group: str, part: str, command: str) -> None:
    assert list(wrong(without(group))) == [part]
    assert command in wrong(without(group))[part]


def test_nobody_performs_commands_only_if_nobody_even_asks_for_them() -> None:
    asked_for = without("executor.c1")
    idle = msgspec.structs.replace(asked_for, clusters=of_cluster(work=Work("execute-c1", 5, 0, 0, 0)).clusters)

    assert wrong(asked_for) == {}
    assert "5 commands wait" in wrong(idle)["c1 execute"]


def test_a_log_that_is_not_folded_is_the_projectors_matter() -> None:
    late = msgspec.structs.replace(WELL, lags=[Lag(3, 10, 20, 31.0), Lag(4, 10, 11, 0.01)])
    fresh = msgspec.structs.replace(WELL, lags=[Lag(4, 10, 11, 0.01)])

    assert "partition 3 by 31 s" in wrong(late)["projector"]
    assert wrong(fresh) == {}


def test_commands_that_wait_long_are_the_api_servers_or_executors_matter() -> None:
    stuck = of_cluster(work=Work("execute-c1", 40, 12, 3, 0, oldest_seconds=55.0))
    busy = of_cluster(work=Work("execute-c1", 40, 12, 0, 0, oldest_seconds=0.2))

    assert "the oldest for 55 s" in wrong(stuck)["c1 execute"]
    assert "API server" in wrong(stuck)["c1 execute"]
    assert wrong(busy) == {}


def test_lists_that_do_not_come_are_the_api_servers_matter() -> None:
    never = of_cluster(scopes=[])
    old = of_cluster(scopes=[ScopeSurvey("batchsandbox", 4000.0, 0)])
    lacking = of_cluster(scopes=[ScopeSurvey("batchsandbox", 9.0, 0), ScopeSurvey("job", 9.0, 2)])

    assert "rbac.yaml" in wrong(never)["c1 watch"]
    assert "1h6m" in wrong(old)["c1 watch"]
    assert "job" in wrong(lacking)["c1 watch"]
    assert "batchsandbox" not in wrong(lacking)["c1 watch"]


def test_a_slow_nats_is_nats() -> None:
    assert "nats" in wrong(msgspec.structs.replace(WELL, round_trip_ms=900.0))


def test_no_cluster_at_all_is_said() -> None:
    assert "sandlog run bridge" in wrong(msgspec.structs.replace(WELL, clusters=[]))["clusters"]


def test_dead_letters_are_noted_but_nothing_is_wrong() -> None:
    findings = judge(msgspec.structs.replace(WELL, dead=3))

    assert [(f.level, f.part) for f in findings if f.level != OK] == [(NOTE, "dead letters")]


def heard(**scope: object) -> Survey:
    told = {"scope": "pod-sandbox", "age": 1.0, "error": "", **scope}
    return msgspec.structs.replace(WELL, pulses=[Pulse("a", "0.1.0", "c1", {"bridge": {"scopes": [told]}}, {})])


def test_an_api_server_that_is_away_is_told_at_once_by_its_bridges() -> None:
    away = heard(error="https://c1: no answer within 30 s")

    assert "pod-sandbox: https://c1: no answer within 30 s" in wrong(away)["c1 watch"]
    assert "nothing heard for 130 s" in wrong(heard(age=130.0))["c1 watch"]
    assert wrong(heard()) == {}


def test_a_process_that_is_not_ready_or_silent_is_told() -> None:
    unready = Pulse("b", "0.1.0", "", {}, {"projector": "catching up"})
    survey = msgspec.structs.replace(
        WELL, pulses=[*WELL.pulses, unready], members=[*WELL.members, Member("projector", "gone")]
    )

    assert "catching up" in wrong(survey)["b projector"]
    assert [f.text for f in judge(survey) if f.level == NOTE] == ["no answer from gone"]
