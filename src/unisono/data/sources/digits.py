"""The 8x8 digits inside scikit-learn: 1,797 images, for the fastest smoke tests.

Alpaydin and Kaynak, Optical recognition of handwritten digits, UCI machine learning repository, 1998.
"""

from __future__ import annotations

import numpy as np
import torch

from unisono.data.datasets import DataConfig, Dataset, datasets, hold_out_test
from unisono.data.sources.locate import refuse_path

TEST_FRACTION = 0.2
"""Fixed fraction, so that numbers compare."""


@datasets.register("digits")
def load(config: DataConfig) -> Dataset:
    """Digits: 1,438 training and 359 test images of 1x8x8 in 10 classes, always the same."""
    from sklearn.datasets import load_digits

    refuse_path(config)
    content = load_digits()
    samples = torch.from_numpy(np.round(content.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(content.target.astype(np.int64))
    whole = Dataset("digits", samples, labels, samples[:0], labels[:0], class_names=tuple("0123456789"))
    return hold_out_test(whole, TEST_FRACTION)
