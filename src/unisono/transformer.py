"""A trained encoder as a scikit-learn transformer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from unisono.loaded import LoadedRun, load


class EncoderTransformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Samples to features, for pipelines: ``make_pipeline(EncoderTransformer("runs/x"), LogisticRegression())``.

    The encoder is learnt already, so ``fit`` only reads it.

    Args:
        run: the run directory.
        batch_size: samples per forward pass.
    """

    def __init__(self, run: str | Path, batch_size: int = 512) -> None:
        self.run = run
        self.batch_size = batch_size

    def fit(self, samples: Any = None, labels: Any = None) -> EncoderTransformer:
        """Read the encoder; samples and labels are not used."""
        self.run_: LoadedRun = load(self.run)
        return self

    def transform(self, samples: NDArray[Any]) -> NDArray[np.float32]:
        """Return features, shape (num_samples, feature_dim); see ``LoadedRun.embed`` for what samples may be."""
        if not hasattr(self, "run_"):
            self.fit()
        return self.run_.embed(samples, self.batch_size)

    def __sklearn_is_fitted__(self) -> bool:
        return True
