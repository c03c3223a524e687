"""Recorded histories are fixtures: each is folded again, and decided again at each recorded command (DESIGN §10; issue 3, done when 5)."""

from __future__ import annotations

import re
import runpy
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from history_files import HISTORIES, replayed

from bus import messages
from history.archive import BEGINNING, Archive
from history.replay import Difference

_PUT_BACK, _LOST = "failed_template_put_back_while_resuming", "failed_pooled_pod_lost_while_pausing"
EXPLAINED: Mapping[tuple[str, int], str] = {
    (_PUT_BACK, 65): "a pod that was made of the snapshot stays, whatever the template says by now (§8.2)",
    (_PUT_BACK, 69): "where no such pod is left, the template is rewritten again",
    (_PUT_BACK, 74): "a pod of the template that was put back does not end a resume (§8.2)",
    (_PUT_BACK, 78): "a snapshot of which no pod was made is kept, and its sandbox says so (§8.2)",
    (_LOST, 47): "that the pod is lost is said with the failed pause (B07)",
    (_LOST, 51): "a sandbox whose pool's pod is lost stays Failed (B07, §8.5)",
    (_LOST, 59): "as before, in answer to `null`",
    (_LOST, 64): "as before, in answer to `true`",
}
"""(history, position of the command or stored view) → the change that explains why today's code does otherwise."""
EXPLAINED_LINES: Mapping[str, str] = {
    r"object/released: nothing, now True": "views tell of pods that were given back, for B90",
    r"(object|pods/[^/]*)/images: nothing, now .*": "views tell what pods are made of, for §8.2",
    r".*/message: '.*: batchsandboxes\.sandbox\..* not found', now '.*: BatchSandbox\.sandbox\..* not found'": (
        "the text of BatchSandboxLookupFailed is the stock controller's (traces.md)"
    ),
    r"(snapshot|object)/deletion_time: nothing, now \d+": "views say since when a snapshot is being deleted",
}
"""Pattern of a line that tells a difference → the change that explains it in all histories, as `r"jobs/.*/owner: nothing, now .*"` where
views hold a new field. An entry of either table that no longer explains anything fails too.
"""
FILES = sorted(HISTORIES.glob("*.zip"))
TRACES = {
    "pause_resume",
    "pause_refused_replicas",
    "pause_before_ready",
    "commit_fails_then_retry",
    "renew_while_paused",
    "edit_after_resume",
    "delete_while_pausing",
    "resume_while_pausing",
    "resume_fails",
    "public_snapshot",
    "pooled",
}
"""The courses of traces.md that have a pause or a snapshot."""


def explained(history: str, difference: Difference) -> bool:
    if (history, difference.position) in EXPLAINED:
        return True
    lines = difference.details
    return bool(lines) and all(any(re.fullmatch(each, line) for each in EXPLAINED_LINES) for line in lines)


def test_each_course_with_a_pause_is_stored() -> None:
    assert {path.stem for path in FILES} >= TRACES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_differs_that_no_change_explains(path: Path) -> None:
    report = replayed(path)

    assert report.explained == [], "a file is of one run, whose flags do not change"
    assert [each for each in report.differences if not explained(path.stem, each)] == []
    different = {(path.stem, each.position) for each in report.differences}
    assert {key for key in EXPLAINED if key[0] == path.stem} <= different
    assert report.not_folded == 0
    with Archive(path) as archive:
        manifest = archive.manifest
    if manifest.start == BEGINNING:
        # Else commands may have been decided before the slice began.
        assert report.unchecked == []
        assert report.commands == manifest.messages["cmd"] > 0
    assert manifest.cursors


def test_no_explanation_has_outlived_its_difference() -> None:
    lines = [line for path in FILES for each in replayed(path).differences for line in each.details]

    assert [each for each in EXPLAINED_LINES if not any(re.fullmatch(each, line) for line in lines)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_history_is_small_and_holds_no_env_value(path: Path) -> None:
    """Those of Jobs are there: `CONTAINERD_SOCKET` is set to a path, which must be a digest (DESIGN §4)."""
    assert path.stat().st_size < 200_000
    with Archive(path) as archive:
        for record in archive.records():
            assert b'"value":"/' not in record.data
            assert record.headers[messages.SCHEMA_HEADER] == str(messages.SCHEMA)
            msgspec.json.decode(record.data)


def test_the_maker_makes_histories_that_do_not_differ(tmp_path: Path) -> None:
    maker = runpy.run_path(str(HISTORIES.parent / "make_histories.py"))
    path = tmp_path / "made.zip"
    manifest = maker["make"]("pause_refused_replicas", path)

    report = replayed(path)
    assert report.differences == []
    assert report.commands == manifest.messages["cmd"] > 0
    assert set(maker["COURSES"]) | set(maker["CRASHES"]) <= {each.stem for each in FILES}
