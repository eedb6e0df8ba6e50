"""All predictions of many parameter vectors in one pass over them, compiled.

Parameters are the most of what prescribing reads: hundreds of networks, some megabytes, of which a core's cache holds
one or two. So the outer loop runs over parameter vectors, each is read from memory once, and all its layers are
evaluated for all contexts while it is there.

A prediction does not depend on which contexts are predicted beside it, bit for bit: contexts go through in blocks of
``ROWS``, the last one filled up with zeros, so all of them meet the same instructions, and every sum runs over inputs
in their order.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from bco_core.batch_kernels import OPTIONS, compiled

Array = np.ndarray[Any, Any]

# Contexts that share what is loaded of the parameters.
ROWS = 4
# The widest layer there is room for.
WIDEST = 4096
# From one row of a block to the next: known when compiling, so that rows run side by side, and no multiple of a page,
# so that they do not drive each other out of the cache.
_B = WIDEST + 16
_C, _D = 2 * _B, 3 * _B


@numba.njit(inline="always", **OPTIONS)
def _add_layer(theta, at, fan_in, fan_out, inputs, into):  # type: ignore[no-untyped-def]
    """into[r, :fan_out] += inputs[r, :fan_in] W, four inputs at a time, with W (fan_in, fan_out) at ``at`` of θ."""
    whole = fan_in - fan_in % 4
    for i in range(0, whole, 4):
        first = at + i * fan_out
        w0, w1 = theta[first : first + fan_out], theta[first + fan_out : first + 2 * fan_out]
        w2, w3 = theta[first + 2 * fan_out : first + 3 * fan_out], theta[first + 3 * fan_out : first + 4 * fan_out]
        a0, a1, a2, a3 = inputs[i], inputs[i + 1], inputs[i + 2], inputs[i + 3]
        b0, b1, b2, b3 = inputs[_B + i], inputs[_B + i + 1], inputs[_B + i + 2], inputs[_B + i + 3]
        c0, c1, c2, c3 = inputs[_C + i], inputs[_C + i + 1], inputs[_C + i + 2], inputs[_C + i + 3]
        d0, d1, d2, d3 = inputs[_D + i], inputs[_D + i + 1], inputs[_D + i + 2], inputs[_D + i + 3]
        for j in range(fan_out):
            p, q, r, s = w0[j], w1[j], w2[j], w3[j]
            into[j] = (((into[j] + a0 * p) + a1 * q) + a2 * r) + a3 * s
            into[_B + j] = (((into[_B + j] + b0 * p) + b1 * q) + b2 * r) + b3 * s
            into[_C + j] = (((into[_C + j] + c0 * p) + c1 * q) + c2 * r) + c3 * s
            into[_D + j] = (((into[_D + j] + d0 * p) + d1 * q) + d2 * r) + d3 * s
    for i in range(whole, fan_in):
        w0 = theta[at + i * fan_out : at + (i + 1) * fan_out]
        a0, b0, c0, d0 = inputs[i], inputs[_B + i], inputs[_C + i], inputs[_D + i]
        for j in range(fan_out):
            p = w0[j]
            into[j] += a0 * p
            into[_B + j] += b0 * p
            into[_C + j] += c0 * p
            into[_D + j] += d0 * p


@compiled
def outputs(theta, encoded, widths, skip, found):  # type: ignore[no-untyped-def]
    """Standardised predictions ``found`` (n, S, d_y) for parameters (S, d) and features (n, width), n whole blocks.

    Layers of these ``widths`` have ReLU between them; ``skip`` says that a linear path from features to outcomes
    follows them in θ.
    """
    zero = theta.dtype.type(0)
    features, outcomes, layers = widths[0], widths[-1], len(widths) - 1
    first = np.zeros(ROWS * _B, theta.dtype)
    here, there = np.zeros(ROWS * _B, theta.dtype), np.zeros(ROWS * _B, theta.dtype)
    for number in range(len(theta)):
        one = theta[number]
        for begin in range(0, len(encoded), ROWS):
            for row in range(ROWS):
                for i in range(features):
                    first[row * _B + i] = encoded[begin + row, i]
            inputs, at = first, 0
            for layer in range(layers):
                fan_in, fan_out = widths[layer], widths[layer + 1]
                bias = at + fan_in * fan_out
                for row in range(ROWS):
                    for j in range(fan_out):
                        here[row * _B + j] = one[bias + j]
                _add_layer(one, at, fan_in, fan_out, inputs, here)
                if layer < layers - 1:
                    for row in range(ROWS):
                        for j in range(fan_out):
                            value = here[row * _B + j]
                            # NaN stays what it is.
                            here[row * _B + j] = zero if value < zero else value
                at, inputs = bias + fan_out, here
                here, there = there, here
            if skip:
                bias = at + features * outcomes
                for row in range(ROWS):
                    for j in range(outcomes):
                        inputs[row * _B + j] += one[bias + j]
                _add_layer(one, at, features, outcomes, first, inputs)
            for row in range(ROWS):
                for j in range(outcomes):
                    found[begin + row, number, j] = inputs[row * _B + j]
