import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unisono.core.errors import UnreadableImagesError, UserError
from unisono.data.sources.images import image_tensor, list_images, read_image, read_images

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    for name in ("b/2.PNG", "b/1.bmp", "a.webp", ".hidden/x.png", "._a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(PIXELS).save(tmp_path / name, lossless=True)
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def test_folders_are_searched_in_order_of_name_and_files_taken_as_given(folder):
    names = ["a.webp", "b/1.bmp", "b/2.PNG"]
    assert list_images([folder]) == [folder / name for name in names]
    assert list_images([str(folder / "b" / "2.PNG"), folder / "b"]) == [
        folder / name for name in ("b/2.PNG", "b/1.bmp", "b/2.PNG")
    ]


def test_links_are_followed_but_not_in_circles(tmp_path):
    for site in ("a", "b"):
        (tmp_path / "sites" / site).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "sites" / site / "x.png")
        (tmp_path / "sites" / site / "up").symlink_to("..")
    (tmp_path / "elsewhere").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "elsewhere" / "y.png")
    (tmp_path / "sites" / "c").symlink_to(tmp_path / "elsewhere")
    found = [str(file.relative_to(tmp_path / "sites")) for file in list_images([tmp_path / "sites"])]
    assert found == ["a/x.png", "b/x.png", "c/y.png"]


def test_what_is_not_there_is_named(folder):
    with pytest.raises(UserError, match=r"no file or folder .*nowhere"):
        list_images([folder / "nowhere"])
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no images"):
        list_images([folder / "empty"])


def test_images_of_the_right_size_are_read_exactly(folder):
    images = read_images(list_images([folder]), 3, (20, 30))
    assert images.shape == (3, 3, 20, 30)
    for image in images:
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), PIXELS)


def test_others_are_cropped_resized_and_turned_grey(folder):
    assert read_images(list_images([folder]), 1, (8, 8)).shape == (3, 1, 8, 8)


def test_channels_that_images_lack_are_refused(folder):
    with pytest.raises(UserError, match="asks for 2"):
        read_images(list_images([folder]), 2, (8, 8))


def test_the_centre_is_kept():
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    pixels[:, 10:20] = 200
    middle = image_tensor(Image.fromarray(pixels), 3, (4, 4))
    assert torch.equal(middle, middle.flip(2))
    assert middle.min() > 180


def test_a_large_jpeg_is_read_small_without_losing_quality(tmp_path):
    smooth = Image.fromarray(PIXELS[:6, :9]).resize((900, 600), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "large.jpg", quality=95)
    exact = image_tensor(smooth, 3, (32, 32)).float()
    assert (read_image(tmp_path / "large.jpg", 3, (32, 32)).float() - exact).abs().mean() < 2


def test_a_photo_stands_upright(tmp_path):
    image = Image.fromarray(PIXELS)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.png", exif=exif)
    upright = torch.from_numpy(PIXELS).permute(2, 0, 1).rot90(-1, (1, 2))
    assert torch.equal(read_image(tmp_path / "turned.png", 3), upright)


def test_floats_without_a_scale_are_refused(tmp_path):
    deep = np.array([[0, 256, 65535]], dtype=np.uint16)
    Image.fromarray(deep.astype(np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(UserError, match=r"float\.tif .*floats must lie in \[0, 1\]"):
        read_image(tmp_path / "float.tif", 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_every_mode_becomes_rgb_and_grey(mode):
    image = Image.fromarray(PIXELS).convert(mode)
    assert image_tensor(image, 3).shape == (3, 20, 30)
    assert image_tensor(image, 1).shape == (1, 20, 30)


@pytest.mark.filterwarnings("error")
def test_a_palette_with_transparency_gives_no_warning(tmp_path):
    Image.fromarray(PIXELS).convert("P").save(tmp_path / "p.png", transparency=bytes(range(256)))
    assert read_image(tmp_path / "p.png", 3).shape == (3, 20, 30)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "bmp", "gif"])
@pytest.mark.parametrize("kept", [0, 5, 0.3, 0.8])
def test_a_truncated_file_is_named(tmp_path, kind, kept):
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, kind)
    content = stream.getvalue()
    path = tmp_path / f"bad.{kind}"
    path.write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(UserError, match=rf"bad\.{kind} is not a readable image"):
        read_images([path], 3, (8, 8))


def test_the_error_about_unreadable_images_passes_between_processes():
    error = UnreadableImagesError([(Path("a.png"), "cut"), (Path("b.png"), "empty")], 3)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.problems) == (str(error), error.problems)
