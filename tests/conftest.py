"""Settings that every test shares."""

import os

import pytest

# A test run uses two processes on two cores: one thread each keeps them out of each other's way.
# Nearly all of its time is compilation of small programs that run once, so the compiler hurries.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0"
)


# Tests that only `make test-all` runs: seconds each, and others look at the same code. A name may
# be that of a test, or of one case of it.
LONG = {
    "test_families.py": (
        "test_q_stays_a_distribution_in_float32",
        "test_match_compiled_vmapped_and_in_float32",
        "test_kl_is_the_mean_log_ratio",
        "[student-t",
        "[mean-field",
        "-student-t]",
        "-mean-field]",
        "[low-rank",
        "-low-rank]",
        "test_families_fit_what_they_can_hold",
        "test_match_is_the_natural_gradient",
        "test_a_fresh_low_rank_member_is_not_at_a_saddle",
        "test_low_rank_match_is_the_best_factor_for_its_diagonal",
    ),
    "test_invariance.py": ("hmc-skewed-5d-",),
    "test_verdict.py": (
        "test_verdicts[good, rao-blackwellised]",
        "test_verdicts[student]",
        "test_verdicts[mean-field on twenty]",
        "test_it_leaves_the_result_alone_and_repeats_itself",
    ),
    "test_cells.py": ("test_killed_while_writing[writes0]",),
    "test_from_pymc.py": ("test_runs_in_float32_without_x64[covariance]",),
    "test_contract.py": ("[student-t]", "[full-rank-student-t]"),
    "test_hmc.py": (
        "test_long_runs_have_the_right_moments_while_learning",
        "test_learning_that_does_not_vanish_is_rejected",
        "test_the_step_size_learnt_from_a_wrong_rate_is_seen",
        "test_a_step_size_that_never_stops_is_seen",
        "test_the_step_size_is_learnt_and_stops_moving[MALA",
        "test_the_step_size_is_learnt_and_stops_moving[HMC(acc",
    ),
    "test_starts.py": ("test_",),
    "test_moment_matching.py": (
        "test_a_mean_field_fit_reaches_the_marginals_where_svi_does_not",
        "test_it_rests_at_the_optimum",
        "test_the_average_is_that_of_the_points_after_the_start",
    ),
    "test_six_models.py": ("test_",),
    "test_stopping.py": ("test_every_method", "test_every_family"),
    "test_examples.py": ("test_mean_field_fails_and_is_called_out", "test_robust_regression"),
    "test_accuracy.py": (
        "test_the_command_writes_its_tables_goes_on_and_draws_again",
        "test_a_full_rank_peer_finds_a_gaussian_in_the_order_of_z",
        "test_a_run_of_nuts_finds_a_gaussian_and_its_file_comes_back",
        "test_both_precisions_see_one_posterior",
        *(f"test_a_model_is_a_finite_density_of_its_dimension[{name}]" for name in (
            "regression-collinear", "softmax", "negative-binomial", "varying-means",
            "beta-binomial", "ar2", "growth", "trimodal", "local-level", "varying-slopes",
        )),
    ),
    "test_diagnostics.py": tuple(
        f"test_the_run_is_the_one_that_fit_does[{name}]"
        for name in ("pmcsa-rb", "pmcsa-adapted", "jsa", "msc", "msc-rb")
    ),
    "test_experiments.py": ("test_step_sizes_really_differ", "test_quick_figures[figure2"),
    "test_auto.py": (
        "test_every_choice_can_be_overruled",
        "test_never_called_good[flat",
        "test_the_same_key_gives_the_same_bits_and_another_other_ones",
    ),
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if any(name in item.name for name in LONG.get(item.path.name, ())):
            item.add_marker(pytest.mark.slow)
