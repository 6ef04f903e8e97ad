"""Mixtures of normal, log-normal and Student's t distributions against SciPy, their own atoms, and samples."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from stakes import Outcomes, StakesError
from stakes.mixtures import Atoms, GaussianMixture, LogNormalMixture, Mixture, StudentMixture, numbers
from stakes.mixtures.families import student_cdf

LOCATION, SCALE = [0.3, 1.1, 0.8], [0.4, 0.3, 0.5]
KINDS: dict[str, tuple[Callable[[Tensor, Tensor], Mixture], Callable[[float, float], stats.rv_continuous]]] = {
    "normal": (GaussianMixture, stats.norm),
    "log-normal": (LogNormalMixture, lambda m, s: stats.lognorm(s, scale=np.exp(m))),
    "student 3": (lambda m, s: StudentMixture(m, s, 3), lambda m, s: stats.t(3, m, s)),
    "student 6": (lambda m, s: StudentMixture(m, s, 6), lambda m, s: stats.t(6, m, s)),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def both(kind: str) -> tuple[Mixture, list]:
    make, of = KINDS[kind]
    components = [of(m, s) for m, s in zip(LOCATION, SCALE, strict=True)]
    return make(torch.tensor([LOCATION], dtype=torch.float64), torch.tensor([SCALE], dtype=torch.float64)), components


@kinds
def test_it_is_what_scipy_says(kind: str) -> None:
    mixture, components = both(kind)
    means = np.array([one.mean() for one in components])
    assert mixture.mean().item() == pytest.approx(means.mean())
    spread = np.mean([one.var() for one in components]) + means.var()
    assert mixture.variance().item() == pytest.approx(spread)
    for h in (0.2, 0.9, 2.5):
        at = torch.tensor([h], dtype=torch.float64)
        assert mixture.cdf(at).item() == pytest.approx(np.mean([one.cdf(h) for one in components]))
        assert mixture.log_prob(at).item() == pytest.approx(np.log(np.mean([one.pdf(h) for one in components])))
        tails = [integrate.quad(one.sf, h, np.inf)[0] for one in components]  # E max(y - h, 0)
        assert mixture.shortfall(at).item() == pytest.approx(np.mean(tails), abs=1e-7)


@kinds
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.75, 0.999])
def test_a_quantile_has_its_share_below(kind: str, share: float) -> None:
    mixture, _ = both(kind)
    assert mixture.cdf(mixture.quantile(share)).item() == pytest.approx(share, abs=1e-9)


def test_quantiles_of_components_far_apart_and_of_very_different_widths() -> None:
    location = torch.tensor([[0.0, 1e6], [5.0, 5.0], [-3.0, 9.0]], dtype=torch.float64)
    scale = torch.tensor([[1.0, 1e3], [1e-6, 1e4], [1e-3, 1e-3]], dtype=torch.float64)
    mixture = GaussianMixture(location, scale)
    for share in (0.01, 0.3, 0.6, 0.99):
        torch.testing.assert_close(mixture.cdf(mixture.quantile(share)), torch.full((3,), share).double())
    shares = torch.tensor([0.2, 0.6, 0.9], dtype=torch.float64)
    torch.testing.assert_close(mixture.cdf(mixture.quantile(shares)), shares)


@kinds
def test_the_atoms_say_the_same(kind: str) -> None:
    mixture, _ = both(kind)
    atoms = Atoms(mixture)
    assert mixture.shape == mixture.weights.shape == mixture.values.shape
    assert mixture.weights.sum().item() == pytest.approx(1)
    torch.testing.assert_close(mixture.log_weights.exp(), mixture.weights)
    torch.testing.assert_close(atoms.mean(), mixture.mean(), rtol=1e-6, atol=0)
    torch.testing.assert_close(atoms.variance(), mixture.variance(), rtol=2e-4, atol=0)
    at = torch.tensor([0.7], dtype=torch.float64)
    torch.testing.assert_close(atoms.shortfall(at), mixture.shortfall(at), rtol=0.01, atol=0)  # it has a kink
    torch.testing.assert_close(atoms.cdf(at), mixture.cdf(at), rtol=0, atol=0.03)  # it has a jump
    torch.testing.assert_close(atoms.quantile(0.8), mixture.quantile(0.8), rtol=0, atol=0.1)


def test_exponentials() -> None:
    mixture, components = both("normal")
    for c in (0.75, -2.0):
        expected = np.log(np.mean([np.exp(c * one.mean() + c**2 * one.var() / 2) for one in components]))
        assert mixture.log_mean_exp(c).item() == pytest.approx(expected)
        assert Atoms(mixture).log_mean_exp(c).item() == pytest.approx(expected)
    logs, components = both("log-normal")
    expected = np.log(np.mean([integrate.quad(lambda y, d=d: np.exp(-y) * d.pdf(y), 0, 40)[0] for d in components]))
    assert logs.log_mean_exp(-1.0).item() == pytest.approx(expected, rel=1e-6)
    for kind, c in (("log-normal", 1.0), ("student 3", -1.0)):
        with pytest.raises(StakesError, match="infinite"):
            both(kind)[0].log_mean_exp(c)


@pytest.mark.parametrize("df", [3, 5, 30, 300, 3_000, 30_000])
def test_the_atoms_of_student_are_fine_enough_for_any_degrees_of_freedom(df: int) -> None:
    mixture = StudentMixture(torch.zeros(1, 1), torch.ones(1, 1), df)
    assert (mixture.weights * mixture.values.square()).sum().item() == pytest.approx(df / (df - 2), rel=1e-5)
    distance = (mixture.weights * mixture.values.abs()).sum().item()
    assert distance == pytest.approx(2 * stats.t(df).expect(lambda z: z, lb=0, ub=np.inf), rel=0.01)  # it has a kink


@pytest.mark.parametrize("df", [3, 4, 5, 8, 31])
def test_the_distribution_function_of_student(df: int) -> None:
    z = torch.linspace(-12, 12, 201, dtype=torch.float64)
    np.testing.assert_allclose(student_cdf(z, df), stats.t.cdf(z, df), atol=1e-14)


@kinds
def test_shifts_and_numbers_that_cannot_be(kind: str) -> None:
    mixture, _ = both(kind)
    moved, h = mixture.shifted(2.0), torch.tensor([1.3], dtype=torch.float64)
    torch.testing.assert_close(moved.quantile(0.7), mixture.quantile(0.7) + 2)
    torch.testing.assert_close(moved.mean(), mixture.mean() + 2)
    torch.testing.assert_close(moved.variance(), mixture.variance())
    torch.testing.assert_close(moved.shortfall(h + 2), mixture.shortfall(h))
    torch.testing.assert_close(moved.values, mixture.values + 2)
    far = torch.tensor([-30.0], dtype=torch.float64)
    torch.testing.assert_close(mixture.shortfall(far), mixture.mean() + 30, rtol=1e-3, atol=0)
    if kind == "log-normal":
        assert mixture.cdf(far).item() == 0
        assert mixture.log_prob(far).item() == -torch.inf


@kinds
def test_draws_become_one_mixture_and_parts_are_joined(kind: str) -> None:
    make, _ = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    location, scale = torch.randn(4, 5, 1, generator=generator), torch.rand(4, 5, 1, generator=generator) + 0.1
    draws = make(location, scale)
    mixed = draws.mixture()
    assert (draws.shape[:2], mixed.shape[:1], mixed.location.shape) == ((4, 5), (5,), (5, 4))
    torch.testing.assert_close(mixed.mean(), draws.mean().mean(0))
    by_atoms = Outcomes(draws.weights, values=draws.values).mixture()
    torch.testing.assert_close(by_atoms.values, mixed.values)
    parts = Outcomes.cat([make(location[:, :2], scale[:, :2]), make(location[:, 2:], scale[:, 2:])], dim=1)
    assert isinstance(parts, type(draws))
    torch.testing.assert_close(parts.location, draws.location)
    keep = torch.tensor([True, False, True, False, False])
    assert torch.equal(mixed.rows(keep).location, mixed.location[keep])
    assert torch.equal(mixed.repeat(3).location[2], mixed.location)
    other = Outcomes(mixed.weights, values=mixed.values)
    joined = Outcomes.cat([mixed, other])
    assert not isinstance(joined, Mixture)
    torch.testing.assert_close(numbers(joined).mean(), torch.cat([mixed.mean(), mixed.mean()]), rtol=1e-5, atol=1e-5)


@kinds
def test_gradients(kind: str) -> None:
    make, _ = KINDS[kind]
    h = torch.tensor([0.9, 1.4], dtype=torch.float64)
    parameters = [torch.tensor(values, dtype=torch.float64).expand(2, 3).clone() for values in (LOCATION, SCALE)]
    leaves = tuple(tensor.requires_grad_() for tensor in parameters)
    for ask in ("shortfall", "cdf", "log_prob"):
        assert torch.autograd.gradcheck(lambda m, s, ask=ask: getattr(make(m, s), ask)(h), leaves)
    assert torch.autograd.gradcheck(lambda m, s: make(m, s).variance(), leaves)


def test_classes_have_no_numbers() -> None:
    with pytest.raises(StakesError, match="named classes"):
        numbers(Outcomes(torch.tensor([[0.2, 0.8]]))).mean()


def test_quantiles_of_atoms() -> None:
    outcomes = Outcomes(torch.tensor([[0.1, 0.4, 0.5], [0.3, 0.3, 0.4]]), values=torch.tensor([5.0, 1.0, 3.0]))
    atoms = Atoms(outcomes)
    assert atoms.quantile(0.4).tolist() == [1.0, 3.0]
    assert atoms.quantile(0.9).tolist() == [3.0, 5.0]
    assert atoms.quantile(torch.tensor([0.95, 0.05]).double()).tolist() == [5.0, 1.0]
