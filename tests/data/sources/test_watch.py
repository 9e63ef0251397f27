import numpy as np
import pytest
import torch

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset
from unisono.data.sources import watch

pytest.importorskip("seglearn", reason="the recordings are part of seglearn (extra series)")


def rows_of(samples):
    return {sample.numpy().tobytes() for sample in samples}


def naive_windows(series, window, stride):
    return [series[start : start + window].T.astype(np.float32) for start in range(0, len(series) - window + 1, stride)]


@pytest.mark.parametrize(("window", "stride"), [(100, 50), (64, 75)])
def test_windows_are_cut_from_the_recordings(window, stride):
    recordings = watch._recordings()
    dataset = load_dataset(DataConfig(dataset="watch", window=window, stride=stride))
    assert dataset.input_shape == (6, window)
    expected = [
        (naive.tobytes(), label)
        for series, label in zip(recordings["X"], recordings["y"], strict=True)
        for naive in naive_windows(series, window, stride)
    ]
    samples, labels = torch.cat([dataset.samples, dataset.test_samples]), torch.cat([dataset.labels, dataset.test_labels])
    assert sorted(expected) == sorted(
        (sample.numpy().tobytes(), int(label)) for sample, label in zip(samples, labels, strict=True)
    )


def test_subjects_are_the_owners():
    recordings = watch._recordings()
    dataset = load_dataset(DataConfig(dataset="watch"))
    assert dataset.owner_names == tuple(map(str, range(1, 11)))
    of_subject = rows_of(dataset.samples[dataset.owners == 2])
    theirs = [series for series, subject in zip(recordings["X"], recordings["subject"], strict=True) if subject == 3]
    assert of_subject <= {window.tobytes() for series in theirs for window in naive_windows(series, 100, 50)}
    assert len(torch.unique(dataset.owners)) == 10


def test_no_recording_stands_on_both_sides():
    recordings = watch._recordings()
    dataset = load_dataset(DataConfig(dataset="watch"))
    train, test = rows_of(dataset.samples), rows_of(dataset.test_samples)
    sides = [
        (any(w.tobytes() in train for w in windows), any(w.tobytes() in test for w in windows))
        for windows in (naive_windows(series, 100, 50) for series in recordings["X"])
    ]
    assert all(in_train != in_test for in_train, in_test in sides)
    assert sum(in_test for _, in_test in sides) == 28
    assert len(torch.unique(dataset.test_labels)) == 7


def test_the_recordings_are_what_seglearn_loads():
    loaded = pytest.importorskip("seglearn.datasets").load_watch()
    ours = watch._recordings()
    np.testing.assert_array_equal(loaded["y"], ours["y"])
    np.testing.assert_array_equal(np.concatenate(loaded["X"]), np.concatenate(ours["X"]))


def test_mistakes_are_one_sentence(monkeypatch):
    with pytest.raises(UserError, match=r"data\.window must be at most 947"):
        load_dataset(DataConfig(dataset="watch", window=1000))
    with pytest.raises(UserError, match=r"data\.path .* reads no path"):
        load_dataset(DataConfig(dataset="watch", path="x"))
    monkeypatch.setattr(watch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'unisono\[series\]'"):
        load_dataset(DataConfig(dataset="watch"))
