"""Objectives: what training minimises, per example; `fit`, or any loop, adds ``kl / N`` to it.

    Standard         - E_q log p(y | x, w)
    Weighted         - E_q weight[y] log p(y | x, w)
    LossCalibrated   - E_q log p(y | x, w)  -  weight E_q log G(h | x, w)

with the gain ``G(h | x, w) = sum_c u(h, c) p(c | x, w)`` of the decision h that is best for x under q
(Cobb, Roberts and Gal 2018). The decisions are constants: no gradient flows through them.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from stakes import inputs
from stakes.decisions.certain import CertainDecisions
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.outcomes import Outcomes
from stakes.posteriors.base import Posterior
from stakes.utility import TableUtility, Utility
from stakes.utility.table import entry_by_label

Refresh = Literal["step", "epoch", "running"]
Start = Literal["network", "labels"]
_ONE_LABEL = 3  # axes of outcomes, (S, B, C), with one label for each example


class Objective(ABC):
    """A loss for anybody's loop: ``objective(posterior, x, labels) + posterior.kl() / examples``.

    It is a mean over the labels that count (`Likelihood.counted`). Where an example has several labels, as an image
    has one for each pixel, divide the KL by the number of labels that count in all of the examples.
    What it remembers between steps belongs to one training run: `fit` works on a `fresh` copy.
    """

    def __call__(
        self,
        posterior: Posterior,
        x: Inputs,
        labels: Tensor,
        *,
        index: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The mean loss of a batch; ``index`` says which examples these are, ``weights`` what each example, or each
        label, counts. If no label of the batch counts, it is 0, and so are its gradients.
        """
        losses = self.losses(posterior, x, labels, index)
        if weights is not None:
            losses = losses * inputs.by_label(weights, losses.shape)
        counted = posterior.likelihood.counted(labels)
        if counted is None:
            return losses.mean()
        return losses.where(counted, 0).sum() / counted.sum().clamp_min(1)

    @abstractmethod
    def losses(self, posterior: Posterior, x: Inputs, labels: Tensor, index: Tensor | None) -> Tensor:
        """``(B, ...)`` the loss of each label; those of labels that do not count are left out of the mean."""

    def fresh(self) -> Self:
        """A copy that remembers nothing, for one training run; the objectives it holds are fresh, too.

        Override it if yours remembers something.
        """
        copied = copy.copy(self)
        inner = {name: value.fresh() for name, value in vars(self).items() if isinstance(value, Objective)}
        vars(copied).update(inner)
        return copied

    @property
    def needs_index(self) -> bool:
        """Whether it has to know which examples a batch holds; `fit` refuses data that cannot say so."""
        return any(value.needs_index for value in vars(self).values() if isinstance(value, Objective))

    def require_examples(self, count: int) -> None:
        """Refuse a number of training examples that is not that of what is known of each."""
        for value in vars(self).values():
            if isinstance(value, Objective | Utility):
                value.require_examples(count)

    def settings(self) -> dict[str, Any]:
        """What it was made with, in JSON types, by which a checkpoint knows its run. Override it if yours has more."""
        inner = {name: value.settings() for name, value in vars(self).items() if isinstance(value, Objective)}
        return {"kind": type(self).__name__, **inner}

    def start_epoch(self, posterior: Posterior, batches: Iterable[tuple[Tensor, Inputs]]) -> None:
        """To be called before each epoch, with ``(index, x)`` of all training examples in batches."""
        return

    def keep_models(self, indices: Tensor) -> None:  # noqa: B027 (most remember nothing)
        """Go on with some of the models of a stack, where they are the second axis of what it remembers."""

    def state_dict(self) -> dict[str, Tensor]:
        """What has to be kept to go on after an interruption."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        return


class Standard(Objective):
    """The negative log-likelihood of the labels as they were observed."""

    def losses(self, posterior: Posterior, x: Inputs, labels: Tensor, index: Tensor | None) -> Tensor:
        return -posterior.likelihood.log_prob(posterior.outputs(x), labels).mean(0)


class Weighted(Objective):
    """The negative log-likelihood with a weight for each class: the usual remedy, and the paper's baseline.

    ``class_weights`` are ``(C,)``, or ``(L, C)`` with a row for each label of examples that have L of them.
    """

    def __init__(self, class_weights: ArrayLike) -> None:
        values = np.asarray(class_weights, dtype=np.float64)
        if values.ndim not in (1, 2) or not (np.isfinite(values).all() and (values >= 0).all() and values.any()):
            raise StakesError(f"expected a weight of 0 or more for each class, but got {class_weights!r}")
        self.class_weights = torch.tensor(values, dtype=torch.float32)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"class_weights": self.class_weights.tolist()}

    @classmethod
    def from_utility(cls, utility: TableUtility) -> Self:
        """A class weighs what a mistake about it costs: `TableUtility.class_weights`."""
        return cls(utility.class_weights)

    def losses(self, posterior: Posterior, x: Inputs, labels: Tensor, index: Tensor | None) -> Tensor:
        likelihood, outputs = posterior.likelihood, posterior.outputs(x)
        outcomes = likelihood.outcomes(outputs)
        losses = -likelihood.log_prob(outputs, labels, outcomes).mean(0)  # (B, ...)
        if outcomes.numeric:
            raise StakesError("weights of classes need named outcomes, but these are numbers: use Standard")
        if outcomes.shape[-1] != self.class_weights.shape[-1]:
            raise StakesError(
                f"expected a weight for each of the {outcomes.shape[-1]} classes, "
                f"but got {self.class_weights.shape[-1]}"
            )
        counted = likelihood.counted(labels)
        classes = (labels if counted is None else labels.where(counted, 0)).long()
        return losses * entry_by_label(self.class_weights.to(losses), classes)


class LossCalibrated(Objective):
    """The loss-calibrated bound: the likelihood, plus the log-gain of the decisions that are best under q.

    ``refresh`` says when the decisions are taken anew:

    - ``"step"``: at every step, from ``samples`` fresh draws (the paper's Algorithm 1). The last of them are left out
      for examples whose decision they could not turn, where that saves time;
    - ``"epoch"``: once an epoch for all examples (what the authors ran);
    - ``"running"``: at every step, from a running mean of each example's predictive over the earlier passes that
      training made anyway, at no extra pass. ``momentum`` is the share of those before the last one in it: more of
      them are less noisy, but older.

    The last two, and a utility with a table per example, need the ``index`` of the examples of a batch.
    ``margin`` is what the worst cell of the utility that training sees is worth (`Utility.bounded`), as a share of the
    distance from it to the best: the smaller, the harder it is punished. A change of the costs' unit changes nothing.

    The decisions of an untrained network are arbitrary, and the gain makes a network agree with them: an outcome
    that is never decided for in the beginning may stay so. With ``start="labels"`` the decisions of the first epoch
    are those that are best for the observed labels; in a loop of your own, call `start_epoch` before each epoch, or
    they are the network's. A network that is trained already can begin with its own: ``start="network"``. With
    ``warmup``, the weight grows from 0 over so many steps, while the likelihood leads.

    With a ``weight`` other than 1 the loss is no bound on anything: it is a strength. What it remembers changes only
    while gradients are enabled: under ``torch.no_grad``, as for a validation loss, it is neither changed nor read, and
    running decisions are those of the pass itself.
    """

    def __init__(
        self,
        utility: Utility,
        *,
        weight: float = 1.0,
        samples: int = 10,
        refresh: Refresh = "step",
        margin: float = 1e-3,
        momentum: float = 0.3,
        warmup: int = 0,
        start: Start = "labels",
    ) -> None:
        if start not in get_args(Start):
            raise StakesError(f"expected start to be one of {get_args(Start)}, but got {start!r}")
        if refresh not in get_args(Refresh):
            raise StakesError(f"expected refresh to be one of {get_args(Refresh)}, but got {refresh!r}")
        if not weight >= 0:
            raise StakesError(f"expected a weight of 0 or more, but got {weight}")
        if samples < 1:
            raise StakesError(f"expected at least one sample for the decisions, but got {samples}")
        if not 0 <= momentum < 1:
            raise StakesError(f"expected a momentum in [0, 1), but got {momentum}")
        if warmup < 0:
            raise StakesError(f"expected a warmup of 0 or more steps, but got {warmup}")
        self.utility = utility
        self.weight, self.samples, self.refresh, self.momentum = weight, samples, refresh, momentum
        self.margin = margin
        self.warmup, self._steps = warmup, 0
        self.start, self._epoch = start, 0  # the number of the epoch, from 1; 0 where nobody says
        self._positive = utility.bounded(margin)
        # By example: the decisions of the last refresh, or the running mean of the predictive.
        self._memory: Tensor | None = None

    def losses(self, posterior: Posterior, x: Inputs, labels: Tensor, index: Tensor | None) -> Tensor:
        outputs = posterior.outputs(x)  # (S, B, C, ...)
        outcomes = posterior.likelihood.outcomes(outputs)
        losses = -posterior.likelihood.log_prob(outputs, labels, outcomes).mean(0)  # (B, ...)
        if self.weight > 0:
            choice = self._decisions(posterior, x, labels, outcomes, index)
            gain = self._of_batch(self._positive, index).log_gain(outcomes, choice)  # (S, B, ...)
            losses = losses - self._next_weight() * gain.mean(0)
        return losses

    def settings(self) -> dict[str, Any]:
        names = ("weight", "samples", "refresh", "margin", "momentum", "warmup", "start")
        return super().settings() | {"utility": self.utility.digest()} | {name: getattr(self, name) for name in names}

    def fresh(self) -> Self:
        copied = super().fresh()
        copied._memory, copied._steps, copied._epoch = None, 0, 0
        return copied

    @property
    def needs_index(self) -> bool:
        return self.weight > 0 and (self.refresh != "step" or self.utility.per_example)

    def start_epoch(self, posterior: Posterior, batches: Iterable[tuple[Tensor, Inputs]]) -> None:
        self._epoch += 1
        if self.refresh != "epoch" or self.weight == 0 or self._from_labels:
            return
        for index, x in batches:
            choice = self._best(posterior.mixture(x, self.samples), index)
            kept = choice.dtype if choice.is_floating_point() else torch.int16  # numbers stay as they are
            memory = self._room(index, choice.shape[1:], kept, math.nan if kept.is_floating_point else -1)
            memory[index.to(memory.device)] = choice.to(memory)

    def keep_models(self, indices: Tensor) -> None:
        self._memory = None if self._memory is None else self._memory[:, indices]

    def state_dict(self) -> dict[str, Tensor]:
        memory = {} if self._memory is None else {"memory": self._memory}
        return memory | {"steps": torch.tensor(self._steps), "epoch": torch.tensor(self._epoch)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._memory = state.get("memory")
        self._steps = int(state.get("steps", torch.tensor(0)))
        self._epoch = int(state.get("epoch", torch.tensor(0)))

    def _next_weight(self) -> float:
        if torch.is_grad_enabled():
            self._steps = min(self._steps + 1, self.warmup)
        return self.weight * self._steps / self.warmup if self.warmup else self.weight

    @property
    def _from_labels(self) -> bool:
        return self.start == "labels" and self._epoch == 1

    def _decisions(
        self, posterior: Posterior, x: Inputs, labels: Tensor, outcomes: Outcomes, index: Tensor | None
    ) -> Tensor:
        """(B, ...) the decision for each example of the batch."""
        learning = torch.is_grad_enabled()
        with torch.no_grad():
            if self.refresh == "running":
                outcomes = self._running(outcomes, index, learning)
            if not self._from_labels:
                return self._taken(posterior, x, outcomes, index)
            counted = posterior.likelihood.counted(labels)
            known = (labels if counted is None else labels.where(counted, 0)).to(outcomes.weights.device)
            if outcomes.numeric:
                atoms = known.double().unsqueeze(-1)
                return self._best(Outcomes(torch.ones_like(atoms), values=atoms), index)
            return self._best(Outcomes(nn.functional.one_hot(known.long(), outcomes.shape[-1]).double()), index)

    def _taken(self, posterior: Posterior, x: Inputs, outcomes: Outcomes, index: Tensor | None) -> Tensor:
        if self.refresh == "running":
            return self._best(outcomes, index)
        if self.refresh == "step":
            # Of the many labels of an image one is always unclear.
            one_label = len(outcomes.shape) == _ONE_LABEL and not outcomes.numeric
            utility = self._of_batch(self._positive, index)
            enough = CertainDecisions(utility, outcomes) if one_label else None
            mixture = posterior.mixture(x, self.samples, enough)
            if mixture.has_nan and not outcomes.has_nan:
                raise StakesError(
                    "expected draws for a batch to be numbers, as the training pass for it is, but some are NaN: look "
                    'for a division by 0 in eval mode, or use refresh="running"'
                )
            return utility.best_choice(mixture)
        index = self._required(index)
        if len(index) != inputs.count(x):
            raise StakesError(
                f"expected index= with a position for each of {inputs.count(x)} examples, but got {len(index)}"
            )
        if self._memory is None:
            raise StakesError('with refresh="epoch", call start_epoch(posterior, batches) before each epoch')
        self._require_shape(outcomes.shape[2:-1])
        rows = index.to(self._memory.device)
        known = rows < len(self._memory)
        kept = self._memory[rows.where(known, 0)].to(inputs.tensors_of(x)[0].device)
        if not bool(known.all()) or bool((kept.isnan() if kept.is_floating_point() else kept < 0).any()):
            raise StakesError(
                'expected examples that start_epoch has seen in this epoch: with refresh="epoch", give it all of '
                "the training examples, with the same index"
            )
        return kept if kept.is_floating_point() else kept.long()

    def _running(self, outcomes: Outcomes, index: Tensor | None, learning: bool) -> Outcomes:
        """The mean over the passes before this one; over this one, where it is the first.

        A decision for the very draw that the gradient comes from would teach the network nothing but to be surer.
        """
        if outcomes.numeric:
            raise StakesError('refresh="running" needs named outcomes, whose probabilities have a mean: use "step"')
        probs = outcomes.log_weights.exp().mean(0)
        if not learning:
            return Outcomes(probs)
        index = self._required(index)
        if len(index) != len(probs):
            raise StakesError(
                f"expected index= with a position for each of {len(probs)} examples, but got {len(index)}"
            )
        memory = self._room(index, probs.shape[1:], torch.float16, 0)
        rows = index.to(memory.device)
        before = memory[rows].to(probs)
        # A row never seen is all zeros, which no predictive can be.
        known = before.flatten(1).any(1).reshape(-1, *[1] * (probs.ndim - 1))
        memory[rows] = torch.where(known, self.momentum * before + (1 - self.momentum) * probs, probs).to(memory)
        return Outcomes(torch.where(known, before, probs))

    def _best(self, outcomes: Outcomes, index: Tensor | None) -> Tensor:
        return self._of_batch(self._positive, index).best_choice(outcomes)

    def _of_batch(self, utility: Utility, index: Tensor | None) -> Utility:
        return utility.rows(self._required(index)) if utility.per_example else utility

    def _room(self, index: Tensor, shape: torch.Size, dtype: torch.dtype, unknown: float) -> Tensor:
        """The memory by example, grown to hold the examples of ``index``."""
        self._require_shape(shape)
        needed = int(index.max()) + 1
        known = 0 if self._memory is None else len(self._memory)
        if needed > known:
            grown = torch.full((max(needed, 2 * known), *shape), unknown, dtype=dtype)
            if self._memory is not None:
                grown[:known] = self._memory
            self._memory = grown
        assert self._memory is not None
        return self._memory

    def _require_shape(self, shape: torch.Size) -> None:
        if self._memory is not None and self._memory.shape[1:] != shape:
            raise StakesError(
                f"refresh={self.refresh!r} remembers each example, and needs labels of one shape, but the predictions "
                f"for an example had the shape {tuple(self._memory.shape[1:])} and now have {tuple(shape)}: pad all "
                'batches to one length, or use refresh="step"'
            )

    def _required(self, index: Tensor | None) -> Tensor:
        if not isinstance(index, Tensor) or index.is_floating_point() or index.ndim != 1 or bool((index < 0).any()):
            got = "none" if index is None else index.tolist() if isinstance(index, Tensor) else index
            raise StakesError(
                f"refresh={self.refresh!r} with this utility needs to know the examples of a batch: pass "
                "index=, their positions in the training set, as a tensor of whole numbers from 0 on, "
                f"but got {str(got)[:60]}"
            )
        return index
