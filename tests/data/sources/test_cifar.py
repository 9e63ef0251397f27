import pickle
import tarfile

import numpy as np
import pytest

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset

BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def write_cifar10(folder, protocol=2):
    """The official folder with 4 images per file; returns all images in order, shape (24, 3, 32, 32)."""
    folder = folder / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (24, 3, 32, 32), dtype=np.uint8)
    for position, name in enumerate([*BATCHES, "test_batch"]):
        rows = images[position * 4 : position * 4 + 4].reshape(4, -1)
        content = {b"batch_label": b"x", b"labels": [position, 1, 2, 3], b"data": rows, b"filenames": [b"a.png"] * 4}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))
    names = [b"c%d" % number for number in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names, b"num_vis": 3072}, protocol=protocol))
    return images


def check(dataset, images):
    np.testing.assert_array_equal(dataset.samples.numpy(), images[:20])
    np.testing.assert_array_equal(dataset.test_samples.numpy(), images[20:])
    assert dataset.labels.tolist() == [label for first in range(5) for label in (first, 1, 2, 3)]
    assert dataset.test_labels.tolist() == [5, 1, 2, 3]
    assert dataset.class_names == tuple(f"c{number}" for number in range(10))


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_the_official_folder_is_read(tmp_path, protocol):
    images = write_cifar10(tmp_path, protocol)
    check(load_dataset(DataConfig(dataset="cifar10", path=str(tmp_path))), images)
    check(load_dataset(DataConfig(dataset="cifar10", path=str(tmp_path / "cifar-10-batches-py"))), images)


def test_the_official_archive_is_read(tmp_path, monkeypatch):
    images = write_cifar10(tmp_path)
    packed = tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    check(load_dataset(DataConfig(dataset="cifar10", path=str(packed))), images)
    check(load_dataset(DataConfig(dataset="cifar10", path=str(packed / "cifar-10-python.tar.gz"))), images)
    monkeypatch.setenv("UNISONO_DATA", str(packed))
    check(load_dataset(DataConfig(dataset="cifar10")), images)


def test_cifar100_has_fine_labels_and_superclasses_and_cifar20_coarse_labels(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
    for name, rows in (("train", images[:4]), ("test", images[4:])):
        content = {b"fine_labels": [99, 3, 2, 99][: len(rows)], b"coarse_labels": [5, 7, 9, 5][: len(rows)], b"data": rows}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    fine, coarse = ([b"%s%d" % (letter, number) for number in range(count)] for letter, count in ((b"f", 100), (b"c", 20)))
    meta = {b"fine_label_names": fine, b"coarse_label_names": coarse}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    dataset = load_dataset(DataConfig(dataset="cifar100", path=str(tmp_path)))
    assert dataset.labels.tolist() == [99, 3, 2, 99]
    assert dataset.num_classes == 100
    np.testing.assert_array_equal(dataset.test_samples.numpy().reshape(2, -1), images[4:])
    assert len(dataset.superclasses) == 100
    assert [dataset.superclasses[label] for label in (99, 3, 2)] == [5, 7, 9]
    coarse = load_dataset(DataConfig(dataset="cifar20", path=str(tmp_path)))
    assert (coarse.labels.tolist(), coarse.test_labels.tolist()) == ([5, 7, 9, 5], [5, 7])
    assert (coarse.num_classes, coarse.class_names[5], coarse.superclasses) == (20, "c5", ())
    np.testing.assert_array_equal(coarse.samples.numpy().reshape(4, -1), images[:4])


class _Harm:
    def __reduce__(self):
        return (print, ("a pickle has run code",))


def test_a_pickle_cannot_run_code(tmp_path, capsys):
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps({b"data": _Harm()}))
    with pytest.raises(UserError, match=r"calls builtins\.print"):
        load_dataset(DataConfig(dataset="cifar10", path=str(tmp_path)))
    assert capsys.readouterr().out == ""


def other_content(**entries):
    return pickle.dumps({key.encode(): value for key, value in entries.items()}, protocol=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda whole: whole[: len(whole) // 2], "truncated or damaged"),
        (lambda whole: b"", "truncated or damaged"),
        (lambda whole: b"<html>not found</html>", "truncated or damaged"),
        (lambda whole: other_content(labels=[1]), "no entry 'data'"),
        (lambda whole: pickle.dumps([1]), "no entry 'data'"),
        (lambda whole: other_content(labels=[1], data=np.zeros((2, 3072), np.uint8)), "must hold 1 images"),
        (lambda whole: other_content(labels=[1], data=np.zeros((1, 3072), np.uint8)), "unlike the others"),
    ],
)
def test_damage_is_one_sentence_about_the_file(tmp_path, content, message):
    write_cifar10(tmp_path)
    file = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(UserError, match=f"data_batch_2.*{message}"):
        load_dataset(DataConfig(dataset="cifar10", path=str(tmp_path)))


def test_a_truncated_or_incomplete_archive_is_named(tmp_path):
    write_cifar10(tmp_path)
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-py" / "test_batch", "cifar-10-batches-py/test_batch")
    with pytest.raises(UserError, match=r"tar\.gz lacks the file data_batch_1"):
        load_dataset(DataConfig(dataset="cifar10", path=str(archive)))
    archive.write_bytes(archive.read_bytes()[:500])
    with pytest.raises(UserError, match=r"tar\.gz is truncated"):
        load_dataset(DataConfig(dataset="cifar10", path=str(archive)))


def test_missing_files_say_what_where_and_whence(tmp_path):
    with pytest.raises(UserError, match=r"cifar-10-batches-py/data_batch_1 or cifar-10-python\.tar\.gz.*https://"):
        load_dataset(DataConfig(dataset="cifar10", path=str(tmp_path)))
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(UserError, match="lacks the file data_batch_4"):
        load_dataset(DataConfig(dataset="cifar10", path=str(tmp_path)))


@pytest.mark.parametrize(
    "labels",
    [["one", 1, 2, 3], [None] * 4, [0.5] * 4, [-1, 1, 2, 3], [10, 1, 2, 3], [[1], 1, 2, 3], 7, {"a": 1}, [2**70, 1, 2, 3]],
)
def test_odd_labels_are_one_sentence(tmp_path, labels):
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    content = pickle.loads(path.read_bytes(), encoding="bytes")
    path.write_bytes(pickle.dumps({**content, b"labels": labels}, protocol=2))
    with pytest.raises(UserError, match=r"data_batch_2 is damaged: its 'labels' must be whole numbers from 0 to 9"):
        load_dataset(DataConfig(dataset="cifar10", path=str(tmp_path)))


@pytest.mark.parametrize("names", [7, ["c0"], None])
def test_odd_class_names_are_one_sentence(tmp_path, names):
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    with pytest.raises(UserError, match="names of its classes are no list of words"):
        load_dataset(DataConfig(dataset="cifar10", path=str(tmp_path)))
