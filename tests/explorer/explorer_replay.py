"""One run of the crash explorer alone, in this process: the line that a failure prints ends with how to call it.

python tests/explorer/explorer_replay.py --scenario basic --seed 1 --what kill --role executor --at 123 [--steps] [--log] [--logs]
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "explorer")]

import structlog  # noqa: E402
from explorer_process import CURRENT, Process  # noqa: E402
from explorer_runs import Disturbance, disturbed, scenario_named, undisturbed  # noqa: E402
from explorer_scenarios import SCENARIOS  # noqa: E402
from explorer_world import ROLES, World  # noqa: E402


def main() -> int:
    arguments = _parser().parse_args()
    scenario = scenario_named(arguments.scenario)
    course = undisturbed(scenario, arguments.seed, arguments.instances)
    if arguments.logs:
        structlog.configure(
            processors=[_process, structlog.dev.ConsoleRenderer(colors=False)],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        )
    disturbance = None
    if arguments.what:
        disturbance = Disturbance(
            arguments.what, arguments.at, arguments.role, restart=not arguments.gone, seconds=arguments.seconds
        )
    worlds: list[World] = []
    verdict = disturbed(
        scenario,
        arguments.seed,
        course,
        disturbance,
        arguments.instances,
        (lambda point: print(point)) if arguments.steps else (lambda point: None),
        worlds.append,
        loud=arguments.logs,
    )
    if arguments.log:
        for record in worlds[0].stream.after(0):
            print(record.sequence, record.subject, record.data.decode()[: arguments.width])
    print(verdict.report() if verdict.trouble else f"as it should be, after {verdict.virtual:.0f} virtual seconds")
    return 1 if verdict.trouble else 0


def _process(logger: object, name: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    process: Process | None = CURRENT.get()
    event["process"] = process.name if process else ""
    return event


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="basic")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--instances", type=int, default=1, help="how many of each role")
    parser.add_argument("--what", choices=("kill", "stop", "trim", "wipe-views", "wipe-log"))
    parser.add_argument("--at", type=int, default=0, help="number of the point")
    parser.add_argument("--role", choices=("", *ROLES), default="")
    parser.add_argument("--gone", action="store_true", help="the killed process has no successor")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is stopped")
    parser.add_argument("--steps", action="store_true", help="print every point")
    parser.add_argument("--log", action="store_true", help="print the log at the end")
    parser.add_argument("--width", type=int, default=400, help="characters of each body")
    parser.add_argument("--logs", action="store_true", help="print what the processes log")
    return parser


if __name__ == "__main__":
    sys.exit(main())
