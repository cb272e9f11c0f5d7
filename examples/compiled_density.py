"""A density that is not JAX's: a few lines of C, compiled here, called by ctypes.

The posterior is that of a Poisson regression; its data are made up. C gives the log density and its
gradient for many points at a time; the same in JAX stands beside it.

    python examples/compiled_density.py
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import scoreascent as sa

RNG = np.random.default_rng(0)
X = RNG.normal(size=50)
COUNTS = RNG.poisson(np.exp(0.5 + 0.8 * X))

SOURCE = """
#include <math.h>

/* z = (level, slope), with standard normal priors; points, log densities and gradients are rows */
void log_density(const double *z, int n, const double *x, const double *y, int rows,
                 double *out, double *gradient) {
    for (int i = 0; i < n; ++i) {
        const double *at = z + 2 * i;
        double total = -0.5 * (at[0] * at[0] + at[1] * at[1]);
        double by_level = -at[0], by_slope = -at[1];
        for (int j = 0; j < rows; ++j) {
            double eta = at[0] + at[1] * x[j], mean = exp(eta);
            total += y[j] * eta - mean;
            by_level += y[j] - mean;
            by_slope += (y[j] - mean) * x[j];
        }
        out[i] = total;
        gradient[2 * i] = by_level;
        gradient[2 * i + 1] = by_slope;
    }
}
"""


def compiled(folder):
    """The function of the library, for arrays (n, 2) of numpy's."""
    source, library = Path(folder) / "density.c", Path(folder) / "density.so"
    source.write_text(SOURCE)
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-lm"], check=True
    )
    function = ctypes.CDLL(str(library)).log_density
    numbers = ctypes.POINTER(ctypes.c_double)
    x, y = np.ascontiguousarray(X), np.ascontiguousarray(COUNTS, np.float64)
    address = lambda array: array.ctypes.data_as(numbers)  # noqa: E731

    def log_density(z):
        z = np.ascontiguousarray(z)
        value, gradient = np.empty(len(z)), np.empty_like(z)
        data = (address(x), address(y), len(x))
        function(address(z), len(z), *data, address(value), address(gradient))
        return value, gradient

    return log_density


def in_jax(z, data):
    """The same in JAX."""
    x, y = data
    eta = z[0] + z[1] * x
    return jnp.sum(y * eta - jnp.exp(eta)) - 0.5 * jnp.sum(z**2)


def main():
    """Fit three times: C with its gradient, C without, JAX."""
    with tempfile.TemporaryDirectory() as folder:
        log_density = compiled(folder)
        results = {}
        # The gradient is held against differences at once; a wrong one is refused.
        target = sa.Target.from_host(log_density, "returned", dim=2, batched=True)
        results["C"] = sa.fit(target, key=0)
        # Without a gradient: particles find the start, and independent proposals do the rest.
        target = sa.Target.from_host(lambda z: log_density(z)[0], dim=2, batched=True)
        results["C, no gradient"] = sa.fit(target, key=0)
    target = sa.Target(in_jax, dim=2, data=(X.astype("f4"), COUNTS.astype("f4")))
    results["JAX"] = sa.fit(target, key=0)
    for name, result in results.items():
        print(f"\n{name}: {result.evaluations[0]} densities, {result.evaluations[1]} gradients")
        print(result)
    print("\nwhat the fit without a gradient says of itself:")
    for decision in results["C, no gradient"].decisions[:2]:
        print("-", decision)
    return results


if __name__ == "__main__":
    main()
