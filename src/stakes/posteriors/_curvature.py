"""The curvature of a network's loss in its weights, summed over examples, and Gaussians made of it.

    sum_n  J_n' L_n J_n      J_n: outputs in weights, L_n: the Hessian of -log p(label) in the outputs

A structure keeps as much of that sum as there is room for: `Full` all of it, `Diagonal` its diagonal; `Kron` takes, for
a linear layer with inputs h, the sum of products for the product of sums: (sum_n h_n h_n') x (mean_n L_n).
With a prior's precision added it becomes factors, by which standard normal noise gets its covariance.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from stakes import inputs
from stakes.errors import StakesError, StakesWarning
from stakes.inputs import Inputs
from stakes.likelihoods import Likelihood
from stakes.posteriors._sampling.balance import antithetic_normal
from stakes.posteriors._sampling.over_draws import without_performance_warnings


def output_hessians(likelihood: Likelihood, outputs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """``(B, C, ...), (B, ...) -> (N, C, C)``: of -log p(label) in the outputs at each of the N labels, in float64.

    A label may depend on the outputs at its own position only.
    """
    with torch.enable_grad():
        outputs = outputs.detach().double().requires_grad_()
        losses = -likelihood.log_prob(outputs.unsqueeze(0), labels).squeeze(0)  # (B, ...)
        if weights is not None:
            losses = losses * inputs.by_label(weights, losses.shape).to(losses)
        (gradient,) = torch.autograd.grad(losses.sum(), outputs, create_graph=True)  # (B, C, ...)
        lines = [
            torch.autograd.grad(gradient[:, c].sum(), outputs, retain_graph=True)[0] for c in range(outputs.shape[1])
        ]
    return rows_of(torch.stack(lines, 1), axes=2)


def label_counts(likelihood: Likelihood, outputs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """``(B, C, ...), (B, ...) -> (N,)``: how much each of the N labels counts, in float64; of several labels that are
    decided on at once, their mean.
    """
    counts = torch.ones_like(labels, dtype=torch.float64)
    counts = counts if weights is None else counts * inputs.by_label(weights, labels.shape)
    counted = likelihood.counted(labels)
    counts = counts if counted is None else counts * counted
    return rows_of(counts, axes=1).mean(1) if labels.shape == outputs.shape else counts.flatten()


def rows_of(tensor: Tensor, axes: int) -> Tensor:
    """``(B, ..., positions) -> (B * positions, ...)``, with so many axes before the positions."""
    return tensor.flatten(1 + axes).movedim(-1, 1).flatten(0, 1) if tensor.ndim > 1 + axes else tensor


def jacobians(network: nn.Module, x: Inputs) -> Tensor:
    """``(N, C, P)``: of the network's outputs in all of its weights, for each of the N labels."""
    weights = dict(network.named_parameters())

    def outputs(weights: dict[str, Tensor], row: Inputs) -> Tensor:
        one = inputs.map_tensors(lambda tensor: tensor.unsqueeze(0), row)
        return inputs.call(network, one, weights).squeeze(0)  # (C, ...)

    try:
        with without_performance_warnings():
            parts = torch.func.vmap(torch.func.jacrev(outputs), (None, 0))(weights, x)  # {name: (B, C, ..., *shape)}
    except RuntimeError as error:
        raise StakesError(
            f"torch.func cannot differentiate this network for each example ({str(error).splitlines()[0][:120]}): use "
            "weights='last'"
        ) from error
    flat = [part.reshape(*part.shape[: part.ndim - weights[name].ndim], -1) for name, part in parts.items()]
    return torch.cat(flat, -1).movedim(1, -2).flatten(0, -3)


PRIOR_PRECISIONS = torch.logspace(-6, 6, 241, dtype=torch.float64)


class Structure(ABC):
    """A sum of curvatures over ``size`` weights; of a linear layer these are ``(outputs, inputs)``, in this order."""

    @abstractmethod
    def add(self, jacobians: Tensor, hessians: Tensor) -> None:
        """Add ``(N, C, P), (N, C, C)``."""

    @abstractmethod
    def add_linear(self, features: Tensor, hessians: Tensor, counts: Tensor) -> None:
        """Add ``(N, F), (N, C, C)`` of a linear layer, and ``(N,)`` how much each counts, which the Hessians have."""

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """``(P,)``: of the sum."""

    @abstractmethod
    def factors(self, prior_precision: float) -> dict[str, Tensor]:
        """The factors of the covariance ``(sum + prior_precision)^-1`` that `correlate` takes."""

    @staticmethod
    @abstractmethod
    def shapes(outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        """Of the factors, for ``outputs * inputs`` weights."""

    @staticmethod
    @abstractmethod
    def correlate(noise: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
        """``(P,)`` standard normal numbers to numbers with the covariance of ``factors``."""


class Full(Structure):
    def __init__(self, outputs: int, inputs: int) -> None:
        self.total = torch.zeros(outputs * inputs, outputs * inputs, dtype=torch.float64)

    def add(self, jacobians: Tensor, hessians: Tensor) -> None:
        jacobians = jacobians.double()
        self.total += (jacobians.flatten(0, 1).T @ (hessians @ jacobians).flatten(0, 1)).cpu()

    def add_linear(self, features: Tensor, hessians: Tensor, counts: Tensor) -> None:
        features, blocks = features.double(), self.total.view(hessians.shape[1], features.shape[1], -1)
        for line, block in zip(hessians.unbind(1), blocks, strict=True):  # (N, C), (F, C * F)
            block += (features.T @ (line.unsqueeze(2) * features.unsqueeze(1)).flatten(1)).cpu()

    def eigenvalues(self) -> Tensor:
        values: Tensor = torch.linalg.eigvalsh(self.total)
        return values

    def factors(self, prior_precision: float) -> dict[str, Tensor]:
        identity = torch.eye(len(self.total), dtype=torch.float64)
        root, failed = torch.linalg.cholesky_ex(self.total + prior_precision * identity)
        if failed:
            raise _not_positive()
        return {"root": torch.linalg.solve_triangular(root.T, identity, upper=True)}  # root root' is the covariance

    @staticmethod
    def shapes(outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        return {"root": (outputs * inputs, outputs * inputs)}

    @staticmethod
    def correlate(noise: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
        return factors["root"] @ noise


class Diagonal(Structure):
    def __init__(self, outputs: int, inputs: int) -> None:
        self.total = torch.zeros(outputs * inputs, dtype=torch.float64)

    def add(self, jacobians: Tensor, hessians: Tensor) -> None:
        jacobians = jacobians.double()
        self.total += (jacobians * (hessians @ jacobians)).sum((0, 1)).cpu()

    def add_linear(self, features: Tensor, hessians: Tensor, counts: Tensor) -> None:
        self.total += (hessians.diagonal(dim1=1, dim2=2).T @ features.double().square()).flatten().cpu()

    def eigenvalues(self) -> Tensor:
        return self.total

    def factors(self, prior_precision: float) -> dict[str, Tensor]:
        return {"sd": _sd(self.total + prior_precision)}

    @staticmethod
    def shapes(outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        return {"sd": (outputs * inputs,)}

    @staticmethod
    def correlate(noise: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
        return factors["sd"] * noise


class Kron(Structure):
    """Only of a linear layer."""

    def __init__(self, outputs: int, inputs: int) -> None:
        self.outer = torch.zeros(outputs, outputs, dtype=torch.float64)
        self.inner = torch.zeros(inputs, inputs, dtype=torch.float64)
        self.count = 0.0

    def add(self, jacobians: Tensor, hessians: Tensor) -> None:
        raise StakesError("expected weights='last' with structure='kron', but got 'all': use 'full' or 'diag'")

    def add_linear(self, features: Tensor, hessians: Tensor, counts: Tensor) -> None:
        features = features.double()
        self.outer += hessians.sum(0).cpu()
        self.inner += ((counts.unsqueeze(1) * features).T @ features).cpu()
        self.count += float(counts.sum())

    def eigenvalues(self) -> Tensor:
        outer, inner = (torch.linalg.eigvalsh(each) for each in (self.outer, self.inner))
        values: Tensor = outer.unsqueeze(1) * inner / self.count
        return values.flatten()

    def factors(self, prior_precision: float) -> dict[str, Tensor]:
        (outer, left), (inner, right) = torch.linalg.eigh(self.outer), torch.linalg.eigh(self.inner)
        return {
            "left": left,
            "right": right,
            "sd": _sd(outer.unsqueeze(1) * inner / self.count + prior_precision),  # (C, F)
        }

    @staticmethod
    def shapes(outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        return {"left": (outputs, outputs), "right": (inputs, inputs), "sd": (outputs, inputs)}

    @staticmethod
    def correlate(noise: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
        sd = factors["sd"]
        return (factors["left"] @ (sd * noise.view(sd.shape)) @ factors["right"].T).flatten()


class Gaussian:
    """Weights with a mean, and a covariance of some structure; without factors of it, the mean alone."""

    def __init__(self, mean: Tensor, factors: Mapping[str, Tensor], structure: type[Structure]) -> None:
        self.mean, self.factors, self.structure = mean, dict(factors), structure

    def to(self, device: torch.device, dtype: torch.dtype) -> "Gaussian":
        factors = {name: factor.to(device, dtype) for name, factor in self.factors.items()}
        return Gaussian(self.mean.to(device, dtype), factors, self.structure)

    def samples(self, seed: int, first: int, last: int) -> Tensor:
        """``(last - first, *shape of the mean)``: antithetic pairs of samples, the same on every device."""
        if not self.factors:
            return self.mean.expand(last - first, *self.mean.shape)
        size, samples = torch.Size([self.mean.numel()]), []
        for draw in range(first, last):
            noise = antithetic_normal(size, draw, seed, "laplace").to(self.mean)
            samples.append(self.mean + self.structure.correlate(noise, self.factors).view_as(self.mean))
        return torch.stack(samples)


def best_prior_precision(total: Structure, mean: Tensor) -> float:
    """The one of a grid with the highest evidence,

    log p(labels) = log p(labels | mean) + [P log a - a |mean|^2 - sum_i log(l_i + a)] / 2,

    for the precision a, and the eigenvalues l of the curvature.
    """
    eigenvalues, norm = total.eigenvalues(), mean.square().sum()
    evidence = [mean.numel() * a.log() - a * norm - (eigenvalues + a).log().sum() for a in PRIOR_PRECISIONS]
    best = int(torch.stack(evidence).nan_to_num(-math.inf).argmax())
    if best in (0, len(PRIOR_PRECISIONS) - 1):
        warnings.warn(
            f"the evidence has no maximum for a prior_sd between {PRIOR_PRECISIONS[-1] ** -0.5:g} and "
            f"{PRIOR_PRECISIONS[0] ** -0.5:g}: the nearest of these is taken; give a prior_sd instead",
            StakesWarning,
            stacklevel=3,
        )
    return float(PRIOR_PRECISIONS[best])


def _sd(precision: Tensor) -> Tensor:
    if not bool((precision > 0).all()):
        raise _not_positive()
    return precision.rsqrt()


def _not_positive() -> StakesError:
    return StakesError(
        "expected a network at a maximum of its posterior, but its curvature is not positive in all directions: train "
        "it longer, look for missing values in the inputs, or give a smaller prior_sd"
    )
