"""A last-layer Laplace posterior, written by a user: q is Gaussian over the last linear layer, at its MAP fit."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from stakes import Draws, Likelihood, Posterior, families


@families.register("last_layer_laplace")
class LastLayerLaplace(Posterior):
    """The covariance, fitted after training, is ``(prior precision + Gauss-Newton)^-1`` over (C, F + 1) weights."""

    def __init__(self, network: nn.Sequential, likelihood: Likelihood | None = None, *, prior_sd: float = 1.0) -> None:
        super().__init__(likelihood)
        self.network, self.prior_sd = network, prior_sd
        size = network[-1].out_features * (network[-1].in_features + 1)
        self.register_buffer("factor", torch.zeros(size, size))  # of the covariance, lower triangular

    def outputs(self, x: Tensor, samples: int = 1) -> Tensor:
        return self.network(x).unsqueeze(0)  # training finds the mode: nothing is random

    def kl(self) -> Tensor:
        return sum(parameter.square().sum() for parameter in self.network.parameters()) / (2 * self.prior_sd**2)

    @torch.no_grad()
    def finish(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        precision = torch.eye(len(self.factor), dtype=torch.float64) / self.prior_sd**2
        for x, _ in batches:
            features = _with_one(self.network[:-1](x)).double()
            probs = self.network(x).double().softmax(-1)
            curvature = torch.diag_embed(probs) - probs.unsqueeze(2) * probs.unsqueeze(1)  # (B, C, C)
            blocks = torch.einsum("bcd,bf,bg->cfdg", curvature, features, features)
            precision += blocks.reshape(precision.shape)
        self.factor.copy_(torch.linalg.cholesky(precision.inverse()))

    def draw(self, samples: int, seed: int) -> Draws:
        return LaplaceDraws(copy.deepcopy(self).eval(), samples, seed)

    def settings(self) -> dict[str, Any]:
        return {"prior_sd": self.prior_sd}


class LaplaceDraws(Draws):
    def __init__(self, posterior: LastLayerLaplace, samples: int, seed: int) -> None:
        self.samples, self.likelihood = samples, posterior.likelihood
        self.body, last = posterior.network[:-1], posterior.network[-1]
        mean = torch.cat([last.weight, last.bias[:, None]], 1).detach()  # (C, F + 1)
        noise = torch.randn(samples, mean.numel(), generator=torch.Generator().manual_seed(seed))
        self.weights = mean + (noise @ posterior.factor.T).reshape(samples, *mean.shape)  # (S, C, F + 1)

    def outputs(self, x: Tensor, first: int, last: int) -> Tensor:
        return torch.einsum("bf,scf->sbc", _with_one(self.body(x)), self.weights[first:last])


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones_like(features[:, :1])], 1)
