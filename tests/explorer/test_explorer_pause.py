"""Pause, resume and snapshots under the crash explorer (DESIGN §8.2 to 8.5, §8.10): every scenario, every role, killed before and after any step.

By default a sample, so that the suite stays short; `SANDLOG_EXPLORER_EVERY=1` tries every point.
"""

from __future__ import annotations

import pytest
from explorer_claims import EVERY, course, holds
from explorer_pauses import PAUSES
from explorer_world import ROLES

NAMES = [scenario.name for scenario in PAUSES]


# Other points for each role.
FIRST = dict(zip(ROLES, range(0, 4 * 6, 6), strict=True))
RARELY = 4 * EVERY if EVERY > 1 else 1


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", NAMES)
def test_a_role_killed_at_any_step_of_a_pause_changes_nothing(name: str, role: str) -> None:
    own = sum(point.process.startswith(role) for point in course(name).points)
    runs = holds(name, "kill", role, every=EVERY, first=FIRST[role])
    # Between two of its turns others' steps are one point.
    assert runs >= (own if EVERY == 1 else own // EVERY // 2)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", NAMES)
def test_a_role_that_sleeps_for_a_minute_in_a_pause_and_wakes_does_no_harm(name: str, role: str) -> None:
    assert holds(name, "stop", role, instances=2, every=RARELY, first=FIRST[role]) > 1


@pytest.mark.parametrize("what", ["trim", "wipe-views", "wipe-log"])
@pytest.mark.parametrize("name", NAMES)
def test_what_nats_loses_in_a_pause_costs_a_list(name: str, what: str) -> None:
    assert holds(name, what, every=RARELY) > 1
