"""`sandlog dead`: the messages that could not be understood or performed, and how to try them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.text import Text

from bus import messages, subjects
from bus.log import Log, Record
from bus.version import CODE_VERSION
from sandlog import output
from sandlog.exits import failed, not_found
from sandlog.transport import Transport

LETTERS: Final = (f"log.*.*.*.{subjects.DEAD}.>",)


class Letter(msgspec.Struct, frozen=True):
    """A dead letter at `sequence`, about the message `of` on `subject`. `retried`: the position of its repeat."""

    sequence: int
    time: int
    subject: str
    of: int
    by: str
    error: str
    retried: int | None = None


class Retried(msgspec.Struct, frozen=True):
    """What became of a request to try again. `appended` None: `why` not."""

    sequence: int
    appended: int | None = None
    why: str = ""


def _letter(record: Record) -> Letter:
    time = messages.time_of(record.time, record.headers)
    try:
        body: messages.Dead = messages.decode(record.data, record.headers, messages.Dead)
    except messages.NotUnderstood as error:
        return Letter(record.sequence, time, record.subject, 0, "?", f"this letter cannot be read itself: {error}")
    return Letter(record.sequence, time, body.subject, body.sequence, body.by, body.error)


async def letters(log: Log, cluster: str | None = None) -> list[Letter]:
    """All that the log holds, oldest first."""
    pattern = LETTERS if cluster is None else (f"log.*.{cluster}.*.{subjects.DEAD}.>",)
    found = [_letter(record) for record in await log.read(pattern)]
    return [msgspec.structs.replace(letter, retried=await _repeat_of(log, letter)) for letter in found]


async def _repeat_of(log: Log, letter: Letter) -> int | None:
    """Where the message was appended again for this letter. Looks at what came on its subject since."""
    if not letter.of:
        return None
    for record in await log.read((letter.subject,), after=letter.sequence):
        if record.headers.get(messages.CAUSE_HEADER) == str(letter.sequence):
            return record.sequence
    return None


async def retry(log: Log, letter: Letter) -> Retried:
    """Append the message that died once more, its cause the letter. Not if it was already, nor if the log has trimmed it."""
    if letter.retried is not None:
        return Retried(letter.sequence, why=f"already tried again as {letter.retried}")
    original = await log.get(letter.of) if letter.of else None
    if original is None or original.subject != letter.subject:
        return Retried(letter.sequence, why=f"the log no longer holds message {letter.of}")
    headers = {**_own(original), messages.CODE_HEADER: CODE_VERSION, messages.CAUSE_HEADER: str(letter.sequence)}
    # One id per letter: two people who retry at once append it once.
    appended = await log.append(original.subject, original.data, headers, message_id=f"retry-{letter.sequence}")
    return Retried(letter.sequence, appended)


def _own(record: Record) -> dict[str, str]:
    """The message's own headers; those of NATS (expectations, ids) belong to that append alone."""
    return {name: value for name, value in record.headers.items() if name.startswith("Sandlog-")}


def chosen(found: Sequence[Letter], sequences: Sequence[int], everything: bool) -> list[Letter]:
    """The letters named, or all that were not tried again yet. Raises Stop for a number that is none of them."""
    if everything == bool(sequences):
        raise failed("name the letters to try again by their positions, or say --all")
    if everything:
        return [letter for letter in found if letter.retried is None]
    by_sequence = {letter.sequence: letter for letter in found}
    unknown = [str(sequence) for sequence in sequences if sequence not in by_sequence]
    if unknown:
        raise not_found(f"no dead letter at {', '.join(unknown)}; `sandlog dead` lists them by POSITION")
    return [by_sequence[sequence] for sequence in sequences]


async def show(transport: Transport, *, cluster: str | None, as_json: bool) -> None:
    """Print the dead letters."""
    found = await letters(transport.log, cluster)
    if as_json:
        output.say(found)
        return
    if not found:
        output.console().print("no dead letters")
        return
    rows = [
        (
            str(letter.sequence),
            output.moment(letter.time),
            letter.subject,
            str(letter.of),
            letter.by,
            Text(f"tried again as {letter.retried}", style="green") if letter.retried else Text("", style=""),
            letter.error,
        )
        for letter in found
    ]
    output.show(output.table(("POSITION", "TIME (UTC)", "SUBJECT", "MESSAGE", "BY", "RETRIED", "ERROR"), rows))


async def retry_some(
    transport: Transport, *, sequences: Sequence[int], everything: bool, cluster: str | None, as_json: bool
) -> None:
    """Try letters again, and say what became of each. Raises Stop if any could not be."""
    picked = chosen(await letters(transport.log, cluster), sequences, everything)
    done = [await retry(transport.log, letter) for letter in picked]
    if as_json:
        output.say(done)
    for result in () if as_json else done:
        text = f"appended again as {result.appended}" if result.appended else f"not tried: {result.why}"
        output.console().print(f"{result.sequence}: {text}")
    if not done and not as_json:
        output.console().print("nothing to try again")
    if any(result.appended is None for result in done):
        raise failed("some letters were not tried again")
