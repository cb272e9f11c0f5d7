"""What a fit gives back."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from scoreascent._arrays import last_tenth
from scoreascent._extras import require
from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.adapters.arviz import to_arviz
from scoreascent.diagnostics.draws import SUMMARISED, Source, best_source, draw, named, summarise
from scoreascent.diagnostics.evidence import Evidence, evidence
from scoreascent.diagnostics.verdict import Diagnosis, diagnose
from scoreascent.diagnostics.weights import resample
from scoreascent.fitting.handover import Handover, hand_over
from scoreascent.fitting.predict import Predictions, predict
from scoreascent.fitting.saving import save
from scoreascent.fitting.showing import as_html, as_text
from scoreascent.run import Run, rests_on_chains

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


@dataclass(frozen=True, eq=False)
class Result(Run):
    """A fitted q and how it came about.

    With `replications`, every array has them in front, `result[i]` is the i-th fit on its own and
    `len(result)` their number; `status` is then one word for each.

    `decisions` says what `fit(target)` chose, `diagnosis` how it judges the outcome, and
    `evaluations` how many densities and gradients of the target it took.

    >>> import jax.numpy as jnp, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> result = sa.fit(target, sa.pmcsa(8), steps=5, progress=False)
    >>> result.status, result.q.mean.shape, result.trace.acceptance.shape
    ('max_steps', (2,), (5,))
    >>> result.sample(0, 100)["z"].shape
    (100, 2)
    """

    decisions: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    evaluations: tuple[int, int] | None = None

    @property
    def made(self) -> dict[str, Any]:
        """The former name of `provenance`, which goes with version 0.3."""
        message = "Result.made is now Result.provenance; the old name goes with version 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.provenance

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        if self.replications is None:
            raise TypeError("this result is one fit, without replications")
        return self.replications

    def __getitem__(self, i: int) -> Result:
        if not -len(self) <= i < len(self):
            raise IndexError(f"there is no replication {i}; there are {len(self)}, counted from 0")
        at = lambda tree: jax.tree.map(lambda x: x[i], tree)  # noqa: E731
        return replace(
            self,
            q=at(self.q),
            state=at(self.state),
            trace=at(self.trace),
            status=self.status[i],  # type: ignore[arg-type]
            target=at(self.target) if self.data_replicated else self.target,
            kept=None
            if self.kept is None
            else self.kept._replace(draws=at(self.kept.draws), rows=()),
            replications=None,
            data_replicated=False,
        )

    @property
    def draws_from(self) -> Source:
        """Where `sample` and `to_arviz` take their draws from, unless told.

        "chains" if the late steps kept enough states of many chains, else "q". But where q is a
        mixture or a flow that has the posterior's shape, by its weights and by the chains' means
        and sds, it is "q": fresh draws, as many as one likes, whose densities are known. The
        numbers of `summary` and `print` are the chains' own averages wherever these were kept.
        """
        has_shape = self.diagnosis is not None and self.diagnosis.q_has_shape
        return "q" if has_shape else best_source(self)

    def sample(
        self, key: PRNGKeyArray | int, n: int = 1000, draws: Source | None = None
    ) -> dict[str, Float[Array, "n ..."]]:
        """Return n draws of the posterior as named parameters inside their supports.

        A target stated by `dim` has the one name `"z"`. With replications they stand in front.

        `draws` says what they are: "chains", states of the chains in late steps; "resampled",
        draws of q by their importance weights; "q", draws of q as they are. Unless told, it is
        what `draws_from` says.
        """
        source = self.draws_from if draws is None else draws
        return draw(self, as_key(key), check_count("n", n, 1), source)

    def predict(
        self,
        key: PRNGKeyArray | int,
        *args: Any,
        n: int = 1000,
        draws: Source | None = None,
        anew: Sequence[str] = (),
        **kwargs: Any,
    ) -> Predictions:
        """Return what the model says of new data, at n draws of the posterior.

        - A NumPyro model is called with these arguments, as by NumPyro's `Predictive`: rows of
          your own, and None for what is to be drawn. What is observed in such a call is drawn in
          its shape.
        - A PyMC model takes other data for its `pymc.Data` by name, as `pymc.set_data` does.
        - Without arguments, both draw the data of the fit anew.
        - A plain target takes one function, of the parameters as its log density has them, or of a
          key and these: `predict(key, lambda params: …)`.

        Where a plate (or a dim) has another size than in the fit, the parameters in it are drawn
        given the others, with a warning unless `anew` names them; so it has new groups, if as many
        as there were.

        `draws` says what the n draws are, as for `sample`. The predictions are a mapping from names
        to draws, n in front, with `mean`, `sd` and `interval(0.9)`; `print` shows a table.

        >>> import jax.numpy as jnp, scoreascent as sa
        >>> target = sa.Target(lambda z: -0.5 * jnp.sum((z - 1) ** 2), dim=2)
        >>> result = sa.fit(target, sa.pmcsa(10), steps=2000, average=True, progress=False)
        >>> x = jnp.array([[1.0, 0.0], [1.0, 2.0]])
        >>> predictions = result.predict(0, lambda z: {"y": x @ z})
        >>> predictions["y"].shape, bool(abs(predictions.mean["y"][1] - 3) < 0.5)
        ((1000, 2), True)
        """
        source = self.draws_from if draws is None else draws
        return predict(self, key, args, kwargs, n=n, source=source, anew=anew)

    def summary(self, draws: Source | None = None) -> list[dict[str, Any]]:
        """Return mean, sd, 5, 50 and 95 % quantiles of every scalar parameter, as dictionaries.

        `mean_error` and `sd_error` say how well the first two are known: if they are of the
        chains, or of q and there is a diagnosis. They are of the chains' states where late steps
        kept enough of them, else of draws of q, unless `draws` tells. `tail` is the shape of the
        heavier tail; where it is so heavy that the sd or the mean cannot be known, that is NaN.
        With replications: the averages over the replications.
        """
        source = best_source(self) if draws is None else draws
        if self.diagnosis is not None and self.diagnosis.numbers and source == best_source(self):
            return [dict(row) for row in self.diagnosis.numbers]
        if self.kept is not None and self.kept.rows and source == best_source(self):
            return [dict(row) for row in self.kept.rows]
        return summarise(self, source)

    def diagnose(
        self,
        key: PRNGKeyArray | int | None = None,
        draws: int | None = None,
        steps: int | None = None,
    ) -> Diagnosis:
        """Tell whether to believe this fit: a verdict in words, and the numbers behind it.

        Draws of q (4000, or 1024 if data are many and these are as good as the posterior's, or
        as many as are asked for) are weighed against it; the chains take up to 400 more steps at
        the fitted q; and the fit goes on for `steps` iterations (a fifth of those done, if not
        said) to see whether λ would still move, unless a stopping rule has seen that it does not.
        The result itself stays as it is.

        The verdict is "good", "use with importance weights", "not converged: run longer", or names
        what is wrong: chains that did not mix, mass that was not seen, a posterior without a
        variance, a density that is not smooth; `print` shows reason and remedy. *Good* promises
        that every mean shown is within `tolerance` posterior sds and every sd within as large a
        share; before that is said, fresh searches from far outside q must come home to it.
        """
        if self.diagnosis is not None and key is None:
            return self.diagnosis
        return diagnose(self, 0 if key is None else key, draws, steps)

    def log_evidence(self, key: PRNGKeyArray | int = 0, draws: int = 10_000) -> Evidence:
        """Return the log of ∫ exp(log_density) over ℝᵈ: its `value`, and its standard `error`.

        That is the marginal likelihood of the data if log_density is the joint density of data and
        parameters with all its constants, as NumPyro and PyMC give it; what a density written by
        hand leaves out, the evidence lacks. Terms of transforms to ℝᵈ do not change it.

        It is an average of importance weights where these have a finite variance, and a bridge
        between draws of q and states of the chains where they do not. Where neither can be known
        a ValueError says why.

        >>> import jax.numpy as jnp, scoreascent as sa
        >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
        >>> found = sa.fit(target, progress=False).log_evidence()
        >>> bool(abs(found.value - np.log(2 * np.pi)) < 4 * found.error < 0.05)
        True
        """
        verdict = None if self.diagnosis is None else self.diagnosis.verdict
        return evidence(self, key, draws, verdict)

    def to_arviz(
        self,
        key: PRNGKeyArray | int = 0,
        n: int = 1000,
        draws: Source | None = None,
    ) -> Any:
        """Return ArviZ's container of the installed version: `InferenceData` or `DataTree`.

        Groups: `posterior` (n draws, as four chains of independent draws), `chains` (up to 400
        states of each of the chains: late ones if the fit has kept them, else at the fitted q),
        `sample_stats` (log densities, smoothed importance weights, k̂, acceptance) and, for targets
        made of a model, `observed_data`, `posterior_predictive` and `log_likelihood`. Its
        attributes say how the fit was made.

        `draws` says what the n draws are: of q; of q and `resampled` by importance weights; or
        states of the `chains`, taken at random. Unless told, it is what `draws_from` says. What
        depends on tails, such as `arviz.loo`, is better with one of the last two, unless q is close
        to the posterior.
        """
        return to_arviz(self, key, n, self.draws_from if draws is None else draws)

    def to_nuts(
        self, key: PRNGKeyArray | int = 0, chains: int = 4, dense: bool | None = None
    ) -> Handover:
        """Return where NUTS may begin, and its inverse mass matrix, so that it needs no warm-up.

        Its chains begin at late states of this fit's, and the matrix is these' covariance: in the
        coordinates in which NumPyro and PyMC sample a model, whatever the fit's own. It is dense up
        to 200 dimensions unless `dense` tells. See `Handover` for what to do with it.

        >>> import jax, jax.numpy as jnp, scoreascent as sa
        >>> from numpyro.infer import MCMC, NUTS
        >>> target = sa.Target(lambda z: -0.5 * jnp.sum((z / jnp.array([1e-3, 1e3])) ** 2), dim=2)
        >>> kernel, run = sa.fit(target, progress=False).to_nuts().numpyro()
        >>> options = {"chain_method": "vectorized", "progress_bar": False}
        >>> sampler = MCMC(NUTS(**kernel), num_warmup=50, num_samples=250, num_chains=4, **options)
        >>> sampler.run(jax.random.key(0), **run, extra_fields=("num_steps",))
        >>> bool(sampler.get_extra_fields()["num_steps"].mean() < 8)
        True
        """
        return hand_over(self, key, chains, dense)

    def resample(
        self, key: PRNGKeyArray | int, n: int = 1000, draws: int | None = None
    ) -> dict[str, Float[Array, "n ..."]]:
        """Return n draws of the posterior: some of many draws of q, by smoothed importance weights.

        `draws` is how many are drawn of q first, 10 n if not said. They are no better than the
        weights: look at `diagnose().k_hat`, which should be below 0.7.
        """
        n = check_count("n", n, 1)
        draws = 10 * n if draws is None else check_count("draws", draws, n)
        return named(self, resample(self, key, n, draws))

    def save(self, path: str | PathLike[str], draws: int = SUMMARISED) -> None:
        """Write all of this but the target's code into one file, for `sa.load`.

        The file holds plain arrays and a JSON header, no pickle, and is written whole or not at
        all. It knows its posterior by its names, its data, and its log density at a few fixed
        points. So that it tells something without the target too, up to `draws` named draws of
        `draws_from` are in it (fewer of so many parameters that they would be 2²⁶ numbers); those
        of a target stated by `dim` need no names, and none are written.
        """
        save(self, path, draws)

    @property
    def invalid(self) -> int:
        """At how many proposals log p was NaN or +∞.

        Where a fit rests on late states, how its chains found their way there does not matter.
        """
        invalid = self.trace.invalid
        late = invalid.shape[-1] // 2 if rests_on_chains(self) else 0
        return int(np.sum(invalid[..., late:]))

    def warnings(self) -> list[str]:
        """Say what went wrong, or makes the fit doubtful, in words; nothing if nothing was seen."""
        trace, says = self.trace, []
        if not trace.loss.shape[-1]:
            return ["no iteration was run"]
        statuses = {self.status} if isinstance(self.status, str) else set(self.status)
        if "diverged" in statuses:
            says.append(
                "diverged: the last steps would all have made q non-finite; try a smaller step "
                "size, another start q0, or look at the target's gradient"
            )
        if "stop" in self.provenance and statuses - {"converged", "diverged"}:
            says.append(self.provenance["stop"])
        if skipped := int(np.sum(trace.skipped)):
            says.append(
                f"{skipped} of {trace.skipped.size} updates were skipped because the loss or its "
                "gradient was not finite"
            )
        if invalid := self.invalid:
            says.append(
                f"log p was NaN or +∞ at {invalid} proposals; they were treated as impossible"
            )
        late = float(np.mean(last_tenth(trace.acceptance)))
        if late < 0.01:
            says.append(
                f"chains hardly move (acceptance {late:.2%} over the last tenth): q need not be "
                "the inclusive-KL optimum, and its spreads may be far too small or too large"
            )
        return says

    def report(self, path: str | PathLike[str] = "fit.html", key: PRNGKeyArray | int = 0) -> Path:
        """Write one page for a browser, which needs no network, and return its path.

        It shows the verdict and what it rests on, the numbers with their errors, marginals and
        pairs of the scalars that matter most, how the run went, what was decided, and the versions.
        A fit without a verdict is diagnosed first. Needs the extra `plots`.
        """
        page = require("scoreascent.page", "plots", "the report")
        written: Path = page.write(self, path, key)
        return written

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


class DivergenceError(RuntimeError):
    """Every one of the last updates would have made q non-finite. `.result` is what there was.

    >>> import math, jax.numpy as jnp, optax, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> try:
    ...     sa.fit(target, sa.pmcsa(4), optimizer=optax.sgd(math.nan), progress=False)
    ... except sa.DivergenceError as error:
    ...     print(error.result.status)
    diverged
    """

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result
