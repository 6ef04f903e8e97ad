"""Objectives: what training minimises, per example; `fit`, or any loop, adds ``kl / N`` to it.

    Standard         - E_q log p(y | x, w)
    Weighted         - E_q weight[y] log p(y | x, w)
    LossCalibrated   - E_q log p(y | x, w)  -  weight E_q log G(h | x, w)

with the gain ``G(h | x, w) = sum_c u(h, c) p(c | x, w)`` of the decision h that is best for x under q
(Cobb, Roberts and Gal 2018). The decisions are constants: no gradient flows through them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stakes.decisions import chosen_rows, expected_utility
from stakes.errors import StakesError
from stakes.posteriors.base import Posterior
from stakes.utility import Utility

Refresh = Literal["step", "epoch", "running"]


class Objective(ABC):
    """A loss for anybody's loop: ``objective(posterior, x, labels) + posterior.kl() / examples``."""

    def __call__(
        self,
        posterior: Posterior,
        x: Tensor,
        labels: Tensor,
        *,
        index: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The mean loss of a batch; ``index`` says which examples these are, ``weights`` what each counts."""
        losses = self.losses(posterior, x, labels, index)
        if weights is not None:
            losses = losses * weights.reshape(-1, *[1] * (losses.ndim - 1))
        return losses.mean()

    @abstractmethod
    def losses(self, posterior: Posterior, x: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """``(B, ...)`` the loss of each label."""

    def start_epoch(self, posterior: Posterior, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """To be called before each epoch, with ``(index, x)`` of all training examples in batches."""
        return

    def state_dict(self) -> dict[str, Tensor]:
        """What has to be kept to go on after an interruption."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        return


class Standard(Objective):
    """The negative log-likelihood of the labels as they were observed."""

    def losses(self, posterior: Posterior, x: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return nll(posterior, posterior.log_probs(x), labels)


class Weighted(Objective):
    """The negative log-likelihood with a weight for each class: the usual remedy, and the paper's baseline."""

    def __init__(self, class_weights: ArrayLike) -> None:
        values = np.asarray(class_weights, dtype=np.float64)
        if values.ndim != 1 or not (np.isfinite(values).all() and (values >= 0).all() and values.any()):
            raise StakesError(f"expected a weight of 0 or more for each class, but got {class_weights!r}")
        self.class_weights = torch.tensor(values, dtype=torch.float32)

    @classmethod
    def from_utility(cls, utility: Utility) -> Self:
        """A class weighs what a mistake about it costs: the mean regret of its column (Ting 2002), scaled to mean 1."""
        table = utility.values.mean(0) if utility.values.ndim == 3 else utility.values
        regret = (table.max(0) - table).mean(0)
        return cls(regret / regret.mean() if regret.any() else np.ones_like(regret))

    def losses(self, posterior: Posterior, x: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        log_probs = posterior.log_probs(x)
        if log_probs.shape[-1] != len(self.class_weights):
            raise StakesError(
                f"expected a weight for each of the {log_probs.shape[-1]} classes, but got {len(self.class_weights)}"
            )
        losses = nll(posterior, log_probs, labels)
        return losses * self.class_weights.to(losses)[labels]


class LossCalibrated(Objective):
    """The loss-calibrated bound: the likelihood, plus the log-gain of the decisions that are best under q.

    ``refresh`` says when the decisions are taken anew:

    - ``"step"``: at every step, from ``samples`` fresh draws (the paper's Algorithm 1);
    - ``"epoch"``: once an epoch for all examples (what the authors ran);
    - ``"running"``: at every step, from a running mean of each example's predictive over the passes that
      training makes anyway, at no extra pass. ``momentum`` is the share of earlier passes in it: more of them are
      less noisy, but older.

    The last two, and a utility with a table per example, need the ``index`` of the examples of a batch.
    ``margin``, as a share of the table's span, is added to the shifted utility (`Utility.bounded`): the
    smaller, the harder the worst cell is punished. A change of the costs' unit changes nothing.

    The decisions of an untrained network are arbitrary, and the gain makes a network agree with them: an outcome
    that is never decided for in the beginning may stay so. With ``warmup``, the weight grows from 0 over so many
    steps, while the likelihood leads.
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
    ) -> None:
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
        self.warmup, self._steps = warmup, 0
        self._log_table = torch.tensor(utility.bounded(margin * utility.span).values).log()
        # By example: the decisions of the last refresh, or the running mean of the predictive.
        self._memory: Tensor | None = None

    def losses(self, posterior: Posterior, x: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        log_probs = posterior.log_probs(x)  # (S, B, ..., C)
        losses = nll(posterior, log_probs, labels)  # (B, ...)
        if self.weight > 0:
            choice = self._decisions(posterior, x, log_probs, index)
            table = self._table(log_probs, index)
            losses = losses - self._next_weight() * log_gain(log_probs, table, choice).mean(0)
        return losses

    def start_epoch(self, posterior: Posterior, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        if self.refresh != "epoch" or self.weight == 0:
            return
        for index, x in batches:
            choice = self._best(posterior.mean_probs(x, self.samples), index)
            memory = self._room(index, choice.shape[1:], torch.int16)
            memory[index.to(memory.device)] = choice.to(memory)

    def state_dict(self) -> dict[str, Tensor]:
        memory = {} if self._memory is None else {"memory": self._memory}
        return memory | ({"steps": torch.tensor(self._steps)} if self.warmup else {})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._memory = state.get("memory")
        self._steps = int(state.get("steps", torch.tensor(0)))

    def _next_weight(self) -> float:
        self._steps = min(self._steps + 1, self.warmup)
        return self.weight * self._steps / self.warmup if self.warmup else self.weight

    @torch.no_grad()
    def _decisions(self, posterior: Posterior, x: Tensor, log_probs: Tensor, index: Tensor | None) -> Tensor:
        """(B, ...) the decision for each example of the batch."""
        if self.refresh == "step":
            return self._best(posterior.mean_probs(x, self.samples), index)
        index = self._required(index)
        if self.refresh == "epoch":
            if self._memory is None:
                raise StakesError('with refresh="epoch", call start_epoch(posterior, batches) before each epoch')
            return self._memory[index.to(self._memory.device)].to(x.device, torch.int64)
        return self._best(self._running_mean(log_probs.exp().mean(0), index), index)

    def _running_mean(self, probs: Tensor, index: Tensor) -> Tensor:
        memory = self._room(index, probs.shape[1:], torch.float16)
        place = index.to(memory.device)
        before = memory[place].to(probs)
        # A row never seen is all zeros, which no predictive can be.
        known = before.flatten(1).any(1).reshape(-1, *[1] * (probs.ndim - 1))
        mean = torch.where(known, self.momentum * before + (1 - self.momentum) * probs, probs)
        memory[place] = mean.to(memory)
        return mean

    def _best(self, probs: Tensor, index: Tensor | None) -> Tensor:
        utility = self.utility
        if utility.values.ndim == 3:
            utility = utility.rows(self._required(index).cpu().numpy())
        return expected_utility(probs, utility).argmax(-1)

    def _table(self, like: Tensor, index: Tensor | None) -> Tensor:
        table = self._log_table.to(like)
        return table if table.ndim == 2 else table[self._required(index)]

    def _room(self, index: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """The memory by example, grown to hold the examples of ``index``."""
        needed = int(index.max()) + 1
        known = 0 if self._memory is None else len(self._memory)
        if needed > known:
            grown = torch.zeros(max(needed, 2 * known), *shape, dtype=dtype)
            if self._memory is not None:
                grown[:known] = self._memory
            self._memory = grown
        assert self._memory is not None
        return self._memory

    def _required(self, index: Tensor | None) -> Tensor:
        if index is None:
            raise StakesError(
                f"refresh={self.refresh!r} with this utility needs to know the examples of a batch: pass "
                "index=, their positions in the training set"
            )
        return index


def nll(posterior: Posterior, log_probs: Tensor, labels: Tensor) -> Tensor:
    """``(S, B, ..., C), (B, ...) -> (B, ...)``: minus the mean over draws of the log-likelihood of the labels."""
    if labels.shape != log_probs.shape[1:-1]:
        raise StakesError(
            f"expected labels of the shape of the predictions, {tuple(log_probs.shape[1:-1])}, "
            f"but got {tuple(labels.shape)}"
        )
    observed = posterior.likelihood.observed_log_probs(log_probs)
    try:
        chosen = observed.gather(-1, labels.expand(observed.shape[:-1]).unsqueeze(-1))  # (S, B, ..., 1)
    except RuntimeError:
        raise StakesError(
            f"expected int64 labels from 0 to {log_probs.shape[-1] - 1}, but got {labels.dtype} "
            f"from {labels.min()} to {labels.max()}"
        ) from None
    return -chosen.squeeze(-1).mean(0)


def log_gain(log_probs: Tensor, log_table: Tensor, choice: Tensor) -> Tensor:
    """``(S, B, ..., C), (D, C) or (B, D, C), (B, ...) -> (S, B, ...)``: log sum_c u(h, c) p(c), in log space."""
    return torch.logsumexp(chosen_rows(log_table, choice) + log_probs, -1)
