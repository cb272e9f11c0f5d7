"""No Python but the model: a CSV file and one command make a folder with all that a fit says.

Yields of plots in four fields, by how much was sown. The script writes such a table and calls

    scoreascent fit examples/from_a_table.py:yields --data out/table/plots.csv --out out/table/fit

which is all that a user of the command types. Columns become the model's arguments by name.

    python examples/from_a_table.py
"""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist

import scoreascent as sa

SLOPE, FIELDS = 0.8, {"east": 1.0, "north": 2.0, "south": 3.0, "west": 2.5}


def yields(sown, field, harvest, field_labels):
    """A line with an intercept for each field; texts come as codes, their labels beside them."""
    slope = numpyro.sample("slope", dist.Normal(0, 5))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("fields", len(field_labels)):
        intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    numpyro.sample("harvest", dist.Normal(intercept[field] + slope * sown, noise), obs=harvest)


def write_plots(path, plots=60):
    """Simulate a table, with a column that the model does not ask for."""
    rng = np.random.default_rng(0)
    names = rng.choice(list(FIELDS), plots)
    sown = rng.uniform(0, 4, plots)
    harvest = [FIELDS[f] + SLOPE * x + 0.3 * rng.normal() for f, x in zip(names, sown)]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["plot", "field", "sown", "harvest"])
        table.writerows(zip(range(plots), names, sown.round(3), np.round(harvest, 3)))


def main(folder="out/table"):
    """Write the table, run the command, and read what it left."""
    data, out = Path(folder) / "plots.csv", Path(folder) / "fit"
    data.parent.mkdir(parents=True, exist_ok=True)
    write_plots(data)
    model = f"{os.path.relpath(__file__)}:yields"
    command = ["fit", model, "--data", str(data), "--out", str(out)]
    print("scoreascent", *command)
    subprocess.run([sys.executable, "-m", "scoreascent", *command], check=True)
    print(*sorted(path.name for path in out.iterdir()))
    result = sa.load(out / "fit.npz")  # without the model: numbers, draws, verdict
    print(f"P(slope > 0.7) = {np.mean(result.sample(0, 1000)['slope'] > 0.7):.2f}")
    return result


if __name__ == "__main__":
    main()
