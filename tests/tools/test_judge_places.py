"""Where an output is wrong is a cause only if what is wrong there is most of the error."""

import numpy as np

from nki_hf.tools.judging.explaining import wrong_part

REFERENCE = np.random.default_rng(0).standard_normal((256, 128))
TOLERANCE = 0.02


def test_rows_that_are_wrong_are_the_place():
    output = REFERENCE.copy()
    output[128:160] *= 2
    part, words = wrong_part(output, REFERENCE, TOLERANCE)
    assert "rows 128 to 159" in words
    assert output[part].shape == (32, 128)


def test_the_tips_of_an_error_that_is_everywhere_are_no_place():
    """One element of 32,768 passes the threshold, and holds a thousandth of the error."""
    noise = 0.01 * np.sign(np.random.default_rng(1).standard_normal(REFERENCE.shape))
    noise[37, 95] = 3.5 * TOLERANCE
    part, words = wrong_part(REFERENCE + noise, REFERENCE, TOLERANCE)
    assert (part, words) == (..., "")
