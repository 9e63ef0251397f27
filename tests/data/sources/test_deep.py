"""Images of 16 bits, floats, many channels, and DICOM, read at their depth."""

from __future__ import annotations

import importlib.util
import struct

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from unisono.core.errors import UnreadableImagesError, UserError
from unisono.data.datasets import DataConfig, load_dataset
from unisono.data.sources.images import read_image, read_readable, read_thumbnails

DEEP = np.array([[0, 1, 256, 1000], [40000, 40001, 65534, 65535], [5, 6, 7, 8]], dtype=np.uint16)


def test_sixteen_bits_stay_sixteen(tmp_path):
    Image.fromarray(DEEP).save(tmp_path / "a.png")
    tifffile.imwrite(tmp_path / "a.tif", DEEP)
    np.save(tmp_path / "a.npy", DEEP)
    for suffix in ("png", "tif", "npy"):
        image = read_image(tmp_path / f"a.{suffix}", None)
        assert image.dtype == torch.uint16
        assert image.numpy().tolist() == [DEEP.tolist()], suffix


@pytest.mark.parametrize("write", ["contiguous", "planes", "pages", "npy first", "npy last"])
def test_five_channels(tmp_path, write):
    values = np.random.default_rng(0).integers(0, 65536, (5, 8, 9), dtype=np.uint16)
    last = np.ascontiguousarray(np.moveaxis(values, 0, 2))
    file = tmp_path / ("a.npy" if "npy" in write else "a.tif")
    if write == "contiguous":
        tifffile.imwrite(file, last, planarconfig="contig", photometric="minisblack")
    elif write == "planes":
        tifffile.imwrite(file, values, planarconfig="separate", photometric="minisblack")
    elif write == "pages":
        tifffile.imwrite(file, values, photometric="minisblack")
    else:
        np.save(file, values if write == "npy first" else last)
    assert np.array_equal(read_image(file, 5).numpy(), values)
    with pytest.raises(UnreadableImagesError, match=r"Images of 5 channels do not become 3: .* data.channels = 5"):
        read_image(file, 3)
    assert read_thumbnails([file], 4).shape == (1, 3, 4, 4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([[0.5, np.nan]], dtype=np.float32), "1 values that are NaN"),
        (np.array([[0.0, 200.0]]), "divide them by 255"),
        (np.array([[-5, 300]], dtype=np.int16), "uint8, uint16 or floats"),
        (np.zeros((2, 2, 2, 2), dtype=np.uint8), r"the shape \(2, 2, 2, 2\)"),
        (np.array([None]), "allow_pickle"),
    ],
)
def test_what_has_no_range_is_refused(tmp_path, values, message):
    np.save(tmp_path / "a.npy", values, allow_pickle=True)
    with pytest.raises(UnreadableImagesError, match=message):
        read_image(tmp_path / "a.npy", None)


def test_the_deepest_image_decides_and_others_are_scaled(tmp_path):
    Image.fromarray(np.full((4, 4), 255, dtype=np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(np.full((4, 4), 65535, dtype=np.uint16)).save(tmp_path / "b.png")
    np.save(tmp_path / "c.npy", np.full((4, 4), 0.25, dtype=np.float32))
    files = [tmp_path / name for name in ("a.png", "b.png", "c.npy")]
    assert read_readable(files[:2], 1, None)[0].float().mean((1, 2, 3)).tolist() == [65535, 65535]
    assert read_readable(files, 1, None)[0].mean((1, 2, 3)).tolist() == [1, 1, 0.25]
    assert read_readable(files[:2], 1, None, dtype=torch.uint8)[0].float().mean((1, 2, 3)).tolist() == [255, 255]


def test_resizing_keeps_the_depth(tmp_path):
    ramp = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (64, 1))
    tifffile.imwrite(tmp_path / "a.tif", ramp)
    small = read_image(tmp_path / "a.tif", 1, (16, 16))
    assert small.dtype == torch.uint16
    row = small[0, 8].tolist()
    assert row == sorted(set(row))
    assert abs(int(small[0, 8, 8]) - 35000) < 2000


@pytest.fixture
def sites(tmp_path):
    draw = np.random.default_rng(0)
    for site in ("north", "south"):
        (tmp_path / site).mkdir()
        for number in range(6):
            tifffile.imwrite(tmp_path / site / f"{number}.tif", draw.integers(0, 65536, (20, 24), dtype=np.uint16))
    return tmp_path


def test_a_folder_is_read_at_its_depth_or_at_the_one_that_is_asked_for(sites):
    data = load_dataset(DataConfig(dataset="folder", path=str(sites), image_size=16))
    assert (data.samples.dtype, data.input_shape) == (torch.uint16, (1, 16, 16))
    assert data.mean[0] == pytest.approx(0.5, abs=0.05)
    shallow = load_dataset(DataConfig(dataset="folder", path=str(sites), image_size=16, depth=8, channels=3))
    assert (shallow.samples.dtype, shallow.input_shape) == (torch.uint8, (3, 16, 16))


def test_arrays_of_any_depth(tmp_path):
    values = np.random.default_rng(0).integers(300, 65536, (10, 4, 8, 8), dtype=np.uint16)
    np.savez(tmp_path / "a.npz", x=values)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "f.npz", images=(values / 65535).astype(np.float32))
    for name in ("a.npz", "a.npy"):
        data = load_dataset(DataConfig(dataset="npz", path=str(tmp_path / name), test_fraction=0))
        assert np.array_equal(data.samples.numpy(), values)
    floats = load_dataset(DataConfig(dataset="npz", path=str(tmp_path / "f.npz"), test_fraction=0))
    assert floats.mean == pytest.approx(data.mean, abs=1e-4)
    np.savez(tmp_path / "n.npz", images=np.full((2, 3, 8, 8), np.nan, dtype=np.float32))
    with pytest.raises(UserError, match="NaN"):
        load_dataset(DataConfig(dataset="npz", path=str(tmp_path / "n.npz")))


def _dicom(path, values, **tags):
    """Write a DICOM file as scanners do."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    content = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    content.SOPClassUID, content.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    content.Rows, content.Columns = values.shape[-2:] if values.ndim == 2 or "NumberOfFrames" in tags else values.shape[:2]
    content.SamplesPerPixel = 3 if tags.get("PhotometricInterpretation") == "RGB" else 1
    content.PhotometricInterpretation = "MONOCHROME2"
    content.BitsAllocated = 8 * values.itemsize
    content.BitsStored, content.HighBit = content.BitsAllocated, content.BitsAllocated - 1
    content.PixelRepresentation = int(values.dtype.kind == "i")
    content.PlanarConfiguration = 0
    content.PixelData = values.tobytes()
    for name, value in tags.items():
        setattr(content, name, value)
    content.save_as(path, enforce_file_format=True)


GREY = np.array([[0, 1000], [2000, 4095]], dtype=np.uint16)


@pytest.mark.parametrize(
    ("values", "tags", "expected"),
    [
        (GREY, {"BitsStored": 12, "HighBit": 11}, [0, 1000 / 4095, 2000 / 4095, 1]),
        (GREY, {"BitsStored": 12, "HighBit": 11, "PhotometricInterpretation": "MONOCHROME1"}, [1, 3095 / 4095, 2095 / 4095, 0]),
        (GREY, {"WindowCenter": "1500", "WindowWidth": "1000"}, [0, 0, 1, 1]),
        (GREY, {"WindowCenter": ["2000", "9"], "WindowWidth": ["4000", "1"]}, [0, 0.25, 0.5, 1]),
        (
            GREY,
            {"RescaleSlope": "2", "RescaleIntercept": "-1000"} | {"WindowCenter": "1000", "WindowWidth": "4000"},
            [0, 0.5, 1, 1],
        ),
        (np.array([[-1000, 0], [1000, 500]], dtype=np.int16), {"WindowCenter": "0", "WindowWidth": "2000"}, [0, 0.5, 1, 0.75]),
    ],
)
def test_grey_dicom(tmp_path, values, tags, expected):
    _dicom(tmp_path / "a.dcm", values, **tags)
    image = read_image(tmp_path / "a.dcm", None)
    assert image.dtype == torch.uint16
    assert (image.float() / 65535).flatten().tolist() == pytest.approx(expected, abs=1e-4)


def test_coloured_dicom_and_what_is_refused(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    _dicom(tmp_path / "a.dcm", colours, PhotometricInterpretation="RGB")
    assert np.array_equal(read_image(tmp_path / "a.dcm", 3).numpy(), np.moveaxis(colours, 2, 0))
    _dicom(tmp_path / "b.dcm", np.stack((GREY, GREY)), NumberOfFrames=2)
    with pytest.raises(UnreadableImagesError, match="2 frames: save each"):
        read_image(tmp_path / "b.dcm", 1)
    (tmp_path / "c.dcm").write_bytes(b"no DICOM")
    with pytest.raises(UnreadableImagesError, match="InvalidDicomError"):
        read_image(tmp_path / "c.dcm", 1)
    _dicom(tmp_path / "d.dcm", GREY, WindowCenter="1", WindowWidth="0")
    with pytest.raises(UnreadableImagesError, match="empty"):
        read_image(tmp_path / "d.dcm", 1)


TWELVE = np.array([[0, 1, 1000], [2048, 4094, 4095]], dtype=np.uint16)
WHOLE = [0, 16, 16004, 32776, 65519, 65535]
"""The same as shares of 65535."""


@pytest.mark.parametrize("suffix", ["png", "tif", "npy", "lzw.tif"])
def test_words_of_sixteen_bits_that_use_twelve(tmp_path, suffix):
    file = tmp_path / f"a.{suffix}"
    if suffix == "npy":
        np.save(file, TWELVE)
    else:
        Image.fromarray(TWELVE).save(file, **({"compression": "tiff_lzw"} if "lzw" in suffix else {}))
    assert read_image(file, None).numpy().flatten().tolist() == TWELVE.flatten().tolist()
    assert read_image(file, None, bits=16).numpy().flatten().tolist() == TWELVE.flatten().tolist()
    assert read_image(file, None, bits=12).numpy().flatten().tolist() == WHOLE
    with pytest.raises(UnreadableImagesError, match=r"values reach 4095, and data\.bits = 10 ends at 1023: raise it"):
        read_image(file, None, bits=10)


def test_bits_change_no_other_images(tmp_path):
    eight = np.arange(12, dtype=np.uint8).reshape(3, 4)
    Image.fromarray(eight).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", eight / np.float32(255))
    assert read_image(tmp_path / "a.png", None, bits=12).flatten().tolist() == eight.flatten().tolist()
    assert (read_image(tmp_path / "a.npy", None, bits=12) * 255).round().flatten().tolist() == eight.flatten().tolist()


def _packed_tiff(path, values, bits):
    """Write a TIFF of which each value takes so many bits."""
    words = "".join(f"{value:0{bits}b}" for value in values.flatten().tolist())
    words += "0" * (-len(words) % 8)
    data = bytes(int(words[place : place + 8], 2) for place in range(0, len(words), 8))
    data += b"\0" * (len(data) % 2)
    rows, columns = values.shape
    tags = {256: columns, 257: rows, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: rows, 279: len(data)}
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags.items())
    path.write_bytes(b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + b"\0" * 4)


def test_a_tiff_that_states_twelve_bits_is_read_by_them(tmp_path):
    values = np.array([[0, 1], [1000, 2048], [4094, 4095]], dtype=np.uint16)
    _packed_tiff(tmp_path / "a.tif", values, 12)
    assert read_image(tmp_path / "a.tif", None).numpy().flatten().tolist() == WHOLE
    _packed_tiff(tmp_path / "b.tif", values // 4, 10)
    if importlib.util.find_spec("imagecodecs") is None:
        with pytest.raises(UnreadableImagesError, match="requires the 'imagecodecs' package"):
            read_image(tmp_path / "b.tif", None)


def test_coloured_dicom_of_twelve_bits(tmp_path):
    colours = np.stack((TWELVE, TWELVE, TWELVE), axis=2)
    _dicom(tmp_path / "a.dcm", colours, PhotometricInterpretation="RGB", BitsStored=12, HighBit=11)
    assert read_image(tmp_path / "a.dcm", 3)[1].numpy().flatten().tolist() == WHOLE


def _cameras(folder, highest):
    """Write six TIFF files for each site, whose values end at its number."""
    draw = np.random.default_rng(0)
    for site, high in highest.items():
        (folder / site).mkdir(parents=True)
        for number in range(6):
            values = draw.integers(0, high + 1, (20, 24), dtype=np.uint16)
            values[0, 0] = high if number == 5 else 0
            tifffile.imwrite(folder / site / f"{number}.tif", values)
    return folder


def _folder(path, **options):
    return load_dataset(DataConfig(dataset="folder", path=str(path), test_fraction=0, **options))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_folder_of_dark_words_is_remarked_on_and_read_as_the_option_says(tmp_path, monkeypatch, share):
    monkeypatch.setenv("UNISONO_CACHE", str(tmp_path / "cache"))
    sites = _cameras(tmp_path / "sites", {"north": 4000, "south": 3000})
    dark = _folder(sites, image_size=16, memory_share=share)
    assert dark.mean[0] < 0.04
    (remark,) = dark.remarks
    assert "do not exceed 4,000 of 65,535 (12 files looked at)" in remark
    assert remark.endswith("if the device gives 12 bits, set data.bits = 12")
    bright = _folder(sites, image_size=16, memory_share=share, bits=12)
    assert bright.remarks == ()
    assert bright.mean[0] == pytest.approx(16 * dark.mean[0], rel=0.01)
    assert _folder(sites, image_size=16, memory_share=share, bits=16).remarks == ()
    assert _folder(sites, image_size=16, memory_share=share, depth=8).remarks == dark.remarks


def test_words_that_use_sixteen_bits_get_no_remark(tmp_path):
    assert _folder(_cameras(tmp_path / "deep", {"north": 4000, "south": 16384}), image_size=16).remarks == ()
    assert _folder(_cameras(tmp_path / "black", {"east": 0, "west": 0}), image_size=16).remarks == ()


def test_one_image_beyond_the_bits_is_named(tmp_path):
    sites = _cameras(tmp_path / "sites", {"north": 4000, "south": 3000})
    tifffile.imwrite(sites / "north" / "spot.tif", np.full((20, 24), 5000, dtype=np.uint16))
    with pytest.raises(
        UnreadableImagesError, match=r"spot\.tif is not a readable image: values reach 5000, and data\.bits = 12 ends at 4095"
    ):
        _folder(sites, image_size=16, bits=12)
    found = _folder(sites, image_size=16, bits=12, on_error="skip")
    assert [path.name for path, _ in found.unreadable] == ["spot.tif"]


def test_arrays_of_twelve_bits(tmp_path):
    values = np.random.default_rng(0).integers(0, 4096, (10, 1, 8, 8), dtype=np.uint16)
    np.savez(tmp_path / "a.npz", x=values)
    np.save(tmp_path / "a.npy", values)
    for name in ("a.npz", "a.npy"):
        (remark,) = load_dataset(DataConfig(dataset="npz", path=str(tmp_path / name))).remarks
        assert "if the device gives 12 bits, set data.bits = 12" in remark
    data = load_dataset(DataConfig(dataset="npz", path=str(tmp_path / "a.npz"), test_fraction=0, bits=12))
    assert data.mean[0] == pytest.approx(0.5, abs=0.05)
    assert data.remarks == ()
    with pytest.raises(UserError, match=r"multiply its values by 16, and leave data\.bits out"):
        load_dataset(DataConfig(dataset="npz", path=str(tmp_path / "a.npy"), bits=12))
    with pytest.raises(UserError, match=r"data\.bits is for the data sets folder and npz, got digits"):
        load_dataset(DataConfig(dataset="digits", bits=12))
