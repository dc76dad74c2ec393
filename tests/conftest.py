"""Shared fixtures: every test runs with fixed seeds and no settings from outside."""

import random

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _fixed_seed():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (some libraries under test draw from the global state)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
