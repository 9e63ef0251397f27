import numpy as np
import pytest
from PIL import Image

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset

WNIDS = ("n01443537", "n01629819", "n01641577")


@pytest.fixture
def folder(tmp_path):
    """The official directory with 3 classes of 4 images; class k has grey value 80 k, the first image has one channel."""
    folder = tmp_path / "tiny-imagenet-200"
    for label, wnid in enumerate(WNIDS):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        for number in range(4):
            pixels = np.full((64, 64) if number == 0 else (64, 64, 3), 80 * label, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG")
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number, label in enumerate([2, 0, 1, 2]):
        Image.fromarray(np.full((64, 64, 3), 80 * label, dtype=np.uint8)).save(folder / "val/images" / f"val_{number}.JPEG")
        lines.append(f"val_{number}.JPEG\t{WNIDS[label]}\t0\t0\t62\t62")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text(
        "n01443537\tgoldfish, Carassius auratus\nn01629819\tEuropean fire salamander\nn00000000\tx\n"
    )
    return folder


@pytest.mark.parametrize("below", [True, False])
def test_the_official_directory_is_read(folder, below):
    dataset = load_dataset(DataConfig(dataset="tiny-imagenet", path=str(folder.parent if below else folder)))
    assert dataset.samples.shape == (12, 3, 64, 64)
    assert dataset.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.test_labels.tolist() == [2, 0, 1, 2]
    assert dataset.class_names == ("goldfish", "European fire salamander", "n01641577")
    for images, labels in ((dataset.samples, dataset.labels), (dataset.test_samples, dataset.test_labels)):
        assert (images.flatten(1).float().mean(1) - 80 * labels).abs().max() < 2


def test_a_limit_reads_no_other_file(folder):
    (folder / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_3.JPEG").write_bytes(b"damaged")
    dataset = load_dataset(DataConfig(dataset="tiny-imagenet", path=str(folder), limit=6, test_limit=3))
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert sorted(dataset.test_labels.tolist()) == [0, 1, 2]


def test_damage_is_one_sentence(folder):
    config = DataConfig(dataset="tiny-imagenet", path=str(folder))
    (folder / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(UserError, match=r"val_1\.JPEG"):
        load_dataset(config)
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn9\t0\n")
    with pytest.raises(UserError, match="names the class 'n9'"):
        load_dataset(config)
    (folder / "wnids.txt").unlink()
    with pytest.raises(UserError, match=r"lacks the file wnids\.txt in .*https?://"):
        load_dataset(config)
