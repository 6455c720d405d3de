"""The run: state, loop, checkpoints, result."""

from reticent.training.evaluation import evaluate
from reticent.training.loop import Release, Training
from reticent.training.result import Result, load_weights, read_run
from reticent.training.run import Run
from reticent.training.train import run, train

__all__ = [
    "Release",
    "Result",
    "Run",
    "Training",
    "evaluate",
    "load_weights",
    "read_run",
    "run",
    "train",
]
