"""Flags that become settings, shared by the commands that train."""

from __future__ import annotations

from typing import Annotated

import typer

from reticent import methods
from reticent.cli.building import SCHEDULES

Target = Annotated[str | None, typer.Option(help="Own data: the column of labels.")]
Test = Annotated[str | None, typer.Option(help="Own data: held-out file or folder.")]
TestShare = Annotated[
    float | None, typer.Option(help="Own data: share held out where there is no --test.")
]
SplitSeed = Annotated[int | None, typer.Option(help="Own data: public seed of what is held out.")]
Classes = Annotated[str | None, typer.Option(help="Own data: the public labels, a,b,c or @FILE.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(help="Own data: NAME:KIND[:OPTIONS]; numeric, category, text, sentences, ignore."),
]
Bounds = Annotated[
    list[str] | None, typer.Option(help="Own data: public NAME=LOW..HIGH by commas, or LOW..HIGH.")
]
Side = Annotated[int | None, typer.Option(help="Own images: side to resize to.")]
Grey = Annotated[bool | None, typer.Option("--grey", help="Own images: in grey.")]
Recipe = Annotated[
    str | None,
    typer.Option(help="Where settings begin: start, or best for the most accurate known."),
]
Root = Annotated[str | None, typer.Option(help="Folder that holds the data sets.")]
Features = Annotated[
    str | None, typer.Option(help="Fixed features of the inputs; `reticent features list`.")
]
Feature = Annotated[
    list[str] | None,
    typer.Option("--feature", help="NAME=VALUE: an option of `features show FEATURES`."),
]
Standardise = Annotated[
    bool | None,
    typer.Option(
        "--standardise", help="Mean 0 and variance 1 by channel, paid for from the budget."
    ),
]
StandardiseNoise = Annotated[
    float | None, typer.Option(help="Noise multiplier of these means and variances.")
]
StandardiseBound = Annotated[
    float | None, typer.Option(help="Public bound that values are clamped to for them.")
]
StandardiseClip = Annotated[
    float | None, typer.Option(help="Public bound that a record's length is cut to for them.")
]
Model = Annotated[str | None, typer.Option(help="Model; `reticent models list`.")]
ModelOption = Annotated[
    list[str] | None,
    typer.Option("--model-option", help="NAME=VALUE: an option of `models show MODEL`."),
]
Activation = Annotated[str | None, typer.Option(help="relu, tanh or tempered-sigmoid[:s,T,o].")]
Delta = Annotated[float | None, typer.Option(help="δ to keep within.")]
Batch = Annotated[int | None, typer.Option(help="Expected records per release.")]
Clip = Annotated[float | None, typer.Option(help="Bound on a record's gradient.")]
Clipping = Annotated[str | None, typer.Option(help=f"One of {', '.join(methods.CLIPPING_STYLES)}.")]
Noise = Annotated[
    float | None,
    typer.Option("--noise", "--sigma", help="Noise multiplier; set from ε if left out."),
]
Steps = Annotated[int | None, typer.Option(help="Number of releases.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the records.")]
Nominal = Annotated[int | None, typer.Option(help="Nominal number of records.")]
Optimizer = Annotated[str | None, typer.Option(help="sgd, adam or adamw.")]
Rate = Annotated[float | None, typer.Option(help="Learning rate.")]
Momentum = Annotated[float | None, typer.Option(help="Momentum of sgd.")]
WeightDecay = Annotated[float | None, typer.Option(help="Weight decay.")]
Schedule = Annotated[str | None, typer.Option(help=f"Learning rate: {', '.join(SCHEDULES)}.")]
Average = Annotated[float | None, typer.Option(help="Decay of the average of the weights.")]
Confusion = Annotated[
    bool | None,
    typer.Option(
        "--confusion/--no-confusion",
        help="Keep exact counts of held-out records by true and predicted class.",
    ),
]
Microbatch = Annotated[int | None, typer.Option(help="Records processed at once.")]
DataOn = Annotated[str | None, typer.Option(help="Records on auto, device or host.")]
Precision = Annotated[str | None, typer.Option(help="Layers in float32, tf32 (CUDA) or bf16.")]
