# %% [markdown]
# # Two methods under two heterogeneities
#
# For a researcher: which of two methods is better, does it depend on how unevenly classes are spread over the clients, and is
# the difference larger than what the seed does? Three seeds each, on 8x8 digits, so that it takes seconds. The same grid as a
# file, which survives a kill and shares finished runs, is a study: see docs/studies.md.

# %%
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import unisono
from unisono.config import resolve
from unisono.experiment import Experiment
from unisono.recipes import build_tree

GIVEN = [word for word in sys.argv[1:] if not word.startswith("-")]
FOLDER = Path(GIVEN[0] if len(GIVEN) == 1 else tempfile.mkdtemp(prefix="unisono-"))

METHODS = ("specloss", "simclr")
ALPHAS = {"few classes": 0.1, "all classes": 100.0}
SEEDS = (0, 1, 2)
SMALL = [
    f"run.directory={FOLDER}",
    "data.limit=300",
    "data.test_limit=200",
    "cohort.size=5",
    "model.backbone=cfcl-cnn",
    "model.norm=batch",
    "views.preset=none",
    "views.crop_scale=[0.5, 1.0]",
    "training.learning_rate=0.03",
    "method.projection_dim=64",
    "evaluation.probes=['linear']",
    "evaluation.probe_every=1",
    "report.enabled=false",
]

# %% [markdown]
# ## Who holds what
#
# A config can be looked at before it is run. `alpha` belongs to the Dirichlet distribution that deals the samples.

# %%
for label, alpha in ALPHAS.items():
    config = resolve(build_tree("simclr", {"dataset": "digits", "clients": 10, "alpha": alpha}, SMALL))
    experiment = Experiment.prepare(config)
    classes = [len(experiment.dataset.labels[rows].unique()) for rows in experiment.partition.indices]
    print(f"{label} (alpha {alpha:g}): a client holds {min(classes)} to {max(classes)} of the 10 classes")

# %% [markdown]
# ## Twelve runs
#
# Each is a directory with its config, log and checkpoints. Runs of one seed share their split, so methods are compared seed by
# seed. What random weights give is measured too: a probe means little without it.

# %%
curves: dict[tuple[str, str], list[list[float]]] = {}
untrained: dict[str, list[float]] = {label: [] for label in ALPHAS}
for (label, alpha), seed, method in product(ALPHAS.items(), SEEDS, METHODS):
    run = unisono.run(
        method,
        dataset="digits",
        clients=10,
        alpha=alpha,
        rounds=4,
        workers=0,
        seed=seed,
        name=f"{method}-{alpha:g}-{seed}",
        set=SMALL,
    )
    curves.setdefault((method, label), []).append([entry["probe.linear"] for entry in run.metrics])
    if method == METHODS[0]:
        experiment = Experiment.prepare(run.config)
        untrained[label].append(experiment.evaluator()(experiment.initial_server(), 0)["linear"])


# %% [markdown]
# ## The table
#
# Linear probe on all test images after the last round, in percent: mean and standard deviation over seeds.


# %%
def cell(values: list[float]) -> str:
    """Mean and sample standard deviation."""
    return f"{100 * np.mean(values):5.1f} ± {100 * np.std(values, ddof=1):3.1f}"


last = {key: [curve[-1] for curve in found] for key, found in curves.items()}
print(f"\n{'linear probe':<22}" + "".join(f"{label:>16}" for label in ALPHAS))
print(f"{'untrained weights':<22}" + "".join(f"{cell(untrained[label]):>16}" for label in ALPHAS))
for method in METHODS:
    print(f"{method:<22}" + "".join(f"{cell(last[method, label]):>16}" for label in ALPHAS))
first, second = METHODS
paired = {label: list(np.subtract(last[second, label], last[first, label])) for label in ALPHAS}
print(f"{f'{second} - {first}':<22}" + "".join(f"{cell(paired[label]):>16}" for label in ALPHAS))
print("The last line is paired by seed: a mean within its deviation is no difference.")

# %% [markdown]
# ## The plot

# %%
figure = Figure(figsize=(8, 3), layout="constrained")
panels = figure.subplots(1, len(ALPHAS), sharey=True)
for axes, label in zip(panels, ALPHAS, strict=True):
    for method in METHODS:
        values = 100 * np.array(curves[method, label])
        rounds = np.arange(1, values.shape[1] + 1)
        mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
        axes.plot(rounds, mean, label=method)
        axes.fill_between(rounds, mean - deviation, mean + deviation, alpha=0.2)
    axes.axhline(100 * np.mean(untrained[label]), color="grey", linestyle="--", label="untrained")
    axes.set(title=label, xlabel="round", xticks=rounds)
panels[0].set_ylabel("linear probe, %")
panels[0].legend()
figure.savefig(FOLDER / "comparison.png", dpi=150)
print(f"Runs for 'unisono show' and 'unisono compare': {FOLDER}")
print(f"Look at it: {FOLDER / 'comparison.png'}")
figure  # noqa: B018
