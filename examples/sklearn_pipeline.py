# %% [markdown]
# # The encoder in a scikit-learn pipeline
#
# For whoever has many unlabelled images at several sites and a few labelled ones in the office: the sites learn an encoder
# together, and the labels train an ordinary classifier on top of it. Pixels and untrained weights stand beside it, for without
# them the number says little.

# %%
import sys
import tempfile
from pathlib import Path

import joblib
import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import unisono
from unisono.evaluation.features import embed
from unisono.experiment import Experiment

GIVEN = [word for word in sys.argv[1:] if not word.startswith("-")]
FOLDER = Path(GIVEN[0] if len(GIVEN) == 1 else tempfile.mkdtemp(prefix="unisono-"))

# %% [markdown]
# ## An encoder from unlabelled garments
#
# Twenty clients of 100 images on average, each with few of the classes. The method sees no label.

# %%
run = unisono.run(
    "simclr",
    dataset="fashion-mini",
    clients=20,
    alpha=0.1,
    rounds=6,
    workers=0,
    name="garments",
    set=[
        f"run.directory={FOLDER}",
        "data.limit=2000",
        "cohort.size=10",
        "model.backbone=cfcl-cnn",
        "model.norm=batch",
        "views.preset=byol",
        "training.learning_rate=0.03",
        "evaluation.probes=['alignment']",
        "evaluation.probe_every=0",
        "report.enabled=false",
    ],
)
print(f"loss by round: {', '.join(format(entry['loss'], '.2f') for entry in run.metrics)}")

# %% [markdown]
# ## Three pipelines
#
# `EncoderTransformer` takes the run directory and images as they are, so it stands first in a pipeline.

# %%
experiment = Experiment.prepare(run.config)
untrained = experiment.method.encoder(experiment.initial_server())


def embed_untrained(images):
    """Features by random weights."""
    return embed(untrained, torch.from_numpy(images)).numpy()


def flatten(images):
    """Pixels as vectors."""
    return images.reshape(len(images), -1)


fronts = {
    "pixels": FunctionTransformer(flatten),
    "untrained weights": FunctionTransformer(embed_untrained),
    "learnt encoder": unisono.EncoderTransformer(run.path),
}
pipelines = {name: make_pipeline(front, StandardScaler(), LogisticRegression(max_iter=300)) for name, front in fronts.items()}

# %% [markdown]
# ## Few labels
#
# The labelled images are none of those that the clients hold: they come from one half of the test split, and 500 images of the
# other half test the pipelines. Three draws of the labelled ones, mean and standard deviation.

# %%
images, labels = experiment.dataset.test_samples.numpy(), experiment.dataset.test_labels.numpy()
pool, test = slice(0, 1000), slice(1000, 1500)
print(f"\n{'test accuracy, %':<20}" + "".join(f"{f'{count} per class':>16}" for count in (2, 5, 20)))
COUNTS = (2, 5, 20)
means = {}
for name, pipeline in pipelines.items():
    cells = []
    for count in COUNTS:
        scores = []
        for draw in range(3):
            order = np.random.default_rng(draw).permutation(1000)
            rows = np.concatenate([order[labels[pool][order] == label][:count] for label in range(10)])
            scores.append(pipeline.fit(images[pool][rows], labels[pool][rows]).score(images[test], labels[test]))
        means.setdefault(name, []).append(100 * np.mean(scores))
        cells.append(f"{100 * np.mean(scores):.1f} ± {100 * np.std(scores, ddof=1):.1f}")
    print(f"{name:<20}" + "".join(f"{cell:>16}" for cell in cells))

# %% [markdown]
# ## Kept for later
#
# A fitted pipeline is saved as any other.

# %%
learnt = pipelines["learnt encoder"]
joblib.dump(learnt, FOLDER / "classifier.joblib")
again = joblib.load(FOLDER / "classifier.joblib")
same = bool((again.predict(images[test]) == learnt.predict(images[test])).all())
print(f"\nSaved as {FOLDER / 'classifier.joblib'}; read back it {'predicts the same' if same else 'PREDICTS SOMETHING ELSE'}")

# %% [markdown]
# ## The plot

# %%
figure = Figure(figsize=(5, 3), layout="constrained")
axes = figure.subplots()
for name, values in means.items():
    axes.plot(COUNTS, values, marker="o", label=name)
axes.set(xlabel="labels per class", ylabel="accuracy, %", xticks=COUNTS)
axes.legend()
figure.savefig(FOLDER / "labels.png", dpi=150)
print(f"Look at it: {FOLDER / 'labels.png'}")
figure  # noqa: B018
