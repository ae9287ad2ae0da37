"""Origins of machine descriptions, as artifacts record them."""

from enum import StrEnum


class Origin(StrEnum):
    """Origin of a description.

    Attributes:
        STORED: the calibration of this machine.
        SHIPPED: the package's description of a microarchitecture, this machine's or one asked for by name.
        FEATURES: the package's description of the microarchitecture that this machine's features suggest, as its model
            is hidden or unknown.
        GENERIC: the package's typical machine of an instruction set.
        FILE: a file named by the user.
        ARGUMENT: a `Machine` passed by the user.
    """

    STORED = "stored"
    SHIPPED = "shipped"
    FEATURES = "features"
    GENERIC = "generic"
    FILE = "file"
    ARGUMENT = "argument"
