"""Methods by name: how a release is made and what it costs."""

from reticent.methods.advreg import AdvReg
from reticent.methods.base import Method, Price
from reticent.methods.catalog import MethodCard, MethodOption, build, describe, names
from reticent.methods.decay import NoiseDecay
from reticent.methods.dpagd import DPAGD
from reticent.methods.dpis import DPIS
from reticent.methods.dpsgd import CLIPPING_STYLES, DPSGD, Quantile, clipping_by_name
from reticent.methods.dpsur import DPSUR
from reticent.methods.pdsgd import PDSGD
from reticent.methods.plain import SGD
from reticent.methods.schedules import SHAPES, Schedule, Scheduled
from reticent.methods.selena import Selena
from reticent.methods.sign import SignAdam, SignSGD

__all__ = [
    "CLIPPING_STYLES",
    "DPAGD",
    "DPIS",
    "DPSGD",
    "DPSUR",
    "PDSGD",
    "SGD",
    "SHAPES",
    "AdvReg",
    "Method",
    "MethodCard",
    "MethodOption",
    "NoiseDecay",
    "Price",
    "Quantile",
    "Schedule",
    "Scheduled",
    "Selena",
    "SignAdam",
    "SignSGD",
    "build",
    "clipping_by_name",
    "describe",
    "names",
]
