"""What the process says of itself: one line an event, coloured text on a terminal, JSON elsewhere; standard library loggers included.

Standard error, or with a log file standard output and the file (controller-behaviour.md §8.1).
"""

from __future__ import annotations

import gzip
import logging
import logging.handlers
import shutil
import sys
import time
from pathlib import Path
from typing import Final, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from sandlog.exits import usage

FIRST: Final = ("cluster", "namespace", "name", "sequence")
"""What tells where an event belongs, before everything else."""
DAY: Final = 86400.0
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_LEVELS_OF_GO: Final = {**_LEVELS, "warning": logging.WARNING, "panic": logging.CRITICAL, "fatal": logging.CRITICAL}


class LogFile(msgspec.Struct, frozen=True):
    """A file that is begun anew at `size` bytes; `backups` old ones are kept, for `days` days (0: without limit)."""

    path: Path
    size: int
    backups: int
    days: int
    compress: bool


class LogSettings(msgspec.Struct, frozen=True):
    """`format` is `text`, `json`, or `auto`: text on a terminal, else JSON."""

    format: str = "auto"
    level: int = logging.INFO
    file: LogFile | None = None


def level_of(text: str) -> int:
    """A level as the stock controller's `--zap-log-level` takes it: a word, or a verbosity from 1 (debug) on. Raises ValueError."""
    if text.isdigit():
        return logging.DEBUG if int(text) > 0 else logging.INFO
    try:
        return _LEVELS_OF_GO[text.lower()]
    except KeyError:
        raise ValueError(f"{text!r} is no log level: {', '.join(_LEVELS)}, panic, or a number") from None


def _in_order(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    ordered: EventDict = {key: event.pop(key) for key in ("timestamp", "level", "event", *FIRST) if key in event}
    return {**ordered, **event}


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _formatter(text: bool, colours: bool) -> logging.Formatter:
    renderer: list[Processor] = (
        [
            structlog.dev.ConsoleRenderer(
                colors=colours,
                sort_keys=False,
                pad_event_to=32,
                # The default one shows local variables, and those of the bridge hold whole objects (DESIGN §7).
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
        if text
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _in_order, *renderer],
    )


class _Compressing(logging.handlers.RotatingFileHandler):
    """Old files as `.gz`, those that are too old removed when a new file is begun."""

    def __init__(self, file: LogFile) -> None:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        super().__init__(file.path, maxBytes=file.size, backupCount=file.backups, encoding="utf-8")
        if file.compress:
            self.namer = lambda name: f"{name}.gz"
            self.rotator = _compress

    def doRollover(self) -> None:  # noqa: N802
        super().doRollover()
        if self._file.days:
            oldest = time.time() - self._file.days * DAY
            for old in self._file.path.parent.glob(f"{self._file.path.name}.*"):
                if old.stat().st_mtime < oldest:
                    old.unlink(missing_ok=True)


def _compress(source: str, destination: str) -> None:
    with open(source, "rb") as plain, gzip.open(destination, "wb") as packed:
        shutil.copyfileobj(plain, packed)
    Path(source).unlink()


def _opened(file: LogFile) -> _Compressing:
    try:
        return _Compressing(file)
    except OSError as error:
        why = error.strerror or str(error)
        raise usage(f"cannot write the log file {file.path}: {why}; name another with --log-file-path") from error


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Once, at the start of a process. Raises Stop if the log file cannot be written."""
    if stream is None:
        stream = sys.stdout if settings.file else sys.stderr
    text = settings.format == "text" or (settings.format == "auto" and stream.isatty())
    console = logging.StreamHandler(stream)
    console.setFormatter(_formatter(text, colours=stream.isatty()))
    handlers: list[logging.Handler] = [console]
    if settings.file is not None:
        file = _opened(settings.file)
        file.setFormatter(_formatter(text, colours=False))
        handlers.append(file)
    logging.basicConfig(level=settings.level, handlers=handlers, force=True)
    for noisy in ("aiohttp.access", "asyncio", "nats", "kubernetes_asyncio"):
        logging.getLogger(noisy).setLevel(max(settings.level, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
