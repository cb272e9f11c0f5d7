"""What the site is made of beside the pages in docs/: files at the root, and the reference.

`GROUPS` has the public names in the order in which one reads them, each with a page of its own; a
test holds it against `scoreascent.__all__`. Submodules have one page each.
"""

ROOT_PAGES: dict[str, str] = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
    "examples/README.md": "examples/index.md",
}

GROUPS: dict[str, tuple[str, ...]] = {
    "Fitting": ("fit", "Result", "Converged", "Start", "State", "Trace", "use_cache"),
    "Targets and models": ("Target", "Param", "Model", "from_numpyro", "from_pymc"),
    "Where to start": ("laplace", "pathfinder", "tempered", "from_draws"),
    "Many fits": ("fit_many", "Fits"),
    "After a fit": ("Predictions", "compare", "calibrate", "Calibration", "load", "Handover"),
    "Families": (
        "MeanField",
        "FullRank",
        "LowRank",
        "StudentT",
        "FullRankStudentT",
        "Mixture",
        "Flow",
        "FewDirections",
        "Defensive",
        "kl",
    ),
    "Methods": (
        "pmcsa",
        "jsa",
        "msc",
        "msc_rb",
        "elbo",
        "ScoreAscent",
        "PathElbo",
        "Parallel",
        "Sequential",
        "Select",
        "gradient",
        "moment_matching",
    ),
    "Kernels": ("IMH", "CIS", "HMC", "MALA", "Walk", "Cycle", "Adapted", "InBase", "from_blackjax"),
    "To write your own": (
        "Config",
        "pytree",
        "Family",
        "Gaussian",
        "Kernel",
        "Adaptive",
        "Metropolis",
        "Moves",
        "Method",
        "Update",
        "Point",
        "Places",
        "Proposal",
        "Particles",
        "Info",
        "Count",
        "evaluate",
        "metropolis_probability",
    ),
    "Errors": ("CheckpointError", "DivergenceError", "LoadError", "ProcessLostError"),
}

MODULES: dict[str, str] = {
    "schedules": "Step sizes",
    "plots": "Pictures of a fit",
    "distributed": "Several processes at one fit",
    "diagnostics": "The gradient's variance along a run",
    "theory": "The paper's theorems as functions",
    "models.bnn": "Bayesian neural networks",
    "models.robust_gp": "Robust Gaussian processes",
    "models.gaussian": "Gaussian targets in closed form",
    "datasets": "The paper's data sets",
}

# a text, and modules, whose pages are above
WITHOUT_A_PAGE = (
    "__version__",
    "distributed",
    "plots",
    "schedules",
)
