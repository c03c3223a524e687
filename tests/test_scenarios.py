"""Every row of the scenarios in scope stands in scenarios.toml, and every test that it names exists."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = {"DSP": 5, "PAU": 36, "RES": 18, "STA": 9, "SNP": 16, "SCL": 18, "EXP": 2, "E2P": 23, "E2C": 72, "N": 40}
"""group → how many rows scenarios.md has of it; of the N-rows those about pause, resume, status and snapshots"""
REASONS = ("waits for: pools", "waits for: tasks", "not applicable: ", "otherwise: ")


def table() -> dict[str, list[str]]:
    read = tomllib.loads((TESTS / "scenarios.toml").read_text())
    return {row: [entry] if isinstance(entry, str) else entry for row, entry in read.items()}


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("group", ROWS)
def test_every_row_is_listed(group: str) -> None:
    listed = {row for row in table() if row.startswith(f"{group}-")}
    assert listed == {f"{group}-{number:02d}" for number in range(1, ROWS[group] + 1)}


def test_every_entry_is_a_test_that_exists_or_a_reason() -> None:
    wrong = []
    for row, entries in table().items():
        for entry in entries:
            file, separator, name = entry.partition("::")
            if separator:
                if not (TESTS / file).is_file() or name not in functions_of(file):
                    wrong.append(f"{row}: no test {entry}")
            elif not entry.startswith(REASONS) or entry in REASONS[2:]:
                wrong.append(f"{row}: {entry!r} is neither a test nor a reason")
    assert wrong == []
