import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from unisono.core.config import make_section
from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, Dataset, datasets, hold_out_test, load_dataset

IMAGES = torch.arange(20 * 3 * 6 * 8, dtype=torch.int64).remainder(256).to(torch.uint8).reshape(20, 3, 6, 8)
LABELS = torch.arange(20) % 4
NAMES = ("a", "b", "c", "d")


def make(**changes):
    fields = {
        "name": "made",
        "samples": IMAGES,
        "labels": LABELS,
        "test_samples": IMAGES[:8],
        "test_labels": LABELS[:8],
        "class_names": NAMES,
        "owners": torch.arange(20) // 10,
        "owner_names": ("x", "y"),
    }
    return Dataset(**{**fields, **changes})


def my_loader(config):
    return make()


def load_unlabelled(config):
    return make(name="mine", labels=None, test_labels=None)


def not_a_loader(config):
    return IMAGES


MINE = f"{__name__}:my_loader"


def test_properties_describe_the_samples():
    dataset = make()
    assert dataset.input_shape == (3, 6, 8)
    assert dataset.num_classes == 4
    scaled = IMAGES.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(dataset.mean, scaled.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(dataset.std, scaled.std(axis=(0, 2, 3)), rtol=1e-12)
    assert dataset.mean is dataset.mean, "the statistics are computed once"
    assert make(labels=None).num_classes is None


def test_statistics_survive_the_way_to_another_process():
    dataset = make()
    assert pickle.loads(pickle.dumps(dataset)).mean == dataset.mean


def test_a_series_is_described_as_it_is():
    series = torch.linspace(-3, 5, 2 * 2 * 7).reshape(2, 2, 7)
    dataset = Dataset("series", series, None, series[:0], None)
    assert dataset.input_shape == (2, 7)
    np.testing.assert_allclose(dataset.mean, series.double().mean((0, 2)).numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": IMAGES.int()}, "uint8, uint16 or float32"),
        ({"samples": IMAGES.float(), "test_samples": IMAGES[:0].float()}, r"must lie in \[0, 1\]"),
        ({"samples": IMAGES[:0], "labels": None, "owners": None}, "no training samples"),
        ({"test_samples": IMAGES[:8, :1]}, "must be alike"),
        ({"labels": LABELS[:5]}, r"labels .* must be int64 of shape \(20,\)"),
        ({"labels": LABELS.int()}, "int64"),
        ({"labels": LABELS + 1}, "labels .* between -1 and 3"),
        ({"test_labels": LABELS[:8] - 2}, "test_labels .* between -1 and 3"),
        ({"owners": torch.full((20,), -1)}, "owners .* between 0 and 1"),
        (
            {"samples": torch.full((20, 1, 4), torch.nan), "test_samples": torch.zeros(0, 1, 4), "test_labels": None},
            "not finite",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        make(**changes)


def test_unknown_labels_are_allowed():
    assert make(labels=torch.full((20,), -1)).num_classes == 4


def test_the_default_needs_nothing():
    assert load_dataset(DataConfig()).name == "fashion-mini"


def test_a_loader_of_the_users_own_is_found_by_its_path():
    assert load_dataset(DataConfig(dataset=MINE)).name == "made"
    with pytest.raises(UserError, match="must return a Dataset, got Tensor"):
        load_dataset(DataConfig(dataset=f"{__name__}:not_a_loader"))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match=r"fashion-mini.*tiny-imagenet"):
        load_dataset(DataConfig(dataset="imagenet"))


def test_all_sources_are_registered():
    names = "cifar10 cifar100 cifar20 digits fashion-mini fashion-mnist folder hub mnist npz stl10 tiny-imagenet watch"
    assert set(datasets).issuperset(names.split())


def joined_loader(config):
    unknown = torch.full((4,), -1)
    return make(samples=IMAGES, labels=torch.cat((LABELS[:16], unknown)), owners=None, owner_names=(), num_unlabelled=4)


def test_both_parts_are_trained_on_and_nothing_is_held_out():
    dataset = load_dataset(DataConfig(dataset=f"{__name__}:joined_loader", part="train+test"))
    assert torch.equal(dataset.samples, torch.cat((IMAGES[:16], IMAGES[:8], IMAGES[16:])))
    assert dataset.labels.tolist() == [*LABELS[:16].tolist(), *LABELS[:8].tolist(), *[-1] * 4]
    assert (len(dataset.test_samples), dataset.test_labels, dataset.num_unlabelled) == (0, None, 4)
    limited = load_dataset(DataConfig(dataset=f"{__name__}:joined_loader", part="train+test", limit=8, test_limit=4))
    assert (len(limited.samples), limited.num_unlabelled, limited.num_clustered) == (14, 2, 12)
    assert limited.labels[:12].bincount().tolist() == [3, 3, 3, 3]
    with pytest.raises(UserError, match=r'data\.part = "train\+test" needs test samples without owners'):
        load_dataset(DataConfig(dataset=MINE, part="train+test"))


def test_labels_held_out_for_fine_tuning_are_not_trained_on():
    """EasyFL keeps the first samples of the file; where it is sorted by class, the first of every class are better."""
    dataset = load_dataset(DataConfig(dataset=MINE, held_out_labels=0.3))
    assert torch.equal(dataset.finetune_samples, IMAGES[:6])
    assert torch.equal(dataset.samples, IMAGES[6:])
    assert (dataset.finetune_labels.tolist(), dataset.labels.tolist()) == (LABELS[:6].tolist(), LABELS[6:].tolist())
    assert len(dataset.owners) == 14
    small = load_dataset(DataConfig(dataset=MINE, held_out_labels=0.3, image_size=4, channels=1))
    assert small.finetune_samples.shape == (6, 1, 4, 4)

    balanced = load_dataset(DataConfig(dataset=f"{__name__}:sorted_loader", held_out_labels=0.2, held_out_order="balanced"))
    assert balanced.finetune_labels.tolist() == [0, 1, 2, 3]
    assert balanced.labels.bincount().tolist() == [4, 4, 4, 4]
    with pytest.raises(UserError, match=r"data\.held_out_labels = 0\.01 of 20 samples is not even one"):
        load_dataset(DataConfig(dataset=MINE, held_out_labels=0.01))
    with pytest.raises(UserError, match=r"data\.held_out_labels = 0\.5 needs labels"):
        load_dataset(DataConfig(dataset=f"{__name__}:bare_loader", held_out_labels=0.5))


def sorted_loader(config):
    return make(labels=LABELS.sort().values)


def bare_loader(config):
    return make(labels=None, test_labels=None)


def test_the_test_part_can_be_left_out():
    dataset = load_dataset(DataConfig(dataset=MINE, test_limit=0))
    assert (len(dataset.samples), len(dataset.test_samples)) == (20, 0)


def test_limits_keep_classes_and_owners_in_balance():
    dataset = load_dataset(DataConfig(dataset=MINE, limit=8, test_limit=4))
    assert torch.bincount(dataset.labels).tolist() == [2, 2, 2, 2]
    assert torch.bincount(dataset.owners).tolist() == [4, 4]
    assert torch.bincount(dataset.test_labels).tolist() == [1, 1, 1, 1]
    rows = [(sample == IMAGES).flatten(1).all(1).nonzero()[0].item() for sample in dataset.samples]
    assert torch.equal(LABELS[rows], dataset.labels), "labels stay with their samples"


def test_limits_above_the_size_change_nothing():
    dataset = load_dataset(DataConfig(dataset=MINE, limit=100, test_limit=100))
    assert torch.equal(dataset.samples, IMAGES)
    assert len(dataset.test_samples) == 8


def test_size_and_channels_apply_to_both_parts():
    dataset = load_dataset(DataConfig(dataset=MINE, image_size=4, channels=1))
    assert dataset.input_shape == (1, 4, 4)
    assert dataset.test_samples.shape == (8, 1, 4, 4)


def test_series_have_no_image_size():
    pytest.importorskip("seglearn")
    with pytest.raises(UserError, match=r"image_size .* are for images"):
        load_dataset(DataConfig(dataset="watch", image_size=4))


def test_holding_out_moves_samples_with_all_that_is_theirs():
    numbered = torch.arange(20, dtype=torch.float32).reshape(20, 1, 1)
    whole = make(samples=numbered, test_samples=numbered[:0], test_labels=None)
    parts = hold_out_test(whole, 0.25)
    rows, test_rows = parts.samples.flatten().long(), parts.test_samples.flatten().long()
    assert sorted([*rows.tolist(), *test_rows.tolist()]) == list(range(20))
    assert len(test_rows) == 5
    assert torch.equal(parts.labels, LABELS[rows])
    assert torch.equal(parts.test_labels, LABELS[test_rows])
    assert torch.equal(parts.owners, (torch.arange(20) // 10)[rows])


def test_samples_for_probes_are_held_out_of_training_in_proportion_and_always_the_same():
    whole = load_dataset(DataConfig(dataset="fashion-mini", limit=1000))
    parts, again = (load_dataset(DataConfig(dataset="fashion-mini", limit=1000, probe_fraction=0.1)) for _ in range(2))
    assert torch.equal(parts.probe_samples, again.probe_samples)
    assert parts.probe_labels.bincount().tolist() == [10] * 10
    assert parts.labels.bincount().tolist() == [90] * 10
    assert torch.equal(parts.test_samples, whole.test_samples)
    assert torch.equal(parts.test_labels, whole.test_labels)
    rows = {image.numpy().tobytes() for image in whole.samples}
    trained, probed = ({image.numpy().tobytes() for image in part} for part in (parts.samples, parts.probe_samples))
    assert trained | probed == rows
    assert not trained & probed
    assert whole.probe_samples is None


def test_samples_for_probes_need_labels_and_a_fraction_that_is_one_sample():
    with pytest.raises(UserError, match=r"data\.probe_fraction = 1e-06 holds out none of 1000 samples: raise it\."):
        load_dataset(DataConfig(dataset="fashion-mini", limit=1000, probe_fraction=1e-6))
    with pytest.raises(UserError, match=r"data\.probe_fraction needs labels, and the data set mine has none"):
        load_dataset(DataConfig(dataset=f"{__name__}:load_unlabelled", probe_fraction=0.5))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"channels": 0}, "data.channels must be greater than or equal to 1"),
        ({"limit": 0}, "data.limit must be greater than 0"),
        ({"test_fraction": 1.0}, "data.test_fraction must be less than 1"),
        ({"layout": "client"}, "data.layout"),
        ({"data_set": "x"}, "data.data_set is not a known option"),
    ],
)
def test_a_bad_table_is_refused_by_field(values, message):
    with pytest.raises(UserError, match=message):
        make_section(DataConfig, values, "data")


def test_a_table_reads_as_toml_writes_it():
    config = DataConfig(dataset="folder", path="photos", channels=1, image_size=32)
    assert make_section(DataConfig, config.model_dump(), "data") == config


def test_a_relative_path_is_kept_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    assert DataConfig(dataset="folder", path="sites").path == str(tmp_path / "sites")
    assert DataConfig(dataset="hub", path="owner/repository").path == "owner/repository"
