"""`fit(target)`: a few rules that choose everything, say what they chose, and judge the outcome.

1. Start: Gaussians at what eight searches find (`laplace`), unless `q0` is given.
2. Family: full-rank up to 200 dimensions, rank 20 plus a diagonal beyond; from the second stage on
   a multivariate Student-t, where the chains' states are likelier under one (`tails`).
3. Chains: 128, or 2d if that is more, up to 512; 64 for a low-rank family; more of them, by
   (0.1/tolerance)², if a smaller tolerance is asked for.
4. Kernel: `IMH()` if q is full-rank and independent proposals of the start would be accepted often
   enough, otherwise `Cycle(IMH(), HMC())`.
5. Update: moment matching, γ_t = min(γ, t^−0.8), γ ≤ ¼ and less in many dimensions.
6. Stop: when averaged means and log sds are known to 0.3 of `tolerance`: 0.03 posterior sds, by
   windows of 20 steps.
7. Verdict: `diagnose()`. If it is not good, or draws of q are worth less than half of the
   posterior's, and the kernel was `IMH()`, the fit goes on from there with `Cycle(IMH(), HMC())`;
   with `IMH()` if they are worth 85 % and all that is missing is length.
   If it is not good and more steps may help, it goes on, with shorter steps unless it had
   converged: three stages at most, and a fourth where all that is missing is length.

Where data are many and nearly all proposals of the start are accepted, a density takes long and q
need not move: 64 chains of proposals from the start, and the next paragraph's rule to stop.

From 51 to 2000 dimensions, unless a start, a family, an update or a rule is given, independent
proposals would hardly be accepted, and there is one stage of another kind (`ladder`):

1. Start: where 16 short searches end, on their way up (`climbed`).
2. Family: full-rank.
3. Chains: 32 on a CPU, 64 on an accelerator, or `chains`; more if a smaller tolerance is asked for.
4. Kernel: `HMC` with trajectories of 0.6 to 3 sds, twice as long where a few coordinates lag.
5. Update: q is set from the late states and their gradients each time the steps have doubled.
6. Stop: when 3.5 standard errors of every mean and sd, in ℝᵈ and in the model's own space, are
   within `tolerance`, by the spread of the chains' own averages.
7. Verdict: `diagnose()`.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from rich.console import Console

from scoreascent._arrays import as_default
from scoreascent._batches import log_probs, piece
from scoreascent._progress import busy
from scoreascent._random import fold_in, split
from scoreascent.diagnostics.draws import standard_errors
from scoreascent.diagnostics.measure import sd_growth
from scoreascent.diagnostics.rules import (
    GOOD,
    LONGER,
    MAX_GROWTH,
    MAX_INVALID,
    NO_MOMENTS,
    STUCK,
    UNSEEN,
    WEIGH,
)
from scoreascent.diagnostics.verdict import Diagnosis
from scoreascent.families import (
    Defensive,
    Family,
    Flow,
    FullRank,
    FullRankStudentT,
    MeanField,
    Mixture,
)
from scoreascent.families.base import can_match
from scoreascent.families.flow import require_flows
from scoreascent.fitting import by_method
from scoreascent.fitting.ahead import Ahead
from scoreascent.fitting.arguments import Arguments
from scoreascent.fitting.centring import centred, is_open
from scoreascent.fitting.flows import Rounds, trained
from scoreascent.fitting.ladder import Ladder, first_metric
from scoreascent.fitting.result import DivergenceError, Result
from scoreascent.fitting.starts import MAX_MIXTURE, climbed, laplace, weighed, with_place
from scoreascent.fitting.stopping import Converged
from scoreascent.fitting.tails import heavier
from scoreascent.fitting.tempered import WIDE, tempered
from scoreascent.kernels import HMC, IMH, Count, Cycle, InBase, Kernel, Walk
from scoreascent.methods import pmcsa
from scoreascent.run import TOLERANCE, Start
from scoreascent.schedules import Decay
from scoreascent.searches import MAX_FULL_RANK, flat_direction, has_gradient
from scoreascent.target import MANY_DATA, Target
from scoreascent.update import DEFAULT, Still, Update, moment_matching

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

MIN_CHAINS, MAX_CHAINS, SPARSE_CHAINS = 128, 512, 64
PER_PART = 64  # chains, for every component of a mixture
MAX_MORE_CHAINS = 8  # times as many, where a smaller tolerance is asked for
MIN_ACCEPTANCE = 0.3  # of proposals from the start, that lets IMH do alone
MIN_WORTH = 0.5  # of a draw of q: below it, chains of independent proposals stay long in tails
WIDER = 6.0  # times q's sds, is the reference of a tempered start
BLIND = 1024  # particles that find the start of a density without a gradient
MAX_ANEW = 3  # times that a fit begins anew with one place more
MAX_STEPS, MAX_STAGES = 3000, 4  # iterations of a stage, and stages, the last to run longer
MIN_WORTH_TO_STAY = 0.85  # below it, what is not known well is not known from proposals alone
PROPOSALS_ALONE = IMH()
WITH_GRADIENTS = Cycle(IMH(), HMC())
WITH_WALKS = Cycle(IMH(), Walk(), Walk())  # where there is no gradient
WITH_CARE = Cycle(IMH(), HMC(acceptance=0.95))  # shorter steps, for parts of a smaller scale
# Where a flow has learnt the posterior's shape, chains are in its base space
IN_BASE = InBase(Cycle(IMH(Defensive(alpha=0.8)), HMC(length=1.5, acceptance=0.8, max_steps=16)))
MAX_FLOW = 50  # dimensions in which the fit turns to one, for so many stages of so many steps
FLOW_STAGES, FLOW_STEPS = 2, 1280
# In many dimensions chains move by themselves, by trajectories of several lengths
ON_THEIR_OWN = HMC(length=(0.6, 3.0), acceptance=0.8, max_steps=64, hurry=True, caution=20.0)
IN_WORDS = {
    PROPOSALS_ALONE: "proposals",
    WITH_GRADIENTS: "gradients",
    WITH_CARE: "short steps",
    WITH_WALKS: "walks",
    IN_BASE: "flow",
    ON_THEIR_OWN: "own chains",
}
MIN_LADDER, MAX_LADDER = 51, 2000  # dimensions
LADDER_STEPS, MIN_LADDER_STEPS, PILOT_STEPS = 20_480, 5, 80
# Few long chains where work is what costs, many short ones where launches are
LADDER_CHAINS, MANY_CHAINS = {"cpu": 32}, 64
SEARCHES = 16  # short ones, where the chains begin
FAR_AWAY = 1000.0  # for an sd, where none is known
EVERY = 20  # iterations of a window of the stopping rule
CLOSE, CHAINS_IF_CLOSE = 0.9, 64  # where so many proposals of the start are accepted of many data
LATER_WINDOWS = 16  # where a first look did not do
MARGIN, MAX_FINER = 1.3, 2.0  # times smaller a tolerance than is needed, and at most, in the next
MAX_MISFIT = 0.25  # nats, of log π/q at the chains' states: above, q has not their shape
MAX_WEIGHED = 2000  # states that tell
KNOWN = 0.3  # of the tolerance: so well must averaged means and log sds be known

Say = Callable[[str], None]


def fit(given: Arguments) -> Result:
    """Choose what was not given, fit in a few stages, and judge."""
    decisions: list[str] = []
    console = Console(stderr=True, quiet=not given.progress, highlight=False)

    def say(text: str) -> None:
        decisions.append(text)
        console.print(f"auto: {text}")

    if given.layout is not None:
        more = "; chains in multiples of that" if given.layout.chains > 1 else ""
        say(f"mesh: {given.layout.words()}{more}")
    for note in () if given.target.model is None else given.target.model.notes:
        say(note)
    key_start, key_fit, key_judge = split(given.key, 3)
    key_flow = fold_in(key_start, 8)
    differentiable = has_gradient(given.target)
    pilot = Count(0, 0)
    if differentiable and given.q is None and given.start is None and is_open(given.target):
        points = functools.partial(_late_points, given)
        with busy(given.progress, "a short run, to see how sites are stated best"):
            target, pilot = centred(given.target, fold_in(key_start, 7), points, say)
        given = replace(given, target=target)
    stage, kernel = _first_stage(given, differentiable, key_start, say)
    rule = _first_rule(given)
    cost = pilot if stage.start is None else pilot.plus(stage.start.evaluations)
    bent_at = 0  # as many when it turned to a flow
    begun: list[int] = []  # how many stages there were whenever the fit began anew
    for number in itertools.count(1):
        result = _fit(
            replace(
                stage,
                key=fold_in(key_fit, number),
                label=f"stage {number}, {IN_WORDS[kernel]}",
                checkpoint=_stage_path(given.checkpoint, number),
            )
        )
        if given.stop is None and isinstance(stage.stop, Converged):
            result = _told_by(result, rule)
        if isinstance(result.q, FullRankStudentT):  # steps do not fit its degrees of freedom
            result = replace(result, q=_student(result) or result.q)
        cost = cost.plus(result.method.evaluations(result.state.eta, result.steps))
        with busy(given.progress, f"judging stage {number}: weights, chains, searches from afar"):
            diagnosis = result.diagnose(fold_in(key_judge, number))
        cost = cost.plus(diagnosis.challenge_count)
        say(f"{result.provenance.get('stop', result.status)}; verdict: {diagnosis.verdict}")
        if result.status in ("interrupted", "stopped"):
            break
        if _bends(given, result, diagnosis, kernel, say):
            stage, kernel = _flow(given, result.q, result.states, key_flow, say), IN_BASE
            stage, bent_at = replace(stage, start=_gone_on(result, stage)), number
            continue
        next_kernel = _next_kernel(kernel, diagnosis, differentiable)
        most = MAX_STAGES if diagnosis.verdict == LONGER else MAX_STAGES - 1
        most = FLOW_STAGES if kernel == IN_BASE else most
        last = next_kernel is None or number - max(bent_at, *begun, 0) >= most
        key_anew = fold_in(key_start, number)
        start = None
        if differentiable:
            start = _other_start(given, result, diagnosis, begun, last, key_anew, say)
        if start is not None:
            begun.append(number)
            stage, kernel = _anew(given, start, key_anew, say)
            assert stage.start is not None
            cost = cost.plus(stage.start.evaluations)
            continue
        if last:
            break
        assert next_kernel is not None
        kernel = next_kernel
        say(f"goes on with kernel {kernel!r}, because {diagnosis.reason}")
        stage = _next_stage(given, stage, result, kernel, say)
        if given.stop is None and isinstance(stage.stop, Converged):
            stage = replace(stage, stop=_stricter(rule, diagnosis))
    return replace(result, decisions=tuple(decisions), diagnosis=diagnosis, evaluations=cost)


# -- stages ----------------------------------------------------------------------------------------


def _first_stage(
    given: Arguments, differentiable: bool, key: PRNGKeyArray, say: Say
) -> tuple[Arguments, Kernel]:
    """Return the arguments of the first stage, and its kernel."""
    if differentiable and _asks_nothing(given) and MIN_LADDER <= given.target.dim <= MAX_LADDER:
        return _ladder(given, key, say), ON_THEIR_OWN
    start, q = _start(given, key, say)
    if given.family == "flow":
        assert start is not None
        return replace(_flow(given, q, None, key, say), start=start), IN_BASE
    kernel: Kernel = PROPOSALS_ALONE
    rate = 0.0
    if start is not None:
        rate = _acceptance(given.target, start)
        if differentiable and (rate < MIN_ACCEPTANCE or q.is_sparse):
            kernel = WITH_GRADIENTS
        say(f"kernel: {kernel!r}, for {rate:.0%} of the start's own proposals are accepted")
    is_close = rate >= CLOSE and kernel == PROPOSALS_ALONE and _is_long(given)
    stage = _still(given, q) if is_close else _stage(given, q, kernel)
    assert stage.method is not None
    say(f"chains: {stage.method.chains}")
    if is_close:
        say("update: none, for q is close and a density of many data takes long")
    elif given.update is None:
        say(f"update: {stage.update!r}")
    return replace(stage, start=start), kernel


def _is_long(given: Arguments) -> bool:
    """Tell whether nothing was asked for and a density takes long, so that few of them must do."""
    return _asks_nothing(given) and given.target.data_size >= MANY_DATA


def _still(given: Arguments, q: Family) -> Arguments:
    """Return the arguments of a stage of proposals from a q that stands still."""
    n = given.chains or _over_devices(given, _more(given.tolerance) * CHAINS_IF_CLOSE)
    steps = MAX_STEPS if given.steps is None else given.steps
    stop = Ladder(tolerance=given.tolerance / standard_errors(n), most=max(steps, MIN_LADDER_STEPS))
    method = pmcsa(n, PROPOSALS_ALONE, batch=_batch(given))
    return replace(given, method=method, q=q, update=Still(), steps=steps, stop=stop)


def _batch(given: Arguments) -> int | None:
    """Return how many chains move at a time: as many as were asked for, or as the data allow."""
    return piece(given.target) if given.batch is None else given.batch


def _stage(given: Arguments, q: Family, kernel: Kernel) -> Arguments:
    """Return the arguments of a stage in which q follows chains that move by this kernel."""
    n = given.chains or _over_devices(given, _chains(q, given.tolerance))
    update = _update(q, n) if given.update is None else given.update
    stop = given.stop
    if stop is None and given.average is False:
        stop = _first_rule(given)
    steps = MAX_STEPS if given.steps is None else given.steps
    method = pmcsa(n, kernel, batch=_batch(given))
    return replace(given, method=method, q=q, update=update, steps=steps, stop=stop)


def _asks_nothing(given: Arguments) -> bool:
    """Tell whether start, family, update and rule are left to choose."""
    asked = (given.start, given.q, given.update, given.stop, given.average or None)
    return all(x is None for x in asked) and given.family == "auto"


def _ladder(given: Arguments, key: PRNGKeyArray, say: Say) -> Arguments:
    """Return the arguments of a fit by chains that move by themselves."""
    many = LADDER_CHAINS.get(jax.default_backend(), MANY_CHAINS)
    n = given.chains or _over_devices(given, _more(given.tolerance) * many)
    steps = LADDER_STEPS if given.steps is None else given.steps
    tolerance = given.tolerance / standard_errors(n)
    stop = Ladder(tolerance=tolerance, most=max(steps, MIN_LADDER_STEPS))
    stage = replace(
        given,
        method=pmcsa(n, ON_THEIR_OWN, batch=_batch(given)),
        q=first_metric(FullRank.standard(given.target.dim)),
        update=Still(),
        steps=steps,
        stop=stop,
    )
    searches = min(n, SEARCHES)
    with busy(given.progress, "searching where chains may begin"), Ahead() as ahead:
        by_method.compile_ahead(stage, searches, ahead)
        start = climbed(given.target, key, searches)
    _check_proper(given.target, start.q.mean, FAR_AWAY * np.ones(given.target.dim))
    kept = f"{start.kept} of {len(start.elbo)} short searches kept"
    say(f"start: {kept}; chains begin where these ended")
    say(f"family: {start.q.describe()}, for {given.target.dim} dimensions")
    say(f"kernel: {ON_THEIR_OWN!r}, for many dimensions")
    say(f"chains: {n}")
    say("update: from states and gradients, each time the number of steps has doubled")
    return replace(stage, q=first_metric(start.q), start=start)


def _bends(
    given: Arguments, result: Result, diagnosis: Diagnosis, kernel: Kernel, say: Say
) -> bool:
    """Tell whether a flow should take over: gradient moves did not help a Gaussian to be good."""
    asked = (given.q, given.start, given.update, given.stop, given.average or None)
    if any(x is not None for x in asked) or kernel not in (WITH_GRADIENTS, WITH_CARE):
        return False
    has_looked = result.start is not None and not np.isnan(result.start.log_evidence)
    if isinstance(result.q, Mixture) and not has_looked:  # for more modes
        return False
    if not 2 <= result.q.dim <= MAX_FLOW:
        return False
    elsewhere = diagnosis.verdict == UNSEEN and diagnosis.stray_at is not None
    if diagnosis.verdict not in (STUCK, UNSEEN, LONGER, WEIGH) or elsewhere:
        return False
    if diagnosis.verdict == LONGER and diagnosis.status == "converged":
        return False
    if diagnosis.invalid > MAX_INVALID:  # a flow would learn where not to ask
        return False
    if result.states is None:
        return False
    try:
        require_flows(result.q.dim)
    except ModuleNotFoundError as error:
        say(f"a flow may serve here, but {error}")
        return False
    say(f"turns to a flow, because {diagnosis.reason}")
    return True


def _flow(given: Arguments, q: Family, states: Any, key: PRNGKeyArray, say: Say) -> Arguments:
    """Return the arguments of a stage with a flow, trained on states if there are any."""
    flow = Flow.from_gaussian(q.envelope())
    if states is not None:
        flow = trained(flow, states, key)
    n = given.chains or _over_devices(given, _chains(flow, given.tolerance))
    steps = FLOW_STEPS if given.steps is None else given.steps
    stop = Rounds(tolerance=given.tolerance / standard_errors(n), most=max(steps, Rounds.first))
    say(f"family: {flow.describe()}, trained on the chains' states each time steps have doubled")
    say(f"kernel: {IN_BASE!r}; chains: {n}")
    method = pmcsa(n, IN_BASE, batch=given.batch)
    return replace(given, method=method, q=flow, update=Still(), steps=steps, stop=stop)


def _gone_on(result: Result, stage: Arguments) -> Start:
    """Return a start at the stage's q, with the chains where they are."""
    assert stage.q is not None
    start = result.start or Start(result.q, (), (0.0,), 1, True, (0, 0))
    return replace(start, q=stage.q, z=result.state.eta.z, before=start.first_q)


def _late_points(given: Arguments, target: Target, key: PRNGKeyArray) -> tuple[Any, Count]:
    """Return where chains that move by themselves are after a few steps."""
    quiet = replace(given, progress=False, throw=False, checkpoint=None, callback=None)
    few = replace(quiet, target=target, key=key, steps=PILOT_STEPS)
    stage = _ladder(few, key, lambda text: None)
    assert stage.start is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = by_method.fit(stage)
    cost = result.method.evaluations(result.state.eta, result.steps)
    return result.state.eta.z, cost.plus(stage.start.evaluations)


def _next_kernel(kernel: Kernel, diagnosis: Diagnosis, differentiable: bool) -> Kernel | None:
    """Return the kernel of the next stage; None if there should be none."""
    if kernel == ON_THEIR_OWN:
        return None
    if kernel == IN_BASE:
        good = diagnosis.verdict in (GOOD, WEIGH, NO_MOMENTS)
        return None if good else IN_BASE
    worth = diagnosis.ess / diagnosis.draws
    enough = worth >= (MIN_WORTH if diagnosis.verdict == GOOD else MIN_WORTH_TO_STAY)
    enough = enough and diagnosis.verdict in (GOOD, LONGER)  # of proposals, if only for longer
    if kernel == PROPOSALS_ALONE and not enough:
        return WITH_GRADIENTS if differentiable else WITH_WALKS
    if diagnosis.verdict == GOOD or diagnosis.final:
        return None
    more = diagnosis.verdict == LONGER and diagnosis.status == "converged"
    return WITH_CARE if kernel == WITH_GRADIENTS and not more else kernel


def _next_stage(
    given: Arguments, stage: Arguments, result: Result, kernel: Kernel, say: Say
) -> Arguments:
    """Return the arguments of a stage at the fitted q, with the chains where they are."""
    q = _family(result, say)
    if isinstance(stage.stop, Ladder) and not q.is_bent:  # q stood still, which did not do
        stage = _stage(given, q, kernel)
    else:
        method = pmcsa(result.method.chains, kernel, batch=stage.batch)
        stage = replace(stage, method=method, q=q)
    return replace(stage, start=_gone_on(result, stage))


def _other_start(
    given: Arguments,
    result: Result,
    diagnosis: Diagnosis,
    begun: list[int],
    last: bool,
    key: PRNGKeyArray,
    say: Say,
) -> Start | None:
    """Return where to begin anew, if mass was not seen or the chains are stuck; else None.

    One place that a search found becomes a component of its own. Otherwise all of the posterior is
    looked for, once, by particles that come from far outside q: if searches have found several
    modes, or as a last resort, since where the posterior is not of q's shape and gradient moves do
    not help, the mixture that particles end in may.
    """
    if given.q is not None or given.start is not None or given.target.dim > MAX_MIXTURE:
        return None
    strayed = diagnosis.verdict == UNSEEN and diagnosis.stray_at is not None
    if strayed and len(begun) < MAX_ANEW:
        say(f"begins anew with one place more, because {diagnosis.reason}")
        place, mass = diagnosis.stray_at, diagnosis.stray_mass
        return with_place(given.target, result.q, place, mass, key)
    if result.start is None or not np.isnan(result.start.log_evidence):
        return None
    several = not result.start.agree and diagnosis.verdict in (UNSEEN, STUCK)
    if not several and not (last and diagnosis.verdict in (UNSEEN, STUCK, WEIGH)):
        return None
    if type(result.q) is not FullRank and not isinstance(result.q, Mixture):
        return None
    wide: Any = result.q.envelope()
    mean, cov = (np.asarray(x, np.float64) for x in (wide.mean, wide.cov))
    say(f"begins anew from particles, because {diagnosis.reason}")
    reference = FullRank.from_moments(as_default(mean), as_default(WIDER**2 * cov))
    try:
        return tempered(given.target, key, reference)
    except ValueError:  # no particle came to the posterior
        return None


def _anew(given: Arguments, start: Start, key: PRNGKeyArray, say: Say) -> tuple[Arguments, Kernel]:
    """Return the arguments of a stage that begins there, and its kernel."""
    start = weighed(given.target, start, key)
    rate = _acceptance(given.target, start)
    kernel: Kernel = WITH_GRADIENTS if rate < MIN_ACCEPTANCE else PROPOSALS_ALONE
    say(f"family: {start.q.describe()}; {rate:.0%} of its proposals are accepted")
    return replace(_stage(given, start.q, kernel), start=start), kernel


def _family(result: Result, say: Say) -> Family:
    """Return the q of the next stage: a Student-t if the chains' late states are likelier there."""
    student = _student(result) if type(result.q) is FullRank else None
    if student is None:
        return result.q
    say(f"family: {student.describe()}, under which the chains' states are likelier")
    return student


def _student(result: Result) -> FullRankStudentT | None:
    """Return the Student-t of the chains' late states, if one fits, and better than a Gaussian."""
    states, dim = result.states, result.q.dim
    if states is None or states.shape[-1] != dim:
        return None
    z = np.asarray(states).reshape(-1, dim)
    student = heavier(z)
    if student is None:
        return None
    z = z[:: max(1, len(z) // MAX_WEIGHED)]
    log_w = log_probs(result.target, z) - log_probs(student, z)
    return student if float(np.std(log_w)) <= MAX_MISFIT else None


def _first_rule(given: Arguments) -> Converged:
    """Return the rule that must be met; later stages may be asked for more."""
    return Converged(tolerance=KNOWN * given.tolerance, every=EVERY)


def _told_by(result: Result, rule: Converged) -> Result:
    """Call a stage converged that has met the first rule, if not the stricter one it was given."""
    seen = result.convergence
    if result.status != "max_steps" or seen is None or rule.complaints(seen):
        return result
    stop = rule.words(seen, result.steps)
    return replace(result, status="converged", provenance={**result.provenance, "stop": stop})


def _stricter(rule: Converged, diagnosis: Diagnosis) -> Converged:
    """Return the rule of the next stage; it asks for more if a number was not known well enough."""
    missing = diagnosis.unsure / diagnosis.tolerance
    finer = 1 / float(np.clip(MARGIN * missing, 1.0, MAX_FINER)) if missing > 1 else 1.0
    return replace(rule, windows=LATER_WINDOWS, tolerance=finer * rule.tolerance)


def _fit(stage: Arguments) -> Result:
    """Fit by the stage's method, with a divergence named by its most likely cause."""
    try:
        return by_method.fit(stage)
    except DivergenceError as error:
        growth = sd_growth(error.result)
        if not growth > MAX_GROWTH:
            raise
        raise DivergenceError(
            f"q has grown by a factor of {growth:.0e}: log_density is constant, or the posterior "
            "improper; give it proper priors",
            error.result,
        ) from None


def _stage_path(checkpoint: Path | None, stage: int) -> Path | None:
    """Return the file of a stage: the later ones lie beside the first."""
    if checkpoint is None or stage == 1:
        return checkpoint
    return checkpoint.with_name(f"{checkpoint.name}.{stage}")


# -- choices ---------------------------------------------------------------------------------------


def _start(given: Arguments, key: PRNGKeyArray, say: Say) -> tuple[Start | None, Family]:
    """Return where to begin: the start that was given or searched for, if any, and the first q."""
    if given.start is not None:
        say(f"start: as given; {given.start}")
        return given.start, given.start.q
    if given.q is not None:
        say(f"start: the {type(given.q).__name__} that was given")
        return None, given.q
    if not has_gradient(given.target):
        return _without_gradient(given.target, key, say)
    with busy(given.progress, "searching for modes"), Ahead() as ahead:
        if given.target.dim <= MAX_FULL_RANK:  # what most fits begin with
            q: Family = FullRank.standard(given.target.dim)
            stage = _still(given, q) if _is_long(given) else _stage(given, q, PROPOSALS_ALONE)
            by_method.compile_ahead(stage, None, ahead)
        start = weighed(given.target, laplace(given.target, key), fold_in(key, 1))
    _check_proper(given.target, start.q.mean, start.q.sd)
    say(f"start: {start}")
    say(f"family: {start.q.describe()}, for {given.target.dim} dimensions")
    return start, start.q


def _check_proper(target: Target, mean: Any, sd: Any) -> None:
    """Refuse a density that does not fall far out."""
    if flat := flat_direction(target, mean, sd):
        raise ValueError(
            f"{flat}: it is constant there, or the posterior improper; give proper priors, or q0 "
            "if this is meant"
        )


def _without_gradient(target: Target, key: PRNGKeyArray, say: Say) -> tuple[Start | None, Family]:
    """Return where to begin with a density that jax cannot differentiate; say what is given up."""
    given_up = "log_density has no gradient: no searches, no gradient moves, no challenge by them"
    if target.dim <= MAX_MIXTURE:
        try:
            found = tempered(target, key, particles=BLIND, move=Walk())
            start = weighed(target, found, fold_in(key, 1))
            say(f"start: {BLIND} particles from N(0, {WIDE:g}² I), for {given_up}")
            say(f"family: {start.q.describe()}, for {target.dim} dimensions")
            return start, start.q
        except ValueError as error:
            say(str(error))
    q: Family = MeanField.standard(target.dim)
    if target.dim <= MAX_FULL_RANK:
        q = FullRank.standard(target.dim)
    say(f"start: N(0, I), for {given_up}, so give q0 if the posterior is far from there")
    return None, q


def _chains(q: Family, tolerance: float) -> int:
    """Return how many chains there are: more of them if more is asked for."""
    if q.is_sparse:
        return _more(tolerance) * SPARSE_CHAINS
    free = max(2 * q.dim, PER_PART * _parts(q))
    return _more(tolerance) * int(np.clip(32 * -(-free // 32), MIN_CHAINS, MAX_CHAINS))


def _over_devices(given: Arguments, n: int) -> int:
    """Return so many chains, or a few more that divide over the devices of a mesh."""
    return n if given.layout is None else given.layout.rounded(n)


def _parts(q: Family) -> int:
    """Return how many components q has."""
    return q.components if isinstance(q, Mixture) else 1


def _more(tolerance: float) -> int:
    """Return how many times more chains there are, if more is asked for."""
    return int(np.clip(np.ceil((TOLERANCE / tolerance) ** 2), 1, MAX_MORE_CHAINS))


def _update(q: Family, n: int) -> Update:
    """Return moment matching so slow that the noise in q hardly costs acceptance.

    A covariance that remembers 2n/γ points is off by d²γ/8n nats on average.
    """
    if not can_match(q):
        return DEFAULT
    free = 1 if q.is_sparse else q.dim
    first = float(np.clip(round(0.8 * n / (_parts(q) * free**2), 2), 0.01, 0.25))
    return moment_matching(Decay(first=first, power=0.8))


def _acceptance(target: Target, start: Start) -> float:
    """Return how often IMH would accept, in stationarity as the start's own points see it."""
    log_w = log_probs(target, start.z) - log_probs(start.q, start.z)
    log_w = log_w[np.isfinite(log_w)]
    if not len(log_w):
        return 0.0
    # the chain is at a point with probability ∝ its weight, the proposal is any of them
    here = np.exp(log_w - log_w.max())
    accept = np.exp(np.minimum(log_w[None] - log_w[:, None], 0))
    return float(np.sum(here[:, None] * accept) / (here.sum() * len(log_w)))
