"""What is open replaces expectations (DESIGN §5): how commands, outcomes and observations open and close ops of a view. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from msgspec.structs import replace

from bus import messages, ops
from bus.messages import Command, Created, Outcome, Result
from bus.ops import Op
from bus.resources import BATCH_SANDBOX, POOL, SANDBOX_SNAPSHOT
from bus.times import SECOND
from bus.views import (
    Failure,
    InFlight,
    Open,
    PoolView,
    Reported,
    SandboxView,
    SnapshotView,
    Version,
    View,
    backoff,
)
from projector.closing import Create, Delete, Known, is_over, outlives, tag, unwanted

V = TypeVar("V", bound=View)
_KIND: Final = {SandboxView: BATCH_SANDBOX.word, PoolView: POOL.word, SnapshotView: SANDBOX_SNAPSHOT.word}

LeftOpen = Callable[[str], Known | None]
"""What is known of an object (`kind/name`) of the view's namespace now."""


def _own_key(view: View) -> str:
    return f"{_KIND[type(view)]}/{view.name}"


def observed(view: V, key: str, known: Known, sequence: int) -> V:
    """Close what this observation of `kind/name` ends. `sequence` is its log position."""
    if not view.open:
        return view
    own = known if key == _own_key(view) else None
    kept: list[Open] = []
    worked = ""
    for item in view.open:
        over = _ended_by(item, view, key, known, own, sequence)
        if own is None and any(not item.waits[wanted].result for wanted in over) and _shows_success(item.op, known):
            worked = tag(item.op)
        _keep(kept, item, over)
    if kept == list(view.open):
        return view
    # With its command still out, no outcome will name an op that is over: here is where its kind is seen to work again.
    mended = view.in_flight is not None and view.failure is not None and view.failure.op == worked
    return replace(view, open=tuple(kept), failure=None if mended else view.failure)


def _ended_by(item: Open, view: View, key: str, known: Known, own: Known | None, sequence: int) -> list[str]:
    """The objects of an open op that an observation of `key` ends it for; one of its sandbox may end a create for all of them."""
    over = []
    if own is not None and isinstance(item.op, Create):
        over = [name for name, wait in item.waits.items() if is_over(item.op, wait, None, own, known.version[0])]
    wait = item.waits.get(key)
    if wait is not None and sequence > item.since and key not in over:
        flying = view.in_flight is not None
        if is_over(item.op, wait, known, own, known.version[0], in_flight=flying, fresh=True):
            over.append(key)
    return over


def _shows_success(op: Op, known: Known) -> bool:
    if isinstance(op, Create):
        return not known.gone
    return isinstance(op, Delete) and known.uid == op.target.uid


def _keep(kept: list[Open], item: Open, over: list[str]) -> None:
    if not over:
        kept.append(item)
        return
    waits = {key: wait for key, wait in item.waits.items() if key not in over}
    if waits:
        kept.append(replace(item, waits=waits))


def commanded(view: V, sequence: int, command: Command | None, left: LeftOpen) -> V:
    """Fold a command; None where its body cannot be read: its position counts all the same, and nothing is in flight.

    Creates for a sandbox that was seen leaving since the decision are not opened: no observation would ever end them.
    """
    if command is None:
        return replace(view, last_command=sequence, in_flight=None)
    own = left(_own_key(view))
    open_by_id = {item.op.id: item for item in view.open}
    for op in command.ops:
        if isinstance(op, ops.UNOBSERVED) or unwanted(op, own):
            continue
        before = open_by_id.get(op.id)
        if before is None:
            # A view position past the command's own is of a log that was lost since: all that this one tells is news.
            since = min(command.view, sequence)
            open_by_id[op.id] = Open(op, since, {key: Reported() for key in ops.touches(op)})
    return replace(
        view,
        last_command=sequence,
        in_flight=InFlight(sequence, command.expires),
        open=tuple(open_by_id.values()),
    )


_ENDS: Final = frozenset({messages.FAILED, messages.UNKNOWN, messages.EARLY})
_REPEATS: Final = frozenset({messages.EXPIRED, messages.UNFINISHED})
_FINE: Final = frozenset({messages.DONE, messages.ACCEPTED})
EARLY_WAIT: Final = 1 * SECOND


def _answer(op: Op, key: str, result: Result) -> Created | Result:
    if isinstance(op, ops.CreatePods):
        return result.names.get(key.partition("/")[2], result)
    return result


def concluded(view: V, outcome: Outcome, epoch: int, left: LeftOpen) -> V:
    """Fold an outcome. `left(kind/name)` is what is known of an object now.

    An outcome of another command than the one in flight (a redelivery, a straggler) only tells what was done.
    """
    current = view.in_flight is not None and view.in_flight.sequence == outcome.command
    results = {result.id: result for result in outcome.results}
    kept: list[Open] = []
    failure = view.failure
    done: set[str] = set()
    working: set[str] = set()
    own = left(_own_key(view))
    reached: dict[str, Version] = {}
    source_missing = False
    for item in view.open:
        result = results.get(item.op.id)
        if result is None:
            kept.append(item)
            continue
        waits: dict[str, Reported] = {}
        for key, wait in item.waits.items():
            answer = _answer(item.op, key, result)
            if answer.result == messages.DONE:
                done.add(tag(item.op))
                working.add(_kind_of(key))
            after = _answered(item.op, wait, answer, epoch, reached.get(key), current=current)
            source_missing |= isinstance(item.op, ops.DetachFromPool) and answer.result == messages.MISSING
            if answer.result == messages.DONE and answer.resource_version:
                reached[key] = (epoch, answer.resource_version)
            if after is None:
                if answer.result in (messages.FAILED, messages.UNKNOWN) and current:
                    failure = _failure(view, item.op, key, answer, failure)
                continue
            if not is_over(item.op, after, left(key), own, epoch):
                waits[key] = after
        if waits:
            kept.append(replace(item, waits=waits))
    if failure is not None and working.intersection(failure.also):
        failure = replace(failure, also=tuple(kind for kind in failure.also if kind not in working))
    made = replace(view, open=tuple(kept), failure=failure)
    if not current:
        return made
    # What an observation has ended already counts as well.
    words = {word.result for result in outcome.results for word in (*result.names.values(),) or (result,)}
    if source_missing:
        words.add(messages.EXPIRED)
    return _tried(replace(made, in_flight=None), words, done)


def _answered(
    op: Op, wait: Reported, answer: Created | Result, epoch: int, reached: Version | None, *, current: bool
) -> Reported | None:
    """What to wait for after this answer; None: the op is over for this object.

    `reached` is the version that an earlier op of the chain brought this object to: the precondition that the op really had.
    """
    word = answer.result
    version = (epoch, answer.resource_version) if answer.resource_version else (0, 0)
    if word == messages.DONE:
        return Reported(word, answer.uid, version)
    if not current:
        return wait
    if word in _ENDS:
        return None
    if word == messages.CONFLICT:
        if isinstance(op, Create) and version == (0, 0):
            return None
        return Reported(word, answer.uid, version)
    if word == messages.SKIPPED:
        return wait if isinstance(op, Delete) else None
    if word == messages.MISSING:
        # Of a detach it may be the pod that is missing: no change of the sandbox would ever tell.
        return None if isinstance(op, ops.DetachFromPool) else Reported(word)
    if word == messages.UNFINISHED and reached is not None:
        return Reported(word, version=(reached[0], reached[1] + 1))
    return wait


def _kind_of(key: str) -> str:
    return key.partition("/")[0]


def _failure(view: View, op: Op, key: str, answer: Created | Result, before: Failure | None) -> Failure:
    """Where two kinds are refused in turn (no rights at all), each would else be tried at once while the other one backs off."""
    generation = op.generation if isinstance(op, ops.CreatePods) else 0
    kinds = {_kind_of(before.object), *before.also} - {_kind_of(key)} if before is not None else set()
    return Failure(
        op=tag(op),
        object=key,
        code=answer.code,
        reason=answer.reason,
        message=answer.message,
        at=view.now,
        generation=generation,
        also=tuple(sorted(kinds)),
    )


def _tried(view: V, words: set[str], done: set[str]) -> V:
    """Count the try: an answer that was no success delays the next one.

    A refusal stands until an op of its kind succeeds, so that writing down the failure does not count as mending it.
    """
    if words & (_ENDS | _REPEATS):
        tries = view.tries + 1
        return replace(view, tries=tries, retry_at=view.now + backoff(tries))
    if view.failure is not None and view.failure.op not in done:
        return view
    if words and words <= _FINE and (view.tries or view.failure):
        return replace(view, tries=0, retry_at=0, failure=None)
    return view


def expired(view: V, epoch: int, left: LeftOpen) -> V:
    """Where the command in flight is past its time by the view's own clock: it is no longer out, and what is known may end its ops."""
    if view.in_flight is None or view.in_flight.expires > view.now:
        return view
    kept: list[Open] = []
    own = left(_own_key(view))
    for item in view.open:
        over = [key for key, wait in item.waits.items() if is_over(item.op, wait, left(key), own, epoch)]
        _keep(kept, item, over)
    tries = view.tries + 1
    return replace(view, in_flight=None, open=tuple(kept), tries=tries, retry_at=view.now + backoff(tries))


def absent(view: V, keys: Iterable[str], version: Version) -> V:
    """A whole list at `version` lacks these objects, and nothing newer is known of them.

    What a create reported at or before it is confirmed gone; an op on an object that was there when it was decided has no object any more.
    """
    wanted = set(keys)
    kept: list[Open] = []
    for item in view.open:
        created = isinstance(item.op, Create)
        over = [
            key
            for key, wait in item.waits.items()
            if key in wanted and (not created or (wait.result == messages.DONE and wait.version <= version))
        ]
        _keep(kept, item, over)
    return view if kept == list(view.open) else replace(view, open=tuple(kept))


def dropped_creates(view: V) -> V:
    """The aggregate's own object is leaving or gone: open creates are no longer wanted (DESIGN §5), those apart that outlive it."""
    leaving = view.object is not None
    kept = tuple(item for item in view.open if not isinstance(item.op, Create) or (leaving and outlives(item.op)))
    return view if len(kept) == len(view.open) else replace(view, open=kept)
