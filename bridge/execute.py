"""The executor of one cluster: takes commands from the log, performs them, appends one outcome each, then acks (DESIGN §7)."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from bridge.calls import Calls, CallSettings
from bridge.cluster import ClusterClient
from bridge.events import EventLane, EventSettings
from bridge.jobbuild import CommitSettings
from bridge.lanes import Lanes, LanesSettings
from bridge.outcomes import Outcomes, unreadable
from bridge.perform import Performer
from bridge.recent import Recent
from bus.clock import Clock, Randomness
from bus.log import Delivery, Log, LogUnavailable, WorkQueue
from bus.messages import Command, NotUnderstood, Result, decode
from bus.metrics import Metrics
from bus.ops import Op, RecordEvent
from bus.subjects import Subject, commands_of, parse
from bus.times import SECOND

log = structlog.get_logger(__name__)

_LONGEST_AGAIN: Final = 30.0


class ExecuteSettings(msgspec.Struct, frozen=True):
    """Seconds, unless said otherwise."""

    by: str = "executor"
    """Who signs the outcomes: the process's name."""
    ack_wait: float = 5.0
    """For so long the commands of an executor that died wait for another; what is worked on is kept alive."""
    in_flight: int = 4096
    """Commands taken and not acked, those included that only wait for a place: large, because what would make a
    sandbox ready must be seen by the lanes to go before what waits there (DESIGN §7)."""
    poll: float = 0.5
    unknown_patience: float = 60.0
    """For so long, from its append on, a command that this version cannot read is left to a newer executor."""
    unknown_delay: float = 5.0
    deliveries: int = 5
    """A command at which this code fails so often is a dead letter."""
    command_limit: float = 600.0
    """Longest that a command is performed, whatever its expiry says."""
    append_patience: float = 60.0
    stop_patience: float = 10.0
    lanes: LanesSettings = LanesSettings()
    calls: CallSettings = CallSettings()
    events: EventSettings = EventSettings()
    commit: CommitSettings = CommitSettings()
    """What commit and unpause Jobs are made of."""


class Executor:
    """One of any number of executors of a cluster; they share the durable `execute-<cluster>`.

    Whoever starts it has made sure that the stock controller's lease is not held.
    """

    def __init__(
        self,
        cluster: str,
        client: ClusterClient,
        store: Log,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        settings: ExecuteSettings | None = None,
        recent: Recent | None = None,
    ) -> None:
        self._cluster = cluster
        self._log = store
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._settings = settings = settings or ExecuteSettings()
        self._lanes = Lanes(settings.lanes)
        calls = Calls(client, self._lanes, clock, randomness, metrics, settings.calls)
        self._events = EventLane(calls, clock, metrics, settings.events)
        self._performer = Performer(calls, recent, settings.commit, clock)
        self._outcomes = Outcomes(store, randomness, settings.by, settings.append_patience)
        self._in_flight: dict[asyncio.Task[None], tuple[Delivery, float]] = {}
        self._stopping = asyncio.Event()
        self._room = asyncio.Event()
        """Set when a place is free, or when stopping."""

    def stop(self) -> None:
        """Take no more; `run` returns when what is in flight is finished and acked, within a bound."""
        self._stopping.set()
        self._room.set()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    async def run(self) -> None:
        """Until `stop`, or cancelled (then what is in flight is not acked, and comes again)."""
        keeper = asyncio.create_task(self._keep_alive())
        queue: WorkQueue | None = None
        try:
            queue = await self._open()
            while queue is not None and not self._stopping.is_set():
                await self._take(queue)
            await self._finish()
        finally:
            keeper.cancel()
            for task in self._in_flight:
                task.cancel()
            await asyncio.gather(keeper, *self._in_flight, return_exceptions=True)
            if queue is not None:
                await queue.close()

    async def _open(self) -> WorkQueue | None:
        delay = 0.1
        while not self._stopping.is_set():
            try:
                # Without it the first old command would pass for what time it is, and nothing would seem expired.
                self._clock.observe((await self._log.bounds()).now)
                return await self._log.work(
                    f"execute-{self._cluster}",
                    [commands_of(self._cluster)],
                    ack_wait=self._settings.ack_wait,
                    max_in_flight=self._settings.in_flight,
                )
            except LogUnavailable as error:
                log.warning("log unavailable", cluster=self._cluster, error=str(error)[:200])
                await self._pause(delay)
                delay = min(5.0, delay * 2)
        return None

    async def _take(self, queue: WorkQueue) -> None:
        room = self._settings.in_flight - len(self._in_flight)
        if room <= 0:
            self._room.clear()
            await self._room.wait()
            return
        try:
            deliveries = await queue.batch(room, self._settings.poll)
        except LogUnavailable as error:
            log.warning("log unavailable", cluster=self._cluster, error=str(error)[:200])
            await self._pause(1.0)
            return
        now = asyncio.get_running_loop().time()
        for delivery in deliveries:
            self._clock.observe(delivery.record.time)
            task = asyncio.create_task(self._command(delivery))
            self._in_flight[task] = (delivery, now)
            task.add_done_callback(self._over)
        if deliveries:
            self._metrics.gauge("commands_in_flight", len(self._in_flight), cluster=self._cluster)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._in_flight.pop(task, None)
        self._room.set()
        self._metrics.gauge("commands_in_flight", len(self._in_flight), cluster=self._cluster)

    async def _command(self, delivery: Delivery) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await self._handle(delivery)
        except LogUnavailable as error:
            self._metrics.count("commands_handed_back", cluster=self._cluster, cause="log")
            log.warning("outcome not stored", sequence=delivery.record.sequence, error=str(error)[:200])
        except Exception as error:  # noqa: BLE001 - one command's fault must not stop the others
            self._metrics.count("command_faults", cluster=self._cluster)
            log.error("command failed", **_place(error), sequence=delivery.record.sequence, try_=delivery.delivered)
            await self._failed(delivery, error)
        finally:
            self._metrics.observe("command_seconds", asyncio.get_running_loop().time() - began, cluster=self._cluster)

    async def _handle(self, delivery: Delivery) -> None:
        record = delivery.record
        subject = parse(record.subject)
        try:
            command: Command = decode(record.data, record.headers, Command)
        except NotUnderstood as error:
            await self._not_understood(delivery, str(error))
            return
        if delivery.delivered > 1 and await self._outcomes.is_told(record):
            # Whoever did it died, or slept, before its ack: the world has gone on since, and nothing is done twice.
            log.info("told before", subject=record.subject, sequence=record.sequence)
            await delivery.ack()
            return
        # Events are best effort, as everywhere in Kubernetes: a kill may cost those that still wait, and no ack waits for them.
        results = await self._performer.perform(
            self._limited(command), subject.namespace, self._events.submit, repeated=delivery.delivered > 1
        )
        self._tell(subject, command.ops, results, record.sequence)
        await self._outcomes.outcome(record, delivery.delivered, results)
        await delivery.ack()

    def _limited(self, command: Command) -> Command:
        latest = self._clock.now() + int(self._settings.command_limit * SECOND)
        return command if command.expires <= latest else msgspec.structs.replace(command, expires=latest)

    def _tell(self, subject: Subject, ops: tuple[Op, ...], results: tuple[Result, ...], sequence: int) -> None:
        for op, result in zip(ops, results, strict=True):
            word = str(type(op).__struct_config__.tag)
            self._metrics.count("ops", cluster=self._cluster, op=word, result=result.result)
            if not isinstance(op, RecordEvent) and result.result not in ("done", "skipped"):
                log.info(
                    "op not done",
                    cluster=subject.cluster,
                    namespace=subject.namespace,
                    name=subject.name,
                    sequence=sequence,
                    op=word,
                    result=result.result,
                    code=result.code,
                    reason=result.reason,
                    message=result.message,
                )

    async def _not_understood(self, delivery: Delivery, error: str) -> None:
        record, settings = delivery.record, self._settings
        found = unreadable(record.data, record.headers)
        left = settings.unknown_patience - (self._clock.now() - record.time) / SECOND
        if found.newer and left > 0:
            self._metrics.count("commands_handed_back", cluster=self._cluster, cause="unknown")
            await delivery.again(min(settings.unknown_delay, left))
            return
        await self._dead(delivery, found.ids, error)

    async def _dead(self, delivery: Delivery, ids: tuple[str, ...], error: str) -> None:
        record = delivery.record
        await self._outcomes.dead(record, delivery.delivered, ids, error)
        self._metrics.count("dead_letters", cluster=self._cluster)
        log.warning("dead letter", subject=record.subject, sequence=record.sequence, error=error[:200])
        await delivery.ack()

    async def _failed(self, delivery: Delivery, error: Exception) -> None:
        record = delivery.record
        try:
            if delivery.delivered < self._settings.deliveries:
                await delivery.again(min(_LONGEST_AGAIN, 2.0**delivery.delivered))
            else:
                ids = unreadable(record.data, record.headers).ids
                await self._dead(delivery, ids, f"failed {delivery.delivered} times: {type(error).__name__}")
        except Exception as second:  # noqa: BLE001 - it comes again after ack_wait
            self._metrics.count("command_faults", cluster=self._cluster)
            log.error("command not handed back", **_place(second), sequence=record.sequence)

    async def _keep_alive(self) -> None:
        """Tell the log in time which deliveries are still worked on: one loop for all of them."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._settings.ack_wait / 3)
            now = loop.time()
            for delivery, since in list(self._in_flight.values()):
                if now - since < self._settings.ack_wait / 4:
                    continue
                try:
                    await delivery.working()
                except Exception as error:  # noqa: BLE001 - a missed one costs a redelivery
                    self._metrics.count("command_faults", cluster=self._cluster)
                    log.warning("not kept alive", **_place(error), sequence=delivery.record.sequence)

    async def _finish(self) -> None:
        """What is in flight ends and is acked, then waiting Events are sent; what does not end within the bound is handed back."""
        self._lanes.hurry()
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=self._settings.stop_patience)
        await self._events.drain(self._settings.stop_patience)
        await self._events.close()
        for task, (delivery, _) in list(self._in_flight.items()):
            task.cancel()
            try:
                await delivery.again(0.0)
            except LogUnavailable:
                log.warning("not handed back", sequence=delivery.record.sequence)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds * self._randomness.uniform(0.5, 1.0)):
                await self._stopping.wait()
        except TimeoutError:
            return


def _place(error: BaseException) -> dict[str, str]:
    """Type and place of an error: its text may hold what must not be logged."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
    return {"error": type(error).__name__, "where": where}
