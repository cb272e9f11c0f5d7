"""The suite's posteriors of other shapes: exact moments and masses against draws of their own."""

import numpy as np
import pytest

from scoreascent.experiments.accuracy import exact, shapes
from scoreascent.experiments.accuracy.metrics import mass_error
from scoreascent.experiments.accuracy.models import MODELS
from scoreascent.experiments.accuracy.moments import LEVELS
from tests.stats import Z_MAX, Z_MUTANT

N = 20_000


def draws_of(name, rng):
    if name == "banana":
        x = rng.normal(size=N)
        return np.stack([x, 4 * (x**2 - 1) + rng.normal(size=N)], 1)
    if name == "ring":  # a normal radius, taken as often as it is long
        r = 5 + 0.3 * rng.normal(size=4 * N)
        r = r[rng.uniform(size=4 * N) < r / 8][:N]
        angle = rng.uniform(0, 2 * np.pi, len(r))
        return r[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    mixed = MIXED[name]()
    which = rng.choice(len(mixed.weights), N, p=mixed.weights / mixed.weights.sum())
    noise = rng.normal(size=(N, mixed.centres.shape[1]))
    if np.isfinite(mixed.df):
        noise /= np.sqrt(rng.chisquare(mixed.df, (N, 1)) / mixed.df)
    return mixed.centres[which] + mixed.scales[which, None] * noise


MIXED = {
    "forty-modes": shapes.forty_modes,
    "five-modes": shapes.five_modes,
    "students": shapes.students,
}


def worst_z(draws, mean, sd, quantiles, n):
    """How many standard errors the moments and quantiles of n independent draws are off."""
    squares, p = (draws - mean) ** 2, np.array(LEVELS)
    below = (draws[:, :, None] <= quantiles).mean(0)
    parts = [
        (draws.mean(0) - mean) / (sd / np.sqrt(n)),
        (squares.mean(0) - sd**2) / (squares.std(0) / np.sqrt(n)),
        (below - p) / np.sqrt(p * (1 - p) / n),
    ]
    return max(np.max(np.abs(z)) for z in parts)


@pytest.mark.parametrize("name", [*MIXED, "banana", "ring"])
def test_exact_moments_are_those_of_draws(name):
    known, draws = MODELS[name].exact(), draws_of(name, np.random.default_rng(4))
    n = len(draws)
    assert worst_z(draws, known.mean, known.sd, known.quantiles, n) < Z_MAX
    assert worst_z(draws, known.mean, 1.1 * known.sd, known.quantiles, n) > Z_MUTANT
    off = known.quantiles + 0.1 * known.sd[:, None]
    assert worst_z(draws, known.mean, known.sd, off, n) > Z_MUTANT


@pytest.mark.parametrize("name", MIXED)
def test_masses_are_those_of_draws(name):
    draws, (centres, masses) = draws_of(name, np.random.default_rng(5)), MODELS[name].masses()
    assert masses.sum() == pytest.approx(1)
    assert mass_error(draws, centres, masses) < Z_MAX * np.sqrt(masses.max() / N)
    assert mass_error(draws, centres, np.roll(masses, 1)) > 0.02


def test_modes_of_the_older_models_have_masses_too():
    for name, modes in (("bimodal", exact.two_modes()), ("trimodal", exact.three_modes())):
        centres, masses = MODELS[name].masses()
        np.testing.assert_array_equal(centres, modes.centres)
        np.testing.assert_array_equal(masses, modes.weights)


# -- by chains of other kinds ----------------------------------------------------------------------


def of_labels(rng, chains=2000, steps=450, burn=150):
    """Metropolis of many chains: small steps, leaps of one coordinate, labels at random."""
    y = shapes.labelled_data().astype(float)

    def log_p(z):
        each = -0.5 * (y[:, None] - z[:, None, :]) ** 2
        return np.logaddexp.reduce(each, -1).sum(1) - 0.5 * np.sum((z / 6) ** 2, 1)

    z, kept = 3 * rng.normal(size=(chains, 3)), []
    height, every = log_p(z), np.arange(chains)
    for step in range(steps):
        z = rng.permuted(z, axis=1)
        new = z + 0.25 * rng.normal(size=z.shape) * (step % 2)
        if step % 2 == 0:
            i = rng.integers(3, size=chains)
            new[every, i] += rng.normal(size=chains) * rng.choice([0.3, 3.0, 8.0], chains)
        above = log_p(new)
        moved = np.log(rng.uniform(size=chains)) < above - height
        z, height = np.where(moved[:, None], new, z), np.where(moved, above, height)
        if step >= burn and step % 50 == 0:
            kept.append(z)
    return np.concatenate(kept)


def of_spikes(rng, chains=300, steps=400, burn=100):
    """Gibbs: coefficients given who is a spike, and who is a spike given coefficients."""
    X, y = (x.astype(float) for x in shapes.patients())
    dim, kept = X.shape[1], []
    slab = rng.uniform(size=(chains, dim)) < 0.5
    for step in range(steps):
        sd = np.where(slab, shapes.SLAB, shapes.SPIKE)
        precision = X.T @ X / shapes.NOISE**2 + np.einsum("ci,ij->cij", sd**-2.0, np.eye(dim))
        root = np.linalg.cholesky(np.linalg.inv(precision))
        mean = np.linalg.solve(
            precision, np.tile(X.T @ y / shapes.NOISE**2, (chains, 1))[..., None]
        )
        z = (mean + root @ rng.normal(size=(chains, dim, 1)))[..., 0]
        odds = [np.log(p / s) - 0.5 * (z / s) ** 2 for p, s in
                ((shapes.INCLUDED, shapes.SLAB), (1 - shapes.INCLUDED, shapes.SPIKE))]  # fmt: skip
        slab = rng.uniform(size=z.shape) < 1 / (1 + np.exp(odds[1] - odds[0]))
        if step >= burn and step % 10 == 0:
            kept.append(z)
    return np.concatenate(kept)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "draw"), [("labels", of_labels), ("spikes", of_spikes)])
def test_moments_by_sums_are_those_of_other_chains(name, draw):
    """Independent chains, whose later states count for a fifth of as many draws."""
    known, draws = MODELS[name].exact(), draw(np.random.default_rng(6))
    n = len(draws) / 5
    assert worst_z(draws, known.mean, known.sd, known.quantiles, n) < Z_MAX
    assert worst_z(draws, known.mean + 0.2 * known.sd, known.sd, known.quantiles, n) > Z_MUTANT


@pytest.mark.slow
def test_labels_are_in_every_order_as_often():
    draws, (centres, masses) = of_labels(np.random.default_rng(7)), MODELS["labels"].masses()
    assert mass_error(draws, centres, masses) < 0.02
    assert mass_error(np.sort(draws, 1), centres, masses) > 0.5
