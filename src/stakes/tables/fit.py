"""``stakes fit``: a table, its costs, and models trained, compared and blended."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Literal

import torch
from torch import Tensor

from stakes._io.files import atomic
from stakes._io.parallel import Report, side_by_side
from stakes._io.tensors import read_tensors, write_tensors
from stakes.evaluation.comparison import Predictions, best_seed, compare, score
from stakes.outcomes import Predictor
from stakes.saved_model import SavedModel
from stakes.tables.importance import ScoredDivision, importance
from stakes.tables.mix import HeldOut, Mix, choose, mix
from stakes.tables.models import TRAINED, trained_for
from stakes.tables.prepare import Division, PreparedTable, prepare
from stakes.tables.run import Run, RunFolder
from stakes.tables.task import TableTask, check
from stakes.training.config import Epoch
from stakes.utility import FormulaUtility

# What happens to a fit: it was found finished, has started, came through an epoch, is done.
Event = Literal["found", "started", "done"] | Epoch


@dataclass(frozen=True)
class Fit:
    """A model to be trained in one division of the table, with one seed, for some of its folds."""

    model: str
    seed: int
    division: str
    folds: tuple[int, ...]

    @property
    def effort(self) -> float:
        """How long it takes, compared with others."""
        return TRAINED[self.model].effort * len(self.folds)


Listener = Callable[[Fit, Event], None]


def fit_table(
    task: TableTask,
    folder: RunFolder,
    *,
    resume: bool = False,
    force: bool = False,
    workers: int = 1,
    on_prepared: Callable[[PreparedTable, Sequence[Fit]], None] = lambda prepared, fits: None,
    on_progress: Listener = lambda fit, event: None,
    on_stage: Callable[[str], None] = lambda what: None,
) -> Run:
    """Train, blend and compare models; the chosen one and all results are in ``folder`` at the end."""
    check(task)
    settings = task.settings()
    folder.refuse_if_taken(settings, resume=resume, force=force)
    prepared = prepare(task)
    fits = planned(task, prepared)
    on_prepared(prepared, fits)
    folder.claim(settings, resume=resume, force=force)
    waiting = []
    for fit in fits:
        if all(_predictions_file(folder, fit.model, fit.seed, fit.division, fold).exists() for fold in fit.folds):
            on_progress(fit, "found")
        else:
            waiting.append(fit)
    work = partial(_train, task, prepared, folder)
    for later in (False, True):  # those that start from others come after all others
        now = [fit for fit in waiting if (TRAINED[fit.model].after is not None) == later]
        for finished in side_by_side(work, now, workers=workers, report=on_progress):
            on_progress(finished, "done")
    on_stage("compares the models, and measures what drives the decisions")
    return _conclude(task, settings, prepared, folder)


def planned(task: TableTask, prepared: PreparedTable) -> list[Fit]:
    """All that has to be trained, the longest first."""
    fits = []
    for division in prepared.divisions:
        every = tuple(range(len(division.problem.folds)))
        for model in trained_for(task.compared):
            groups = [every] if TRAINED[model].together(division.problem, task.recipe) else [(fold,) for fold in every]
            fits += [Fit(model, seed, division.name, group) for seed in task.all_seeds for group in groups]
    return sorted(fits, key=lambda fit: -fit.effort)


def _train(task: TableTask, prepared: PreparedTable, folder: RunFolder, fit: Fit, report: Report) -> Fit:
    """Train one model for some folds, and leave its parts and what they say in the folder."""
    report("started")
    (division,) = (each for each in prepared.divisions if each.name == fit.division)
    model = TRAINED[fit.model]
    before = _load_parts(folder, model.after, fit.seed, division, fit.folds) if model.after else []
    checkpoint = folder.part(fit.model, fit.seed, fit.division, fit.folds[0]) / "checkpoint.safetensors"
    parts = model.train(
        division.problem, task.recipe, fit.seed, fit.folds, before=before, checkpoint=checkpoint, progress=report
    )
    for fold, part in zip(fit.folds, parts, strict=True):
        own_folder = folder.part(fit.model, fit.seed, fit.division, fold)
        shutil.rmtree(own_folder / "model", ignore_errors=True)
        SavedModel(part.predictor, prepared.utility, division.encoder).save(own_folder / "model")
        tensors = {"held_out": part.held_out, "test": _said(part.predictor, division.test_x, part.held_out)}
        write_tensors(_predictions_file(folder, fit.model, fit.seed, fit.division, fold), tensors, dict(part.details))
    checkpoint.unlink(missing_ok=True)
    return fit


def _said(predictor: Predictor, x: Tensor, like: Tensor) -> Tensor:
    """(n, C) what it says of rows, of which there may be none."""
    return predictor(x).mean_probs() if len(x) else like[:0]


def _predictions_file(folder: RunFolder, model: str, seed: int, division: str, fold: int) -> Path:
    return folder.part(model, seed, division, fold) / "predictions.safetensors"


def _load_parts(
    folder: RunFolder, model: str, seed: int, division: Division, folds: Sequence[int] | None = None
) -> list[Predictor]:
    numbers = range(len(division.problem.folds)) if folds is None else folds
    return [SavedModel.load(folder.part(model, seed, division.name, fold) / "model").predictor for fold in numbers]


@dataclass(frozen=True, eq=False)
class _Solved:
    """A division with one seed: the models to compare, and what they are made of."""

    held: HeldOut
    test: Mapping[str, Tensor]  # by trained model, (n, C)
    mixes: Mapping[str, Mix]


def _solve(task: TableTask, division: Division, seed: int, folder: RunFolder) -> _Solved:
    problem = division.problem
    held_out, test = {}, {}
    for model in trained_for(task.compared):
        files = [_predictions_file(folder, model, seed, division.name, fold) for fold in range(len(problem.folds))]
        tensors = [read_tensors(file)[0] for file in files]
        held_out[model] = torch.cat([each["held_out"] for each in tensors])
        test[model] = torch.stack([each["test"] for each in tensors]).mean(0)
    held = HeldOut.of(problem, held_out)
    return _Solved(held, test, mix(task.compared, held))


def _importance(
    prepared: PreparedTable, solved: Mapping[str, _Solved], best: Predictions, folder: RunFolder, seed: int
) -> dict[str, Any] | None:
    """What drives the decisions of the chosen model, by the models of each division on its test rows."""
    if best.model == "constant":
        return None
    tested = []
    for division in prepared.divisions:
        if len(division.tested):
            mixed = solved[division.name].mixes[best.model]
            parts = {model: _load_parts(folder, model, best.seed, division) for model in mixed.weights}
            tested.append(ScoredDivision(division, mixed.predictor(parts)))
    return importance(tested, prepared.test_labels, prepared.test_utility, seed)


def _conclude(task: TableTask, settings: Mapping[str, Any], prepared: PreparedTable, folder: RunFolder) -> Run:
    """Mix and score what the fits left in the folder, choose a model, and save both."""
    predictions, final, every = [], {}, {}
    for seed in task.all_seeds:
        solved = {division.name: _solve(task, division, seed, folder) for division in prepared.divisions}
        every[seed], final[seed] = solved, solved[prepared.divisions[-1].name]
        for model, mixed in final[seed].mixes.items():
            probs = torch.empty(len(prepared.test_labels), len(prepared.utility.outcomes))
            for division in prepared.divisions:
                here = solved[division.name]
                probs[torch.from_numpy(division.tested)] = here.mixes[model].probs(here.test)
            held = final[seed].held
            validation = held.mean(held.realised(mixed.probs(held.probs)))
            predictions.append(Predictions(model, seed, probs, validation, mixed.details))
    choice = choose(final[task.seed].mixes, final[task.seed].held, task.seed)
    best = best_seed(predictions, choice.model)
    scored = tuple(item for each in predictions for item in score(each, prepared.test_labels, prepared.test_utility))
    run = Run(
        settings=settings,
        labels=prepared.test_labels,
        row_numbers=torch.from_numpy(prepared.test_places + 1),
        utility=prepared.test_utility,
        rows=prepared.rows,
        repeated=prepared.repeated,
        features=prepared.divisions[-1].encoder.width,
        versions={"Python": python_version()} | {name: version(name) for name in ("stakes", "torch", "scikit-learn")},
        scored=scored,
        comparison=compare(scored, choice, task.seed),
        formulas=prepared.utility if isinstance(prepared.utility, FormulaUtility) else None,
        data=prepared.data,
        ids=prepared.test_texts.get(task.id or ""),
        by=prepared.test_texts.get(task.by or ""),
        importance=_importance(prepared, every[best.seed], best, folder, task.seed),
    )
    chosen, division = final[best.seed].mixes[choice.model], prepared.divisions[-1]
    parts = {model: _load_parts(folder, model, best.seed, division) for model in chosen.weights}
    notes = {"target": task.target, "data": task.data.name, "model": choice.model, "seed": best.seed, **chosen.details}
    with atomic(folder.model) as temporary:
        profile = prepared.profile if task.keep_rows else replace(prepared.profile, background={})
        SavedModel(chosen.predictor(parts), prepared.utility, division.encoder, notes, profile).save(temporary)
    run.save(folder.path)
    return run
