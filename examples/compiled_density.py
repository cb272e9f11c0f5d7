"""A density that is not JAX's: a few lines of C, compiled here, called by ctypes.

The posterior is that of a negative binomial's two parameters, by counts that are made up. C gives
the log density and its gradient for many points at a time; the same in JAX stands beside it.

    python examples/compiled_density.py
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

import scoreascent as sa

COUNTS = np.random.default_rng(0).negative_binomial(3.0, 0.3, size=40)

SOURCE = """
#include <math.h>

/* z = (log mean, log shape), two normal priors; points, log densities and gradients are rows */
static double digamma(double x) {
    double result = 0.0;
    for (; x < 6.0; x += 1.0) result -= 1.0 / x;
    double f = 1.0 / (x * x);
    return result + log(x) - 0.5 / x
        - f * (1.0 / 12.0 - f * (1.0 / 120.0 - f * (1.0 / 252.0 - f / 240.0)));
}

void log_density(const double *z, int n, const long *counts, int rows, double *out, double *slope) {
    for (int i = 0; i < n; ++i) {
        double m = exp(z[2 * i]), r = exp(z[2 * i + 1]);
        double total = -0.5 * (z[2 * i] * z[2 * i] / 9.0 + z[2 * i + 1] * z[2 * i + 1] / 4.0);
        double by_m = 0.0, by_r = 0.0;
        for (int j = 0; j < rows; ++j) {
            double y = (double) counts[j];
            total += lgamma(y + r) - lgamma(r) - lgamma(y + 1.0)
                + r * log(r / (r + m)) + y * log(m / (r + m));
            by_m += y - m * (r + y) / (r + m);
            by_r += digamma(y + r) - digamma(r) + log(r / (r + m)) + (m - y) / (r + m);
        }
        out[i] = total;
        slope[2 * i] = by_m - z[2 * i] / 9.0;
        slope[2 * i + 1] = r * by_r - z[2 * i + 1] / 4.0;
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
    pointer = ctypes.POINTER(ctypes.c_double)
    counts = np.ascontiguousarray(COUNTS, ctypes.c_long)

    def log_density(z):
        z = np.ascontiguousarray(z)
        value, slope = np.empty(len(z)), np.empty_like(z)
        function(
            z.ctypes.data_as(pointer),
            len(z),
            counts.ctypes.data_as(ctypes.POINTER(ctypes.c_long)),
            len(counts),
            value.ctypes.data_as(pointer),
            slope.ctypes.data_as(pointer),
        )
        return value, slope

    return log_density


def in_jax(z, y):
    """The same in JAX."""
    m, r = jnp.exp(z)
    terms = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)
    terms = terms + r * jnp.log(r / (r + m)) + y * jnp.log(m / (r + m))
    return jnp.sum(terms) - 0.5 * (z[0] ** 2 / 9 + z[1] ** 2 / 4)


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
    target = sa.Target(in_jax, dim=2, data=COUNTS.astype("f4"))
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
