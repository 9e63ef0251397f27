# %% [markdown]
# # A method of your own
#
# For the author of a method: `align_uniform.py` beside this script is one, in a single file: a config, a loss and two networks.
# Here its loss is checked by hand, and it is trained and probed next to SimCLR, without touching the package.
# docs/adding-a-method.md has the whole contract.

# %%
import math
import sys
import tempfile
from pathlib import Path

import torch

import unisono
from unisono.core.method import methods
from unisono.experiment import Experiment
from unisono.testing import check_method

GIVEN = [word for word in sys.argv[1:] if not word.startswith("-")]
FOLDER = Path(GIVEN[0] if len(GIVEN) == 1 else tempfile.mkdtemp(prefix="unisono-"))
METHOD = (Path(__file__).parent if "__file__" in globals() else Path.cwd()) / "align_uniform.py"
SMALL = [
    f"run.directory={FOLDER}",
    "data.limit=400",
    "cohort.size=5",
    "model.backbone=cfcl-cnn",
    "model.norm=batch",
    "views.preset=none",
    "views.crop_scale=[0.5, 1.0]",
    "training.learning_rate=0.03",
    "method.projection_dim=64",
    "evaluation.probe_every=0",
    "report.enabled=false",
]
REPORT = ["report.enabled=true", "report.points=200"]
PLACE = {"dataset": "digits", "clients": 10, "alpha": 0.1, "workers": 0}

# %% [markdown]
# ## The loss by hand
#
# Losses are pure functions, so a closed form is one line. Two opposite points of a circle are 2 apart: with t = 2 their
# potential is exp(-2 * 4), so the uniformity is -8. Views that coincide have the alignment 0.

# %%
module = sys.modules[methods[str(METHOD)].__module__]
opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
uniform, aligned = float(module.uniformity(opposite, 2.0)), float(module.alignment(opposite, opposite))
print(f"uniformity of two opposite points {uniform:g} (by hand -8), alignment of equal views {aligned:g} (by hand 0)")
assert math.isclose(uniform, -8, rel_tol=1e-5)
assert aligned == 0

# %% [markdown]
# ## Trained and probed
#
# The file's path takes the place of a method's name, here and in `unisono run`. Every term that `loss` returns is in the log.

# %%
runs = {
    "align-uniform": unisono.run(METHOD, **PLACE, rounds=5, name="align-uniform", set=[*SMALL, *REPORT]),
    "simclr": unisono.run("simclr", **PLACE, rounds=5, name="simclr", set=SMALL),
}
for entry in runs["align-uniform"].metrics:
    terms = ", ".join(f"{name} {entry[name]:.3f}" for name in ("loss", "alignment", "uniformity"))
    print(f"round {entry['round'] + 1}: {terms}")

experiment = Experiment.prepare(runs["simclr"].config)
table = {"untrained weights": experiment.evaluator()(experiment.initial_server(), 0)}
table |= {name: {probe: run.metrics[-1][f"probe.{probe}"] for probe in ("linear", "knn")} for name, run in runs.items()}
print(f"\n{'test accuracy, %':<20}{'linear':>8}{'knn':>8}")
for name, probes in table.items():
    print(f"{name:<20}{100 * probes['linear']:>8.1f}{100 * probes['knn']:>8.1f}")

# %% [markdown]
# ## Same seed, bit-identical result
#
# Every draw comes from the context, so a second run ends with the same weights.

# %%
again = unisono.run(METHOD, **PLACE, rounds=5, name="again", set=SMALL)
first, second = runs["align-uniform"].server.flatten(), again.server.flatten()
same = all(torch.equal(first[name], second[name]) for name in first)
print(f"\nThe same seed gave {'bit-identical values' if same else 'OTHER VALUES'} in {len(first)} tensors")

# %% [markdown]
# ## Read back
#
# A finished run knows its method's file, so it can be loaded wherever that file lies.

# %%
loaded = unisono.load(FOLDER / "align-uniform")
print(f"Read back from {loaded.path}: {loaded.embed(experiment.dataset.test_samples).shape[1]} features per sample")

# %% [markdown]
# ## Checked
#
# `unisono check align_uniform.py` runs this from the command line: bit-identical results for any number of worker processes
# and after a resume, a client with one sample, a missing client, networks that another client left, and more.

# %%
results = check_method(str(METHOD))
for result in results:
    print(f"{'ok' if result.passed else 'FAILED':<8}{result.name:<30}{result.summary if result.passed else result.message}")
print(f"{sum(result.passed for result in results)} of {len(results)} checks passed")
print(f"Look at it: {loaded.path / 'report.html'}")
