"""`sandlog phases` prints the tables that decide, and docs/phases.md says the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from reconciler.lifecycle import ROWS
from sandlog import phases
from sandlog.main import cli

DOCUMENT = Path(__file__).parents[2] / "docs" / "phases.md"


def test_the_document_is_the_table() -> None:
    assert DOCUMENT.read_text() == phases.document()


def test_the_text_has_a_line_for_each_row() -> None:
    printed = CliRunner().invoke(cli, ["phases"]).output.splitlines()
    assert printed[0].split() == ["PHASE", "INTENT", "SNAPSHOT", "PODS", "STEP", "MEANS"]
    assert len([line for line in printed[: len(ROWS) + 1] if line]) == len(ROWS) + 1
    assert any(line.startswith("Pausing") and "complete" in line for line in printed)


def test_json_holds_the_same_rows() -> None:
    read = msgspec.json.decode(CliRunner().invoke(cli, ["phases", "--output", "json"]).output)
    assert [row["step"] for row in read["sandbox"]] == [row.step.__name__ for row in ROWS]
    assert read["snapshot"]


@pytest.mark.parametrize(
    "arrow", ["Succeed --> Pausing: begin", "Pausing --> Paused: complete", "Paused --> Resuming: resume"]
)
def test_mermaid_shows_the_way_round(arrow: str) -> None:
    assert arrow in CliRunner().invoke(cli, ["phases", "--mermaid"]).output
