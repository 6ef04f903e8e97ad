"""Many fits side by side, one thread each, with their progress reported in one process."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from multiprocessing.managers import SyncManager
from typing import Any, TypeVar

import torch

from stakes.errors import StakesError

Task = TypeVar("Task")
Result = TypeVar("Result")
Report = Callable[[Any], None]

_WORKING = threading.RLock()  # held while a task runs in this process


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch single-threaded; restore the setting on exit. Small networks are fastest so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(
    work: Callable[[Task, Report], Result],
    tasks: Sequence[Task],
    *,
    workers: int = 1,
    backend: str = "loky",
    report: Callable[[Task, Any], None] = lambda task, event: None,
) -> Iterator[Result]:
    """``work(task, report)`` of every task, results as they finish.

    With several workers each runs in its own process with one thread: on small networks two processes
    with two threads each on two cores are ten times slower. ``backend`` is any of joblib's by name (a
    Ray or Dask cluster too). ``report`` is called in this process with what the work reports of a task.
    """
    if workers < 1:
        raise StakesError(f"expected at least one worker, but got {workers}")
    if workers == 1 or len(tasks) <= 1:
        for task in tasks:
            with one_thread():
                yield work(task, lambda event, task=task: report(task, event))  # type: ignore[misc]
        return
    from joblib import Parallel, delayed

    check_backend(backend)
    parallel = partial(Parallel, n_jobs=min(workers, len(tasks)), backend=backend)
    # The workers of other backends may be on other machines, and report nothing.
    with _relay(tasks, report) if backend == "loky" else nullcontext() as queue:
        jobs = [delayed(_in_worker)(work, task, number, queue, os.getpid()) for number, task in enumerate(tasks)]
        try:
            pool = parallel(return_as="generator_unordered")
        except ValueError:  # Ray and multiprocessing only give all results at once: a few tasks at a time, then
            for first in range(0, len(jobs), workers):
                yield from parallel()(jobs[first : first + workers])
            return
        try:
            for result in pool(jobs):
                if queue is not None:
                    queue.join()  # what a task reported is told before its result
                yield result
        except BrokenProcessPool:
            raise StakesError("a worker process died, perhaps for want of memory; try fewer workers") from None


def check_backend(backend: str) -> None:
    """Refuse a backend that joblib does not know, whose package is not installed, or whose workers are threads."""
    import joblib

    try:
        if backend == "ray":
            from ray.util.joblib import register_ray

            register_ray()
        with joblib.parallel_config(backend=backend):
            engine, _ = joblib.parallel.get_active_backend()
    except (ImportError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise StakesError(
            f"the backend {backend!r} cannot be used ({reason}): use loky or multiprocessing, or install the "
            "package of ray or dask"
        ) from None
    if getattr(engine, "supports_sharedmem", False) and engine.effective_n_jobs(2) > 1:
        raise StakesError(
            f"the backend {backend!r} runs its workers as threads of one process, which share PyTorch's random "
            "numbers, so that results would not follow their seeds: use loky or multiprocessing, or ray or dask"
        )


def _in_worker(
    work: Callable[[Task, Report], Result], task: Task, number: int = 0, queue: Any = None, parent: int = 0
) -> Result:
    """Run one task at a time in each process: a worker of Dask may have several threads, with one random generator."""
    if queue is not None:
        _end_with(parent)
    with _WORKING, one_thread():
        return work(task, lambda event: None if queue is None else queue.put((number, event)))


@cache
def _end_with(parent: int) -> None:
    """End this process soon after its parent: a run that was killed must not go on writing into its folder."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _relay(tasks: Sequence[Task], report: Callable[[Task, Any], None]) -> Iterator[Any]:
    """A queue that workers can write to; what they write is reported here."""
    manager = SyncManager()
    manager.start(_end_with, (os.getpid(),))
    with manager:
        queue = manager.Queue()
        failures = list[Exception]()

        def listen() -> None:
            while (event := queue.get()) is not None:
                try:
                    report(tasks[event[0]], event[1])
                except Exception as error:  # raised at the end: whoever waits for the queue must not wait for ever
                    failures.append(error)
                queue.task_done()

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield queue
        finally:
            queue.put(None)
            listener.join()
        if failures:
            raise failures[0]
