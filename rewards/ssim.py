"""Multi-scale structural similarity of two grey pictures, in floats of 0 to 1.

Source: Wang, Simoncelli, Bovik 2003 (Asilomar, "Multiscale structural similarity for image quality assessment").
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import correlate1d

from rewards.total import total

WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)  # of the scales, finest first
C1, C2 = 0.01**2, 0.03**2
WINDOW, SIGMA = 11, 1.5  # pixels
LEAST = WINDOW * 2 ** (len(WEIGHTS) - 1)  # pixels of the shorter side: 176


@total()
def ms_ssim(first: np.ndarray, second: np.ndarray) -> float:
    """How alike two pictures of one size are, in [0, 1]; 1 for equal ones. Never raises.

    (H, W) each, H and W at least LEAST, any real numbers in 0 to 1. Anything else is worth 0. Where a scale's mean
    contrast and structure is negative, it is 0, as is then the whole.
    """
    one, other = _usable(first), _usable(second)
    if one is None or other is None or one.shape != other.shape:
        return 0.0
    total = 1.0
    for scale, weight in enumerate(WEIGHTS):
        if scale:
            one, other = _half(one), _half(other)
        luminance, structure = _terms(one, other)
        last = scale == len(WEIGHTS) - 1
        mean = float((luminance * structure).mean() if last else structure.mean())
        total *= max(mean, 0.0) ** weight
    return min(total, 1.0)


def _usable(picture: np.ndarray) -> np.ndarray | None:
    if not isinstance(picture, np.ndarray) or picture.ndim != 2 or picture.dtype.kind not in "fiub":
        return None
    if min(picture.shape) < LEAST or not (np.isfinite(picture).all() and picture.min() >= 0 and picture.max() <= 1):
        return None
    return picture.astype(np.float64)


def _terms(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Luminance, and contrast times structure, of each whole window."""
    mean, mean_other = _blurred(one), _blurred(other)
    variance = _blurred(one * one) - mean**2
    variance_other = _blurred(other * other) - mean_other**2
    covariance = _blurred(one * other) - mean * mean_other
    luminance = (2 * mean * mean_other + C1) / (mean**2 + mean_other**2 + C1)
    return luminance, (2 * covariance + C2) / (variance + variance_other + C2)


def _blurred(picture: np.ndarray) -> np.ndarray:
    """Gaussian means of the windows that lie inside."""
    places = np.arange(WINDOW) - WINDOW // 2
    kernel = np.exp(-(places**2) / (2 * SIGMA**2))
    kernel /= kernel.sum()
    edge = WINDOW // 2
    for axis in (0, 1):
        picture = correlate1d(picture, kernel, axis=axis, mode="reflect")
    return picture[edge:-edge, edge:-edge]


def _half(picture: np.ndarray) -> np.ndarray:
    """Means of 2 x 2 pixels; an odd last row or column is dropped."""
    height, width = (side // 2 * 2 for side in picture.shape)
    return picture[:height, :width].reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3))
