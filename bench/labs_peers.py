"""Task queues that a Python team could use instead, as contestants: python labs_peers.py KIND URL push COUNT|work MODE

Runs in a separate environment with the peer and without Hostler (scripts/bench-labs creates it). `push` puts empty
tasks into the queue; `work` processes them until it is killed. Each peer acknowledges a task after its execution, so
that no task is lost with its worker, and has the settings that its documentation recommends for speed: results are not
kept, and options that cost time and are not needed are off.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

QUEUE = "hostler-bench"
AT_ONCE = 256
POLL = 0.01
"""Seconds between two polls of arq; its default of 0.5 s would dominate the measurement."""
THREADS = 8


def nothing() -> None:
    """The task."""


async def nothing_async(_: Any) -> None:
    """The task for arq."""


def arq(url: str, count: int, _: str) -> None:
    """Run tasks in one event loop; arq always acknowledges by removal after execution."""
    connections = import_module("arq.connections")
    settings = connections.RedisSettings.from_dsn(url)
    if not count:
        worker: Any = import_module("arq.worker").Worker(
            functions=[nothing_async],
            queue_name=QUEUE,
            redis_settings=settings,
            max_jobs=AT_ONCE,
            queue_read_limit=4 * AT_ONCE,
            poll_delay=POLL,
            keep_result=0,
            handle_signals=False,
        )
        worker.run()
        return

    async def push() -> None:
        pool = await connections.create_pool(settings, default_queue_name=QUEUE)
        for start in range(0, count, AT_ONCE):
            size = min(AT_ONCE, count - start)
            await asyncio.gather(*(pool.enqueue_job("nothing_async") for _ in range(size)))
        await pool.aclose()

    asyncio.run(push())


def rq(url: str, count: int, mode: str) -> None:
    """`simple`: executes tasks in its own process; `fork`: a process for each task, the default of rq."""
    found: Any = import_module("rq")
    connection = import_module("redis").Redis.from_url(url)
    queue = found.Queue(QUEUE, connection=connection)
    if not count:
        import_module("logging").disable()
        kind = found.SimpleWorker if mode == "simple" else found.Worker
        kind([queue], connection=connection).work(logging_level="ERROR")
        return
    for start in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - start)
        queue.enqueue_many([found.Queue.prepare_data("labs_peers.nothing", result_ttl=0) for _ in range(size)])


def celery(url: str, count: int, mode: str) -> None:
    """`solo`: in its own process; `prefork`: two additional processes. Acknowledges late."""
    app: Any = import_module("celery").Celery(broker=url)
    app.conf.update(
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=AT_ONCE,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )
    task = app.task(name="nothing")(nothing)
    if not count:
        width = ["--concurrency", "2"] if mode == "prefork" else []
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
        app.worker_main(["worker", "--pool", mode, *width, *quiet])
        return
    with app.producer_pool.acquire() as producer:
        for _ in range(count):
            task.apply_async(producer=producer)


def dramatiq(url: str, count: int, mode: str) -> None:  # noqa: ARG001 - it has one
    """Run tasks in threads of one process."""
    found: Any = import_module("dramatiq")
    broker = import_module("dramatiq.brokers.redis").RedisBroker(url=url, middleware=[])
    found.set_broker(broker)
    task = found.actor(nothing, queue_name=QUEUE)
    if not count:
        worker = found.Worker(broker, worker_threads=THREADS)
        worker.start()
        worker.join()
        import_module("threading").Event().wait()
        return
    for _ in range(count):
        task.send()


if __name__ == "__main__":
    kind, where, verb, how = sys.argv[1:]
    {"arq": arq, "rq": rq, "celery": celery, "dramatiq": dramatiq}[kind](where, int(how) if verb == "push" else 0, how)
