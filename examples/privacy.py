# %% [markdown]
# # What leaves a client, and what is refused
#
# For whoever has to answer for the data: which tensors each method sends, what stops a method that sends more, and what a run
# promises afterwards. docs/privacy.md explains the terms.

# %%
import json
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import unisono
from unisono.config import resolve
from unisono.core.config import merge
from unisono.core.errors import ClientError, UserError
from unisono.core.method import methods
from unisono.core.payload import Reveals
from unisono.experiment import Experiment

GIVEN = [word for word in sys.argv[1:] if not word.startswith("-")]
FOLDER = Path(GIVEN[0] if len(GIVEN) == 1 else tempfile.mkdtemp(prefix="unisono-"))
SMALL = {
    "data": {"dataset": "digits", "limit": 300},
    "partition": {"num_clients": 6},
    "model": {"backbone": "cfcl-cnn", "norm": "group"},
    "federation": {"rounds": 2},
    "evaluation": {"probe_every": 0, "probes": ["alignment"]},
    "engine": {"workers": 0},
    "report": {"enabled": False},
}


def recipe(name, **tables):
    """The tables of a run of this method: small ones, and on top of them those given."""
    return merge({**SMALL, "method": {"name": name}, "run": {"directory": str(FOLDER), "name": name}}, tables)


# %% [markdown]
# ## The declared shares
#
# A method declares what its clients may send, group by group, and what a group reveals about its owner. Weights of networks
# are `parameters`; the last two kinds need the owners' consent.

# %%
consent = {"allow_raw_representations": True, "share_data": True}
print(f"{'method':<18}what its clients send besides parameters")
for name in methods:
    experiment = Experiment.prepare(resolve(recipe(name, consent=consent)))
    shares = experiment.method.shares
    more = [f"{group}: {share.reveals.value}" for group, share in shares.items() if share.reveals is not Reveals.PARAMETERS]
    print(f"{name:<18}{', '.join(more) or '-'}")

# %% [markdown]
# ## Refused: no consent
#
# Nothing runs, and no directory is made, until `[consent]` says that the owners agree.

# %%
for name in ("fedca", "cfcl"):
    try:
        unisono.run(recipe(name))
    except UserError as error:
        print(f"\n{name} was refused: {error}")

# %% [markdown]
# ## Refused: more than was declared
#
# A careless method puts a vector per sample beside its weights. The engine checks every update against the declared shares
# before it leaves the client, so the declaration is not a matter of trust.


# %%
@unisono.register("careless")
class Careless(methods["simclr"]):
    """SimCLR that also sends its clients' features."""

    def client_step(self, nets, received, local, data, ctx):
        """The update of SimCLR, with the features of ten samples added to it."""
        update, local = super().client_step(nets, received, local, data, ctx)
        features = nets["encoder"](data.samples[data.indices[:10]].float() / 255)
        return replace(update, payload=update.payload.with_groups(features={"h": features.detach()})), local


try:
    unisono.run(recipe("careless", federation={"strict": True}))
except ClientError as error:
    print(f"\ncareless was stopped: {error}")

# %% [markdown]
# ## What a run states
#
# Orchestra's clients send centroids of clusters of equal size. `privacy.json` says what left, and how many samples stand behind
# the smallest centroid.

# %%
few = {"num_global_clusters": 8, "num_local_clusters": 4}
run = unisono.run(recipe("orchestra", method=few, report={"enabled": True, "points": 0}))
stated = json.loads((run.path / "privacy.json").read_text())
print(f"\norchestra: {', '.join(sorted(stated['leaves_a_client']))} left its clients")
print(f"  {stated['model_updates']}")
print(f"  {stated['centroids']['statement']}")

# %% [markdown]
# ## Noise on the updates
#
# User-level differential privacy clips each client's update and adds noise to the sum; the accountant says what it is worth.
# Among six clients a client is hardly hidden, and epsilon shows it. Needs the extra `dp`.

# %%
if find_spec("dp_accounting") is None:
    print("\nNoise needs an accountant: pip install 'unisono[dp]'")
else:
    noisy = unisono.run(
        recipe(
            "simclr",
            run={"name": "noisy"},
            privacy={"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-5},
            aggregation={"weighting": "uniform"},
            cohort={"participation": 0.5, "sampling": "poisson"},
        )
    )
    stated = json.loads((noisy.path / "privacy.json").read_text())
    print(f"\nsimclr with noise: {stated['model_updates']}")

# %% [markdown]
# ## In the report
#
# The section "Privacy" of a run's report says the same, for people who were not there.

# %%
print(f"Look at it: {run.path / 'report.html'}")
