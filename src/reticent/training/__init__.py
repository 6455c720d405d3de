"""The run: state, loop, checkpoints, result."""

from reticent.training.evaluation import evaluate
from reticent.training.held_out import HeldOut
from reticent.training.loop import Release, Training
from reticent.training.many import Results, together_epsilon, train_many
from reticent.training.result import Result, load_weights, read_run
from reticent.training.run import Run
from reticent.training.train import run, train

__all__ = [
    "HeldOut",
    "Release",
    "Result",
    "Results",
    "Run",
    "Training",
    "evaluate",
    "load_weights",
    "read_run",
    "run",
    "together_epsilon",
    "train",
    "train_many",
]
