"""Images beyond 8 bits and three channels: TIFF, .npy and DICOM files, read at their depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.core.errors import UserError
from unisono.data.sources.arrays import MOST_CHANNELS
from unisono.data.value_range import as_shares, widened

DICOM = frozenset({".dcm", ".dicom"})
TIFF = frozenset({".tif", ".tiff"})


def read_deep(file: Path, bits: int | None = None) -> NDArray[Any] | None:
    """Return the image as uint8, uint16 or floats in [0, 1] of shape (channels, height, width); None where Pillow reads it.

    Args:
        file: of an image.
        bits: that words of 16 bits use where the file does not say so itself; None: all.

    Raises:
        UserError: its values have no known range, or it is several images.
    """
    suffix = file.suffix.lower()
    if suffix == ".npy":
        return _checked(_axes(np.load(file, allow_pickle=False)), bits)
    if suffix in DICOM:
        return _read_dicom(file)
    return _read_tiff(file, bits) if suffix in TIFF else None


def _read_tiff(file: Path, bits: int | None) -> NDArray[Any] | None:
    """Return a TIFF of more than 8 bits, of other than 1, 3 or 4 samples, or of several pages of one shape, its channels."""
    import tifffile

    try:
        with tifffile.TiffFile(file) as content:
            page: Any = content.pages[0]
            number = len(content.pages)
            plain = page.dtype == np.uint8 or page.bitspersample == 1
            if number == 1 and plain and page.samplesperpixel in (1, 3, 4):
                return None
            if number > MOST_CHANNELS:
                raise UserError(f"it has {number} pages: save each as an image of its own.")
            if number > 1 and any(each.shape != page.shape for each in content.pages):
                raise UserError(f"its {number} pages differ in size: save each as an image of its own.")
            own = page.bitspersample
            stated = own if isinstance(own, int) and 8 < own < 16 else bits
            try:
                values = np.asarray(content.asarray(key=slice(None) if number > 1 else 0))
            except (ValueError, NotImplementedError):
                if number > 1 or page.samplesperpixel > 1 or own not in (12, 16):
                    raise
                return None  # Pillow decompresses more than tifffile does alone, but cuts 16 bits of several samples to 8
            last = number == 1 and page.samplesperpixel > 1 and page.planarconfig == tifffile.PLANARCONFIG.CONTIG
    except (tifffile.TiffFileError, KeyError, IndexError, TypeError, NotImplementedError) as error:
        raise UserError(str(error)) from error
    if values.ndim not in (2, 3):
        raise UserError(f"it has the shape {values.shape}, and an image has channels, height and width.")
    return _checked(values[None] if values.ndim == 2 else np.moveaxis(values, 2, 0) if last else values, stated)


def _read_dicom(file: Path) -> NDArray[Any]:
    """Return grey values through slope, intercept and window of the file as uint16; colours by their bits alone.

    Without a window, and in colours, the range of the stored bits becomes 0 to 65535: the same for all images of one device.
    """
    try:
        from pydicom import dcmread
        from pydicom.errors import InvalidDicomError
        from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut
    except ImportError as error:
        raise MissingPackageError("DICOM files need the extra 'dicom': pip install 'unisono[dicom]'.") from error
    try:
        content = dcmread(file)
        frames = int(content.get("NumberOfFrames") or 1)
        if frames > 1:
            raise UserError(f"it has {frames} frames: save each as a file of its own.")
        stored = content.pixel_array
    except (InvalidDicomError, AttributeError, NotImplementedError, RuntimeError, KeyError, TypeError) as error:
        raise UserError(f"{type(error).__name__}: {error}") from error
    kind = str(content.get("PhotometricInterpretation", ""))
    if stored.ndim == 3:
        bits = int(content.BitsStored)
        return _checked(np.moveaxis(np.minimum(stored, 2**bits - 1), 2, 0), bits)
    if not kind.startswith("MONOCHROME"):
        raise UserError(f"its PhotometricInterpretation is {kind}, and MONOCHROME1, MONOCHROME2, RGB and YBR are read.")
    bits, signed = int(content.BitsStored), int(content.PixelRepresentation) == 1
    ends = np.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if signed else [0, 2**bits - 1])
    low, high = sorted(float(end) for end in _through(apply_modality_lut, ends, content))
    values = apply_modality_lut(stored, content).astype(np.float64)
    if content.get("WindowCenter") not in (None, "") and content.get("WindowWidth") not in (None, ""):
        center, width = (_first(content.get(name)) for name in ("WindowCenter", "WindowWidth"))
        low, high = center - width / 2, center + width / 2
    elif "VOILUTSequence" in content:
        values = apply_voi_lut(apply_modality_lut(stored, content), content).astype(np.float64)
        low, high = 0.0, float(2 ** int(content.VOILUTSequence[0].LUTDescriptor[2]) - 1)
    if not np.isfinite(values).all() or not high > low:
        raise UserError(f"its values or its window are not finite, or its window from {low:g} to {high:g} is empty.")
    shares = ((values - low) / (high - low)).clip(0, 1)
    shares = 1 - shares if kind == "MONOCHROME1" else shares
    grey: NDArray[Any] = np.round(shares * 65535).astype(np.uint16)[None]
    return grey


class MissingPackageError(UserError):
    """A package that an extra installs is not there; no fault of the file."""


def _through(change: Any, ends: NDArray[Any], content: Any) -> NDArray[Any]:
    return np.asarray(change(ends, content), dtype=np.float64) if "ModalityLUTSequence" not in content else np.array([0, 65535])


def _first(value: Any) -> float:
    """Return the first of several windows, which viewers show."""
    return float(value[0] if hasattr(value, "__len__") and not isinstance(value, str) else value)


def _axes(values: NDArray[Any]) -> NDArray[Any]:
    """Return a view of shape (channels, height, width): the shorter of the outer axes is that of the channels."""
    if values.ndim == 2:
        return values[None]
    if values.ndim != 3 or min(values.shape[0], values.shape[2]) > MOST_CHANNELS:
        raise UserError(f"it has the shape {values.shape}, and an image is (H, W), (C, H, W) or (H, W, C).")
    if values.shape[0] == values.shape[2]:
        raise UserError(f"its channels may be axis 0 or 2 of the shape {values.shape}: save it as (C, H, W), C below H and W.")
    return values if values.shape[0] < values.shape[2] else np.moveaxis(values, 2, 0)


def _checked(values: NDArray[Any], bits: int | None) -> NDArray[Any]:
    if values.dtype == np.uint16:
        return values if bits in (None, 16) else widened(values, bits)
    return values if values.dtype == np.uint8 else as_shares(values)
