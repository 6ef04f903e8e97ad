"""Mixtures of normal, log-normal and Student's t distributions."""

import math
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

from stakes.mixtures.atoms import Atoms
from stakes.mixtures.base import Mixture

REACH, NODES = 8.0, 65  # of the quadrature, in standard deviations: the trapezoidal rule, exact to 1e-14 where smooth


class GaussianMixture(Mixture):
    """Components N(location, scale^2)."""

    def log_mean_exp(self, c: Tensor | float) -> Tensor:
        rate = torch.as_tensor(c, dtype=self.location.dtype, device=self.location.device).unsqueeze(-1)
        exponents = rate * self.location + (rate * self.scale).square() / 2
        return exponents.logsumexp(-1) - math.log(self.location.shape[-1])

    def shifted(self, by: float) -> Self:
        return type(self)(self.location + by, self.scale)

    def _nodes(self) -> tuple[Tensor, Tensor]:
        return _normal_nodes()

    def _means(self) -> Tensor:
        return self.location

    def _variances(self) -> Tensor:
        return self.scale.square()

    def _cdfs(self, h: Tensor) -> Tensor:
        return _normal_cdf((h - self.location) / self.scale)

    def _shortfalls(self, h: Tensor) -> Tensor:
        z = (h - self.location) / self.scale
        return self.scale * (_normal_log_density(z).exp() - z * _normal_cdf(-z))

    def _log_densities(self, y: Tensor) -> Tensor:
        return _normal_log_density((y - self.location) / self.scale) - self.scale.log()

    def _quantiles(self, share: Tensor) -> Tensor:
        return self.location + self.scale * torch.special.ndtri(share)  # type: ignore[no-any-return]


class LogNormalMixture(Mixture):
    """Components whose logarithm, less an ``offset`` of the amount, is N(location, scale^2)."""

    def __init__(self, location: Tensor, scale: Tensor, offset: float = 0.0) -> None:
        super().__init__(location, scale)
        self.offset = offset
        self._logs = GaussianMixture(self.location, self.scale)

    def log_mean_exp(self, c: Tensor | float) -> Tensor:
        if bool((torch.as_tensor(c) > 0).any()):
            return super().log_mean_exp(c)
        return Atoms(self).log_mean_exp(c)

    def quantile(self, share: Tensor | float) -> Tensor:
        return self._logs.quantile(share).exp() + self.offset

    def quantiles(self, levels: Tensor) -> Tensor:
        return self._logs.quantiles(levels).exp() + self.offset

    def shifted(self, by: float) -> Self:
        return type(self)(self.location, self.scale, self.offset + by)

    @property
    def _parameters(self) -> dict[str, Any]:
        return {"offset": self.offset}

    def _amount(self, standard: Tensor) -> Tensor:
        return standard.exp() + self.offset

    def _nodes(self) -> tuple[Tensor, Tensor]:
        return _normal_nodes()

    def _means(self) -> Tensor:
        return (self.location + self.scale.square() / 2).exp() + self.offset

    def _variances(self) -> Tensor:
        squares = self.scale.square()
        return squares.expm1() * (2 * self.location + squares).exp()

    def _cdfs(self, h: Tensor) -> Tensor:
        return torch.where(h > self.offset, self._logs._cdfs(self._log(h)), 0)

    def _shortfalls(self, h: Tensor) -> Tensor:
        above, log = h - self.offset, self._log(h)
        z = (self.location - log) / self.scale
        tail = self._means() - self.offset
        tail = tail * _normal_cdf(z + self.scale) - above * _normal_cdf(z)
        return torch.where(above > 0, tail, self._means() - h)

    def _log_densities(self, y: Tensor) -> Tensor:
        log = self._log(y)
        return torch.where(y > self.offset, self._logs._log_densities(log) - log, -torch.inf)

    def _quantiles(self, share: Tensor) -> Tensor:
        return self._amount(self._logs._quantiles(share))

    def _log(self, h: Tensor) -> Tensor:
        """Of what is above the offset; of the smallest number if nothing is."""
        return (h - self.offset).clamp_min(torch.finfo(h.dtype).tiny).log()


class StudentMixture(Mixture):
    """Components location + scale T, with T from Student's t of ``df`` degrees of freedom, a whole number above 2."""

    def __init__(self, location: Tensor, scale: Tensor, df: int) -> None:
        super().__init__(location, scale)
        self.df = df

    def shifted(self, by: float) -> Self:
        return type(self)(self.location + by, self.scale, self.df)

    @property
    def _parameters(self) -> dict[str, Any]:
        return {"df": self.df}

    def _nodes(self) -> tuple[Tensor, Tensor]:
        return _student_nodes(self.df)

    def _means(self) -> Tensor:
        return self.location

    def _variances(self) -> Tensor:
        return self.scale.square() * self.df / (self.df - 2)

    def _cdfs(self, h: Tensor) -> Tensor:
        return student_cdf((h - self.location) / self.scale, self.df)

    def _shortfalls(self, h: Tensor) -> Tensor:
        z = (h - self.location) / self.scale
        density = _student_log_density(z, self.df).exp()
        return self.scale * (density * (self.df + z.square()) / (self.df - 1) - z * student_cdf(-z, self.df))

    def _log_densities(self, y: Tensor) -> Tensor:
        return _student_log_density((y - self.location) / self.scale, self.df) - self.scale.log()

    def _quantiles(self, share: Tensor) -> Tensor:
        from scipy.special import stdtrit  # it takes a tenth of a second to import

        standard = torch.as_tensor(stdtrit(self.df, share.cpu().numpy())).to(self.location)
        # SciPy says +inf of a share of 0.
        return self.location + self.scale * torch.where(share.to(self.location) > 0, standard, -torch.inf)


def student_cdf(z: Tensor, df: int) -> Tensor:
    """P(T <= z) for a whole number of degrees of freedom, a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    ratio = z / math.sqrt(df)
    cosine = (1 + ratio.square()).rsqrt()
    odd = df % 2
    term = cosine if odd else torch.ones_like(cosine)
    total = term
    for number in range(2 + odd, df - 1, 2):
        term = term * cosine.square() * (number - 1) / number
        total = total + term
    inside = ratio * cosine * total  # ratio * cosine is the sine
    return 0.5 + (ratio.atan() + inside) / math.pi if odd else 0.5 + inside / 2


def _normal_cdf(z: Tensor) -> Tensor:
    return torch.erfc(z * -math.sqrt(0.5)) / 2  # as exact as torch.special.ndtr, and four times as fast


def _normal_log_density(z: Tensor) -> Tensor:
    return -(z.square() + math.log(2 * math.pi)) / 2


def _student_log_density(z: Tensor, df: int) -> Tensor:
    constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return constant - (df + 1) / 2 * torch.log1p(z.square() / df)


@cache
def _normal_nodes() -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # they may be needed for a gradient later
        nodes = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64)
        return nodes, (-nodes.square() / 2).log_softmax(0)


@cache
def _student_nodes(df: int) -> tuple[Tensor, Tensor]:
    # With z = sqrt(df) sinh(u) the density in u falls like exp(-df |u|), and z^2 times it like exp(-(df - 2) |u|). With
    # many degrees of freedom it is cosh(u)^-df that is narrow: nodes go as far as it is above exp(-40).
    with torch.inference_mode(False):
        reach = min(2 + 12 / (df - 2), math.acosh(math.exp(40 / df)))
        u = torch.linspace(-1, 1, 2 * NODES - 1, dtype=torch.float64) * reach
        return math.sqrt(df) * u.sinh(), (-df * u.cosh().log()).log_softmax(0)
