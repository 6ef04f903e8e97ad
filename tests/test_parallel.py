"""Work side by side."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch

from stakes import seeds
from stakes._io.parallel import Report, _in_worker, check_backend, one_thread, side_by_side
from stakes.errors import StakesError


def square(number: int, report: Report) -> tuple[int, int, int]:
    report("started")
    report(number * 10)
    return number * number, torch.get_num_threads(), os.getpid()


def explode(number: int, report: Report) -> int:
    if number == 1:
        raise StakesError("a user's mistake")
    return number


def die(number: int, report: Report) -> int:
    time.sleep(0.1)
    os._exit(9)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_and_reports(workers: int) -> None:
    heard: list[tuple[int, Any]] = []
    results = list(
        side_by_side(square, [1, 2, 3, 4], workers=workers, report=lambda task, event: heard.append((task, event)))
    )
    assert sorted(result[0] for result in results) == [1, 4, 9, 16]
    assert {result[1] for result in results} == {1}
    assert (os.getpid() in {result[2] for result in results}) == (workers == 1)
    assert sorted(heard, key=str) == sorted(
        [(task, event) for task in (1, 2, 3, 4) for event in ("started", task * 10)], key=str
    )
    for task in (1, 2, 3, 4):
        assert [event for who, event in heard if who == task] == ["started", task * 10]


def test_what_a_task_reports_is_heard_before_its_result() -> None:
    heard: set[tuple[int, Any]] = set()

    def slowly(task: int, event: Any) -> None:
        time.sleep(0.2)
        heard.add((task, event))

    for squared, _, _ in side_by_side(square, [1, 2, 3], workers=2, report=slowly):
        task = round(squared**0.5)
        assert {(task, "started"), (task, task * 10)} <= heard


def test_a_report_that_fails_is_an_error_at_the_end() -> None:
    def fail(task: int, event: Any) -> None:
        raise StakesError(f"cannot show {event}")

    with pytest.raises(StakesError, match="cannot show"):
        list(side_by_side(square, [1, 2, 3], workers=2, report=fail))


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_come_through(workers: int) -> None:
    with pytest.raises(StakesError, match="a user's mistake"):
        list(side_by_side(explode, [0, 1, 2], workers=workers))


def test_a_worker_that_dies_is_an_error_that_says_so() -> None:
    with pytest.raises(StakesError, match="worker process died"):
        list(side_by_side(die, [0, 1], workers=2))


def test_other_backends_and_numbers_of_workers() -> None:
    for backend in ("sequential", "multiprocessing"):
        assert sorted(side_by_side(explode, [0, 2, 3], workers=2, backend=backend)) == [0, 2, 3]
    assert list(side_by_side(explode, [], workers=2)) == []
    with pytest.raises(StakesError, match="at least one worker"):
        list(side_by_side(explode, [0], workers=0))


def dropout(seed: int, report: Report) -> list[float]:
    with seeds.seeded(seed):
        numbers = []
        for _ in range(20):
            time.sleep(0.001)
            numbers.append(float(torch.rand(())))
        return numbers


def test_backends_whose_workers_share_a_process_are_refused() -> None:
    """Threads share PyTorch's global generator: what one task draws would depend on the others."""
    with pytest.raises(StakesError, match=r"threads of one process.* use loky"):
        list(side_by_side(dropout, [1, 2], workers=2, backend="threading"))


@pytest.mark.parametrize("backend", ["multiprocessing", "sequential"])
def test_the_other_backends_follow_the_seeds(backend: str) -> None:
    expected = [dropout(seed, print) for seed in (1, 2, 3)]
    assert sorted(side_by_side(dropout, [1, 2, 3], workers=2, backend=backend)) == sorted(expected)


def test_threads_of_a_cluster_worker_take_turns() -> None:
    """A worker of Dask runs tasks in several threads of one process."""
    expected = [dropout(seed, print) for seed in (1, 2, 3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(partial(_in_worker, dropout), [1, 2, 3])) == expected


def test_one_thread_is_for_the_block_only() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_backends_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.util.joblib", None)
    for backend in ("ray", "magic"):
        with pytest.raises(StakesError, match=f"'{backend}' cannot be used .* install the package of ray"):
            check_backend(backend)
