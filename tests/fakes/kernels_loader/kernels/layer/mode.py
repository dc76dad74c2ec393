"""Stand-in; see the package."""

import enum


class Mode(enum.Flag):
    """What layers are replaced for."""

    INFERENCE = enum.auto()
    TRAINING = enum.auto()
    TORCH_COMPILE = enum.auto()
