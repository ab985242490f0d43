"""Effective sample size as R's package coda measures it.

Source: Plummer, Best, Cowles & Vines (2006), `effectiveSize` and `spectrum0.ar` of coda, with `ar` of R's stats. The
spectral density at 0 is that of an autoregression fitted by Yule-Walker, its order chosen by AIC.
"""

import numpy as np
from scipy import fft

__all__ = ["effective_size"]

_CONSTANT = np.finfo(float).eps ** 0.5  # what R's all.equal takes for 0
_BLOCK = 2**22  # numbers of a block of series, so that memory does not grow with their count


def effective_size(series) -> tuple[np.ndarray, np.ndarray]:
    """Effective size of each series, and the order of its autoregression.

    Parameters
    ----------
    series
        (..., n), n >= 2: time is the last axis.

    Returns
    -------
    (...) floats and (...) integers. The size is 0 (and the order 0) where a series is constant or a straight line; it
    exceeds n where the autocorrelation is negative.
    """
    series = np.asarray(series)
    *shape, n = series.shape
    flat = series.reshape(-1, n)
    blocks = np.array_split(flat, max(1, -(-flat.size // _BLOCK))) if flat.size else [flat]
    sizes, orders = zip(*(_of_block(np.asarray(block, float)) for block in blocks), strict=True)
    return np.concatenate(sizes).reshape(shape), np.concatenate(orders).reshape(shape)


def _of_block(series):
    n = series.shape[1]
    centred = series - series.mean(axis=1, keepdims=True)
    time = np.arange(n) - (n - 1) / 2
    slopes = centred @ time / (time @ time)
    is_straight = (centred - slopes[:, None] * time).std(axis=1, ddof=1) <= _CONSTANT

    covariances = _autocovariances(centred, max_lag=min(n - 1, int(10 * np.log10(n))))
    covariances[is_straight] = np.eye(1, covariances.shape[1])
    variance, coefficients, order = _yule_walker(covariances, n)
    spectrum = variance / (1 - coefficients.sum(axis=1)) ** 2
    sizes = n * centred.var(axis=1, ddof=1) / spectrum
    return np.where(is_straight, 0.0, sizes), np.where(is_straight, 0, order)


def _autocovariances(centred, max_lag):
    """(series, max_lag + 1), divided by n at every lag."""
    n = centred.shape[1]
    transform = fft.rfft(centred, fft.next_fast_len(n + max_lag, real=True), axis=1)
    return fft.irfft(np.abs(transform) ** 2, axis=1, n=fft.next_fast_len(n + max_lag, real=True))[:, : max_lag + 1] / n


def _yule_walker(covariances, n):
    """Innovation variances, coefficients (zero beyond the order) and orders of least AIC, by Levinson's recursion."""
    num_series, num_lags = covariances.shape
    variance = covariances[:, 0]
    coefficients = np.zeros((num_series, num_lags - 1))
    best = variance, coefficients, np.zeros(num_series, int)
    best_aic = n * np.log(variance)
    for order in range(1, num_lags):
        past = coefficients[:, : order - 1]
        gap = covariances[:, order] - np.einsum("ij,ij->i", past, covariances[:, order - 1 : 0 : -1])
        reflection = gap / variance
        coefficients = coefficients.copy()
        coefficients[:, : order - 1] -= reflection[:, None] * past[:, ::-1]
        coefficients[:, order - 1] = reflection
        variance = variance * (1 - reflection**2)
        aic = n * np.log(variance) + 2 * order
        is_better = aic < best_aic
        best_aic = np.where(is_better, aic, best_aic)
        best = (
            np.where(is_better, variance, best[0]),
            np.where(is_better[:, None], coefficients, best[1]),
            np.where(is_better, order, best[2]),
        )
    variance, coefficients, order = best
    return variance * n / (n - (order + 1)), coefficients, order
