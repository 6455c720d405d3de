"""The attack network of adversarial regularisation: was the model trained on this record?

Its weights are one vector, so that they and Adam's moments can be kept, saved and put back as
tensors. The two branches are those of Nasr, Shokri, Houmansadr 2018; the sizes, for 100 classes,
those that Tang et al. 2022 ran it with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from reticent.errors import positive, whole

POSTERIORS = (1024, 512, 64)
LABEL = (128, 64)
JOINED = (512, 256, 128, 64)
# The published network is for 100 classes; with fewer it is narrower, down to this share of it.
NARROWEST = 0.25

BETAS = (0.9, 0.999)
EPS = 1e-8


def width_for(classes: int) -> float:
    """The layers' sizes as a share of the published ones, which are for 100 classes."""
    return min(max(classes / 100, NARROWEST), 1.0)


@dataclass(frozen=True)
class AttackNetwork:
    """The shape of h(posteriors, label): a branch for each, joined; ReLU between the layers.

    Args:
        classes: Of the classifier.
        width: The layers' sizes as a share of the published ones.

    Example:
        >>> AttackNetwork(classes=100, width=1.0).layers[:3]
        ((100, 1024), (1024, 512), (512, 64))
    """

    classes: int
    width: float

    def __post_init__(self) -> None:
        whole("classes", self.classes, least=2)
        positive("width", self.width)

    @cached_property
    def _branches(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        def chain(first: int, sizes: tuple[int, ...]) -> list[int]:
            return [first, *(max(round(self.width * size), 1) for size in sizes)]

        posteriors, label = chain(self.classes, POSTERIORS), chain(self.classes, LABEL)
        joined = [*chain(posteriors[-1] + label[-1], JOINED), 1]
        return tuple(tuple(pairwise(sizes)) for sizes in (posteriors, label, joined))

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of every layer: those of the posteriors, of the label, joined."""
        return tuple(layer for branch in self._branches for layer in branch)

    @property
    def size(self) -> int:
        """How many weights and biases."""
        return sum(inputs * outputs + outputs for inputs, outputs in self.layers)

    def tensors(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The (weight, bias) of every layer, views of the vector."""
        found, end = [], 0
        for inputs, outputs in self.layers:
            begin, middle = end, end + inputs * outputs
            end = middle + outputs
            found.append((weights[begin:middle].view(outputs, inputs), weights[middle:end]))
        return found

    def initial(self, normal: Tensor) -> Tensor:
        """Weights from standard normal draws [size]: of variance 2/inputs (He et al. 2015)."""
        weights = normal.clone()
        for weight, bias in self.tensors(weights):
            weight.mul_(math.sqrt(2 / weight.shape[1]))
            bias.zero_()
        return weights

    def scores(self, weights: Tensor, posteriors: Tensor, labels: Tensor) -> Tensor:
        """The log-odds [m] of h: above 0 for records it takes for members.

        Args:
            weights: The vector [size].
            posteriors: The classifier's, [m, classes].
            labels: The records' true classes [m]; one that is no class is a row of zeros.
        """
        layers = self.tensors(weights)
        first, second, _ = (len(branch) for branch in self._branches)
        every = torch.arange(self.classes, device=labels.device)
        said, known = posteriors, (labels[:, None] == every).to(posteriors.dtype)
        for weight, bias in layers[:first]:
            said = F.relu(F.linear(said, weight, bias))
        for weight, bias in layers[first : first + second]:
            known = F.relu(F.linear(known, weight, bias))
        joined = torch.cat([said, known], 1)
        *inner, last = layers[first + second :]
        for weight, bias in inner:
            joined = F.relu(F.linear(joined, weight, bias))
        return F.linear(joined, *last)[:, 0]


def gain(members: Tensor, others: Tensor) -> Tensor:
    """What the attack maximises, ½ mean log h + ½ mean log(1 − h), from its log-odds.

    Nasr et al. 2018, Algorithm 1; at most 0, and −log 2 for an attack that knows nothing.

    >>> float(gain(torch.zeros(3), torch.zeros(2)))
    -0.693...
    """
    return (F.logsigmoid(members).mean() + F.logsigmoid(-others).mean()) / 2


def adam_step(
    weights: Tensor, first: Tensor, second: Tensor, gradient: Tensor, count: int, lr: float
) -> None:
    """One step of Adam (Kingma & Ba 2015, Algorithm 1), all three written over.

    Args:
        weights: What moves.
        first: Average of gradients, zeros at first.
        second: Average of their squares, zeros at first.
        gradient: Of what shall fall.
        count: Which step this is, from 1.
        lr: The step size α.
    """
    first.lerp_(gradient, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    root = second.sqrt().div_(math.sqrt(1 - BETAS[1] ** count)).add_(EPS)
    weights.addcdiv_(first, root, value=-lr / (1 - BETAS[0] ** count))
