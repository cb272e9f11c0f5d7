"""The paper's theory as functions: one per theorem, lemma and rate, in corrected form.

The source is Kim, Oh, Gardner, Dieng and Kim (NeurIPS 2022); docstrings cite its labels and,
where the printed formula is wrong, the number of the erratum. Everything here is plain float64
numpy, whatever jax's x64 flag says, and works elementwise on arrays that broadcast.

The notation is the paper's. ``w* = sup π/q_def`` enters as ``log_wstar = log w*``, from 0 (π = q)
to ``inf`` (the weights are unbounded), because w* itself overflows on ordinary problems;
``r = 1 − 1/w*``; ``n`` is the budget N, which for the CIS kernel counts the retained point;
``score_bound`` is L ≥ ‖s‖ and ``mu_norm`` is ‖E_π s‖.

The gradient bounds hold for a chain that starts anywhere and runs at a fixed λ, in expectation
over the whole chain. Given the last state alone (the paper's F_{t−1}) they do not: a chain that
sits on a bad point has a bias that no power of r shrinks.

- `mixing`: total-variation bounds and their rates.
- `gradient`: bounds on the second moment of the gradient.
- `mcgd`: the convergence table of Markov chain gradient descent.
- `imh`: the exact n-step independent Metropolis–Hastings kernel on a discrete space.
- `divergence`: KL, χ² and w*, for Gaussians and for probability vectors.
"""

from scoreascent.theory.divergence import (
    discrete_chi2,
    discrete_kl,
    discrete_log_wstar,
    divergence_chain_holds,
    gaussian_chi2,
    gaussian_kl,
    gaussian_log1p_chi2,
    gaussian_log_wstar,
    kl_star,
)
from scoreascent.theory.gradient import (
    jsa_bound,
    jsa_second_moment_sum,
    mcmc_bias_bound,
    msc_bound,
    msc_rb_bias,
    msc_rb_bound,
    pmcsa_bound,
    second_moment_bound,
)
from scoreascent.theory.imh import (
    imh_expectation_bound,
    imh_matrix,
    imh_nstep,
    rejection,
    rejection_bounds,
    t_n,
    t_n_bound,
)
from scoreascent.theory.mcgd import doan_nesterov_rate, doan_sgd_rate, duchi_rate
from scoreascent.theory.mixing import (
    imh_rate,
    jsa_mixing,
    jsa_rate,
    msc_mixing,
    msc_rate,
    msc_rb_rate,
    pmcsa_mixing,
    product_tv_bound,
)

__all__ = [
    "discrete_chi2",
    "discrete_kl",
    "discrete_log_wstar",
    "divergence_chain_holds",
    "doan_nesterov_rate",
    "doan_sgd_rate",
    "duchi_rate",
    "gaussian_chi2",
    "gaussian_kl",
    "gaussian_log1p_chi2",
    "gaussian_log_wstar",
    "imh_expectation_bound",
    "imh_matrix",
    "imh_nstep",
    "imh_rate",
    "jsa_bound",
    "jsa_mixing",
    "jsa_rate",
    "jsa_second_moment_sum",
    "kl_star",
    "mcmc_bias_bound",
    "msc_bound",
    "msc_mixing",
    "msc_rate",
    "msc_rb_bias",
    "msc_rb_bound",
    "msc_rb_rate",
    "pmcsa_bound",
    "pmcsa_mixing",
    "product_tv_bound",
    "rejection",
    "rejection_bounds",
    "second_moment_bound",
    "t_n",
    "t_n_bound",
]
