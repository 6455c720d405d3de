"""Methods by name: how a release is made and what it costs."""

from reticent.methods.base import Method, Price
from reticent.methods.catalog import MethodCard, MethodOption, build, describe, names
from reticent.methods.dpsgd import CLIPPING_STYLES, DPSGD, Quantile, clipping_by_name
from reticent.methods.dpsur import DPSUR
from reticent.methods.sign import SignAdam, SignSGD

__all__ = [
    "CLIPPING_STYLES",
    "DPSGD",
    "DPSUR",
    "Method",
    "MethodCard",
    "MethodOption",
    "Price",
    "Quantile",
    "SignAdam",
    "SignSGD",
    "build",
    "clipping_by_name",
    "describe",
    "names",
]
