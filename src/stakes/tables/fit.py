"""``stakes fit``: a table, its costs, and models trained, compared and blended."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Literal

import torch

from stakes._io.files import atomic
from stakes._io.parallel import Report, side_by_side
from stakes._io.tensors import read_tensors, write_tensors
from stakes.outcomes import Predictor
from stakes.saved_model import SavedModel
from stakes.tables.importance import ScoredDivision, importance
from stakes.tables.kind import ModelPredictions
from stakes.tables.mix import Mix, Solution
from stakes.tables.prepare import Division, PreparedTable, prepare
from stakes.tables.problem import predict_rows
from stakes.tables.run import FinishedRun
from stakes.tables.run_folder import RunFolder
from stakes.tables.task import TableTask, check
from stakes.training.config import Epoch

# Progress of a fit: already on disk, started, one epoch done, finished.
Event = Literal["cached", "started", "done"] | Epoch


@dataclass(frozen=True)
class FitJob:
    """A model to be trained in one division of the table, with one seed, for some of its folds."""

    model: str
    seed: int
    division: str
    folds: tuple[int, ...]
    weight: int = 1  # relative training time of one fold

    @property
    def effort(self) -> float:
        """How long it takes, compared with others."""
        return self.weight * len(self.folds)


Listener = Callable[[FitJob, Event], None]


def fit_table(
    task: TableTask,
    folder: RunFolder,
    *,
    resume: bool = False,
    force: bool = False,
    workers: int = 1,
    on_prepared: Callable[[PreparedTable, Sequence[FitJob]], None] = lambda prepared, fits: None,
    on_progress: Listener = lambda fit, event: None,
    on_stage: Callable[[str], None] = lambda what: None,
) -> FinishedRun:
    """Train, blend and compare models; the chosen one and all results are in ``folder`` at the end."""
    check(task)
    settings = task.settings()
    folder.refuse_if_taken(settings, resume=resume, force=force)
    prepared = prepare(task)
    fits = planned(task, prepared)
    on_prepared(prepared, fits)
    with folder.held(settings, resume=resume, force=force) as folder:
        waiting = []
        for fit in fits:
            if all(_predictions_file(folder, fit.model, fit.seed, fit.division, fold).exists() for fold in fit.folds):
                on_progress(fit, "cached")
            else:
                waiting.append(fit)
        # Workers may live longer than this run, and keep the directory that they were started in.
        work = partial(_train, task, prepared, RunFolder(folder.path.absolute()))
        for later in (False, True):  # those that start from others come after all others
            now = [fit for fit in waiting if (task.kind.catalogue.trained[fit.model].after is not None) == later]
            for finished in side_by_side(work, now, workers=workers, report=on_progress):
                on_progress(finished, "done")
        on_stage("compares the models, and measures what drives the decisions")
        return _conclude(task, settings, prepared, folder)


def planned(task: TableTask, prepared: PreparedTable) -> list[FitJob]:
    """All that has to be trained, the longest first."""
    fits, catalogue = [], task.kind.catalogue
    for division in prepared.divisions:
        every = tuple(range(len(division.problem.folds)))
        for name in catalogue.trained_for(task.compared):
            model = catalogue.trained[name]
            groups = [every] if model.together(division.problem, task.recipe) else [(fold,) for fold in every]
            fits += [
                FitJob(name, seed, division.name, group, model.effort) for seed in task.all_seeds for group in groups
            ]
    return sorted(fits, key=lambda fit: -fit.effort)


def _train(task: TableTask, prepared: PreparedTable, folder: RunFolder, fit: FitJob, report: Report) -> FitJob:
    """Train one model for some folds, and leave its parts and what they say in the folder."""
    report("started")
    (division,) = (each for each in prepared.divisions if each.name == fit.division)
    model = task.kind.catalogue.trained[fit.model]
    before = _load_parts(folder, model.after, fit.seed, division, fit.folds) if model.after else []
    checkpoint = folder.part(fit.model, fit.seed, fit.division, fit.folds[0]) / "checkpoint.safetensors"
    parts = model.train(
        division.problem, task.recipe, fit.seed, fit.folds, before=before, checkpoint=checkpoint, progress=report
    )
    for fold, part in zip(fit.folds, parts, strict=True):
        own_folder = folder.part(fit.model, fit.seed, fit.division, fold)
        with atomic(own_folder / "model") as temporary:
            SavedModel(part.predictor, prepared.utility, division.encoder).save(temporary)
        test = predict_rows(part.predictor, division.test_x) if len(division.test_x) else part.held_out[:0]
        tensors = {"held_out": part.held_out, "test": test}
        write_tensors(_predictions_file(folder, fit.model, fit.seed, fit.division, fold), tensors, dict(part.details))
    checkpoint.unlink(missing_ok=True)
    return fit


def _predictions_file(folder: RunFolder, model: str, seed: int, division: str, fold: int) -> Path:
    return folder.part(model, seed, division, fold) / "predictions.safetensors"


def _load_parts(
    folder: RunFolder, model: str, seed: int, division: Division, folds: Sequence[int] | None = None
) -> list[Predictor]:
    numbers = division.problem.model_folds if folds is None else folds
    return [SavedModel.load(folder.part(model, seed, division.name, fold) / "model").predictor for fold in numbers]


def _solve(task: TableTask, division: Division, seed: int, folder: RunFolder) -> Solution:
    """A division with one seed: the models to compare."""
    problem = division.problem
    held_out, test = {}, {}
    for model in task.kind.catalogue.trained_for(task.compared):
        files = [_predictions_file(folder, model, seed, division.name, fold) for fold in range(len(problem.folds))]
        tensors = [read_tensors(file)[0] for file in files]
        held_out[model] = torch.cat([tensors[fold]["held_out"] for fold in problem.selection_folds])
        test[model] = torch.stack([tensors[fold]["test"] for fold in problem.model_folds]).mean(0)
    return task.kind.solve(task.compared, problem, held_out, test)


def _importance(
    task: TableTask, prepared: PreparedTable, solved: Mapping[str, Solution], best: ModelPredictions, folder: RunFolder
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
    dependence = {"groups": prepared.test_groups, "times": prepared.test_times}
    return importance(task.kind, tested, prepared.test_labels, prepared.test_utility, task.seed, dependence)


def _conclude(task: TableTask, settings: Mapping[str, Any], prepared: PreparedTable, folder: RunFolder) -> FinishedRun:
    """Mix and score what the fits left in the folder, choose a model, and save both."""
    every: list[ModelPredictions] = []
    solved = {
        seed: {division.name: _solve(task, division, seed, folder) for division in prepared.divisions}
        for seed in task.all_seeds
    }
    final = {seed: solutions[prepared.divisions[-1].name] for seed, solutions in solved.items()}
    for seed, solutions in solved.items():
        for model, mixed in final[seed].mixes.items():
            values = torch.empty(len(prepared.test_labels), prepared.divisions[-1].problem.width)
            for division in prepared.divisions:
                values[torch.from_numpy(division.tested)] = solutions[division.name].on_test(model)
            every.append(ModelPredictions(model, seed, values, final[seed].validation(model), mixed.details))
    choice = final[task.seed].choose(task.seed)
    best = max((each for each in every if each.model == choice.model), key=lambda each: each.validation)
    shared = {
        "settings": settings,
        "labels": prepared.test_labels,
        "row_numbers": torch.from_numpy(prepared.test_row_index + 1),
        "rows": prepared.rows,
        "repeated": prepared.repeated,
        "features": prepared.divisions[-1].encoder.width,
        "versions": {"Python": python_version()}
        | {name: version(name) for name in ("stakes", "torch", "scikit-learn")},
        "data": prepared.data,
        "ids": prepared.test_texts.get(task.id or ""),
        "groups": prepared.test_groups,
        "times": None if prepared.test_times is None else torch.tensor(prepared.test_times),
        "by": prepared.test_texts.get(task.by or ""),
        "importance": _importance(task, prepared, solved[best.seed], best, folder),
    }
    run = task.kind.run(shared, every, choice, prepared, task.seed)
    _save_model(task, prepared, best, final[best.seed].mixes[choice.model], folder)
    run.save(folder.path)
    return run


def _save_model(task: TableTask, prepared: PreparedTable, best: ModelPredictions, mix: Mix, folder: RunFolder) -> None:
    division = prepared.divisions[-1]
    parts = {model: _load_parts(folder, model, best.seed, division) for model in mix.weights}
    notes = {"target": task.target, "data": task.data.name, "model": best.model, "seed": best.seed, **mix.details}
    profile = prepared.profile if task.keep_rows else replace(prepared.profile, background={})
    with atomic(folder.model) as temporary:
        predictor = mix.predictor(parts)
        SavedModel(predictor, prepared.utility, division.encoder, notes, profile, prepared.lags).save(temporary)
