# %% [markdown]
# # From your own images to an encoder, clusters and files
#
# For an engineer: images of several sites lie in folders, or in one `.npz` file. A simulation on one machine shows what a
# federation of the sites would learn, before anything is deployed (docs/deployment.md).
#
#     python examples/own_images.py OUTPUT                   # images are made from those inside the package
#     python examples/own_images.py OUTPUT sites/            # a folder per site, with images below it
#     python examples/own_images.py OUTPUT sites.npz         # arrays `x` (uint8 images) and `client` (names of sites)

# %%
import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import unisono
from unisono.config import resolve
from unisono.data.datasets import DataConfig, load_dataset
from unisono.experiment import Experiment
from unisono.runs.export import export

GIVEN = [] if any(word.startswith("-") for word in sys.argv[1:]) else sys.argv[1:]
FOLDER = Path(GIVEN[0] if GIVEN else tempfile.mkdtemp(prefix="unisono-"))
FOLDER.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## The images
#
# Without any of your own, three shops of 150 garments each: the first sells shoes and bags, the second tops, the third
# everything. A hundred more are kept aside as the new samples of tomorrow.

# %%
garments = load_dataset(DataConfig(dataset="fashion-mini", limit=2000))
tomorrow = garments.test_samples[:100].numpy()
if len(GIVEN) > 1:
    source = Path(GIVEN[1])
else:
    source = FOLDER / "sites"
    sells = {"shoes-and-bags": {5, 7, 8, 9}, "tops": {0, 2, 4, 6}, "everything": set(range(10))}
    for site, classes in sells.items():
        (source / site).mkdir(parents=True, exist_ok=True)
        rows = [row for row, label in enumerate(garments.labels.tolist()) if label in classes][:150]
        for number, row in enumerate(rows):
            Image.fromarray(garments.samples[row, 0].numpy()).save(source / site / f"{number:04}.png")

# %% [markdown]
# ## Sites as clients
#
# `partition.scheme = "natural"` takes each folder, or each name in the array `client`, as one client. Without labels
# there are scores that need none: alignment (views of an image are alike) and uniformity (different images are not).

# %%
settings = {
    "method": {"name": "simclr", "projection_dim": 128},
    "data": {"dataset": "npz" if source.suffix == ".npz" else "folder", "path": str(source), "test_fraction": 0.2},
    "partition": {"scheme": "natural"},
    "views": {"preset": "byol"},
    "model": {"backbone": "cfcl-cnn", "norm": "batch"},
    "training": {"learning_rate": 0.03},
    "federation": {"rounds": 6},
    "engine": {"workers": 0},
    "report": {"points": 200},
    "run": {"directory": str(FOLDER), "name": "encoder"},
}
if source.is_dir():
    settings["data"] |= {"image_size": 28, "channels": 1}
experiment = Experiment.prepare(resolve(settings))
sites = experiment.dataset.owner_names
for site, size in zip(sites, experiment.partition.sizes, strict=True):
    print(f"site {site}: {size} images")

learnt = unisono.run(settings)
before = experiment.evaluator()(experiment.initial_server(), 0)
for name in ("align", "uniformity", "score"):
    print(f"{name}: {before[name]:.3f} untrained, {learnt.metrics[-1][f'probe.{name}']:.3f} after 6 rounds")

# %% [markdown]
# ## Clusters
#
# Federated k-means on the features: only centroids and counts leave a site. How many clusters there are is for you to say. The
# run draws a contact sheet of held-out images. A cluster that one site fills alone may be that site's camera, or what it sells.

# %%
wanted = 8
on_top = {
    "method": {"name": "federated-kmeans", "features": "encoder", "num_clusters": wanted},
    "model": {**settings["model"], "pretrained": str(learnt.path)},
    "run": {"directory": str(FOLDER), "name": "clusters"},
}
run = unisono.run({**settings, **on_top})
clusters, confidence = run.cluster(experiment.dataset.samples)
owners = experiment.dataset.owners.numpy()
print("\ncluster  images  " + "  ".join(sites))
for cluster in range(wanted):
    counts = np.bincount(owners[clusters == cluster], minlength=len(sites))
    columns = "  ".join(f"{count:>{len(site)}}" for count, site in zip(counts, sites, strict=True))
    print(f"{cluster:>7}  {counts.sum():>6}  {columns}")
print(f"Contact sheet: {run.path / 'clusters' / 'sheet-1.png'}")

# %% [markdown]
# ## New samples
#
# The finished run is all that is needed: no data, no server. `embed` takes uint8 images, channels first or last.

# %%
loaded = unisono.load(run.path)
if loaded.method.info.input_shape == tomorrow.shape[1:]:
    features = loaded.embed(tomorrow)
    numbers, sure = loaded.cluster(tomorrow)
    np.savez_compressed(FOLDER / "new-features.npz", features=features, clusters=numbers)
    with (FOLDER / "new-clusters.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sample", "cluster", "confidence"])
        writer.writerows(
            (row, int(number), f"{value:.3f}") for row, (number, value) in enumerate(zip(numbers, sure, strict=True))
        )
    print(f"\n{len(features)} new images, {features.shape[1]} features each; the first is in cluster {numbers[0]}")

# %% [markdown]
# ## The encoder for elsewhere
#
# `torch-export` is one file that PyTorch runs without this package; `onnx` needs the extra `onnx`. Scaling of colours is part
# of the encoder, which takes floats from 0 to 1.

# %%
shape = loaded.method.info.input_shape
export(loaded.encoder, shape, "torch-export", FOLDER / "encoder.pt2")
elsewhere = torch.export.load(FOLDER / "encoder.pt2").module()
probe = torch.rand(5, *shape)
with torch.no_grad():
    difference = float((elsewhere(probe) - loaded.encoder(probe)).abs().max())
print(f"Encoder: {FOLDER / 'encoder.pt2'}; its features differ from those of the run by {difference:.0e} at most")
print(f"Look at it: {run.path / 'gallery.html'}")
