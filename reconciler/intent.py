"""What a user wants of a sandbox's pause and has not got yet: a *change of* `spec.pause` (DESIGN §6, Intent)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from bus.names import FAILED_SPEC_DIGEST
from bus.views import SandboxObject, SandboxView

PAUSE_FAILED: Final = "PauseFailed"
RESUME_FAILED: Final = "ResumeFailed"
FAILURES: Final = (PAUSE_FAILED, RESUME_FAILED)
"""Conditions that stand until the next intent is taken up (DESIGN §8.5)."""
PHASES: Final = frozenset({"Pausing", "Paused", "Resuming"})
_STOPPING: Final = frozenset({"Pausing", "Paused"})


class Intent(StrEnum):
    PAUSE = "pause"
    """spec.pause became true"""
    RESUME = "resume"
    """it became false"""
    CLEARED = "cleared"
    """it became null: no operation, or the first half of a retry"""
    EDIT = "edit"
    """something else of the spec changed"""
    NOTHING = "-"


_WORDS: Final = {True: Intent.PAUSE, False: Intent.RESUME, None: Intent.CLEARED}


def intent_of(view: SandboxView, object: SandboxObject) -> Intent:
    """New if spec.pause changed after what was acknowledged; without memory of its last change, by what value, phase and conditions say."""
    observed, changed = object.status.pause_observed_generation, view.pause_generation
    if object.generation <= observed:
        return Intent.NOTHING
    new = changed > observed if changed is not None else _seems_new(object)
    return _WORDS[object.pause] if new else Intent.EDIT


def _seems_new(object: SandboxObject) -> bool:
    """For a fresh list. A retry, `null` then the value, moves the generation by two and nothing else of the spec; a renewal does neither."""
    status = object.status
    passed = object.generation - status.pause_observed_generation
    if object.pause is None:
        return any(status.condition(type) is not None for type in FAILURES)
    if object.pause == (status.phase in _STOPPING):
        return False
    failed = status.condition(PAUSE_FAILED if object.pause else RESUME_FAILED)
    if failed is None:
        return True
    return passed >= 2 and object.spec != "" and object.annotations.get(FAILED_SPEC_DIGEST) == object.spec


def acknowledged(view: SandboxView, object: SandboxObject) -> int:
    """The pauseObservedGeneration that a status written in a running phase carries (DSP-03, N-29).

    A new `true` is not acknowledged: whoever starts the pause does that. Nor is a `null` while `PauseFailed` stands.
    """
    observed = object.status.pause_observed_generation
    intent = intent_of(view, object)
    bridge = object.status.phase != "Failed" and object.status.condition(PAUSE_FAILED) is not None
    if intent is Intent.PAUSE or (intent is Intent.CLEARED and bridge):
        return observed
    return max(observed, object.generation)


def finished(view: SandboxView, object: SandboxObject) -> int:
    """What the end of a pause or resume acknowledges: edits meanwhile and our own writes, never an intent that is queued (PAU-31, PAU-32)."""
    observed = object.status.pause_observed_generation
    queued = intent_of(view, object) not in (Intent.EDIT, Intent.NOTHING)
    return observed if queued else max(observed, object.generation)
