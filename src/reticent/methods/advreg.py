"""Adversarial regularisation: train against an attacker that is trained along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from reticent.errors import OptionError, between, not_negative, positive, single, whole
from reticent.gradients.losses import per_example_losses
from reticent.methods.attack_network import AttackNetwork, adam_step, gain, width_for
from reticent.methods.base import Method, Price
from reticent.methods.passes import answers, class_count, gradient
from reticent.methods.plain import no_budget
from reticent.privacy import Budget, Ledger, NonPrivate

if TYPE_CHECKING:
    from reticent.training.run import Run


@dataclass(frozen=True)
class AdvReg(Method):
    """Minimise loss + λ·log h on the members, h being an attack that is trained along.

    Nasr, Shokri, Houmansadr 2018, Algorithm 1. h reads posteriors and label of a record and tells
    members from a reference set. One release: `attack_steps` steps of h, then one of the model.

    Formal guarantee: none. The model resists the attack that it was trained against; what another
    attack finds is for an audit to say.

    Args:
        batch: How many members enter a step, and as many of the reference set.
        weight: λ, how much the attack's gain counts beside the loss; 0 is plain training.
        attack_steps: k, how many steps the attack makes in a release.
        reference: The share of the records that are set aside as non-members, by secret coins and
            for the whole run. The model is not trained on them.
        warmup: How many releases pass before there is an attack.
        attack_lr: Adam's step size for the attack.
        width: The attack's layers as a share of the published ones; by default by the number of
            classes.

    Example:
        >>> AdvReg(batch=64, reference=0.25).set_aside(1000)
        250
    """

    batch: int
    weight: float = 1.0
    attack_steps: int = 5
    reference: float = 0.5
    warmup: int = 0
    attack_lr: float = 1e-3
    width: float | None = None

    name: ClassVar[str] = "advreg"
    title: ClassVar[str] = "Adversarial regularisation"
    paper: ClassVar[str] = (
        "Nasr, Shokri, Houmansadr, Machine learning with membership privacy using adversarial "
        "regularization, CCS 2018"
    )
    guarantee: ClassVar[str] = "empirical"

    def __post_init__(self) -> None:
        whole("batch", self.batch)
        not_negative("weight", self.weight)
        whole("attack_steps", self.attack_steps)
        between("reference", self.reference, 0, 1, open_low=True)
        if self.reference == 1:
            raise OptionError("reference", self.reference, "leaves nothing to train on; below 1")
        whole("warmup", self.warmup, least=0)
        single("attack_lr", self.attack_lr)
        if self.width is not None:
            positive("width", self.width)

    def set_aside(self, n: int) -> int:
        """How many of `n` records are the reference set."""
        if n < 2:
            raise OptionError("reference", self.reference, f"cannot split {n} record in two")
        return min(max(round(self.reference * n), 1), n - 1)

    def price(self, n: int) -> Price:
        """As the base class says."""
        members = n - self.set_aside(n)
        if self.batch > members:
            raise OptionError(
                "batch",
                self.batch,
                f"exceeds the {members} of {n} records that reference = {self.reference:g} leaves",
            )
        return ((NonPrivate("adversarial regularisation adds no noise"), "training"),)

    def calibrated(self, budget: Budget, n: int, steps: int, ledger: Ledger) -> AdvReg:
        """Refused: there is nothing to calibrate."""
        raise no_budget(self, budget)

    def release(self, run: Run) -> None:
        """As the base class says."""
        members, others = self._sides(run)
        attacking = run.release >= self.warmup
        if attacking:
            self._train_attack(run, members, others)
        batch = members[run.flips("batch")[members].argsort()[: self.batch]]

        def losses(outputs: Tensor, targets: Tensor, _: Tensor) -> Tensor:
            each = per_example_losses(run.loss_fn, outputs, targets)
            if not attacking:
                return each
            network = self._network(outputs.shape[1])
            posteriors = outputs.float().softmax(1)
            scores = network.scores(run.private["attack"], posteriors, targets)
            return each + self.weight * F.logsigmoid(scores)

        run.step(gradient(run, batch, losses))

    def _sides(self, run: Run) -> tuple[Tensor, Tensor]:
        """Positions of the members and of the reference set: drawn once, then kept."""
        if "members" not in run.private:
            self.price(run.records.n)  # the real number may be another than the nominal one
            class_count(run, self.name)
            order = run.permutation("reference").to(run.device)
            others = self.set_aside(run.records.n)
            run.private["reference"] = order[:others].sort().values
            run.private["members"] = order[others:].sort().values
        return run.private["members"], run.private["reference"]

    def _network(self, classes: int) -> AttackNetwork:
        return AttackNetwork(classes, width_for(classes) if self.width is None else self.width)

    def _train_attack(self, run: Run, members: Tensor, others: Tensor) -> None:
        """Let the attack learn from the outputs of the model as it stands."""
        flips, steps = run.flips("attack batches"), self.attack_steps
        drawn = [_batches(side, flips, steps, self.batch) for side in (members, others)]
        sizes = [batches.shape[1] for batches in drawn]
        posteriors, labels = answers(run, torch.cat(drawn, 1).reshape(-1), "attack")
        network = self._network(posteriors.shape[1])
        if "attack" not in run.private:
            normal = run.coins.normal(
                (network.size,), "attack network", run.release, device=run.device
            )
            run.private["attack"] = network.initial(normal)
            run.private["attack first moment"] = torch.zeros_like(normal)
            run.private["attack second moment"] = torch.zeros_like(normal)
        weights = run.private["attack"]
        moments = run.private["attack first moment"], run.private["attack second moment"]
        made = steps * (run.release - self.warmup)
        said = torch.zeros(())
        for step, (p, y) in enumerate(
            zip(posteriors.split(sum(sizes)), labels.split(sum(sizes)), strict=True), start=1
        ):
            with torch.enable_grad():
                moving = weights.detach().requires_grad_()
                said = gain(*network.scores(moving, p, y).split(sizes))
                (up,) = torch.autograd.grad(said, moving)
            adam_step(weights, *moments, -up, made + step, self.attack_lr)
        if run.diagnostics is not None:
            run.diagnose(attack_gain=float(said.detach()))

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        return {
            "batch": self.batch,
            "weight": self.weight,
            "attack_steps": self.attack_steps,
            "reference": self.reference,
            "warmup": self.warmup,
            "attack_lr": self.attack_lr,
            "width": self.width,
        }


def _batches(side: Tensor, flips: Tensor, count: int, batch: int) -> Tensor:
    """`count` random batches [count, batch] of a side; none repeats before all were in one.

    A side of fewer than `batch` records is a batch as a whole.
    """
    order = side[flips[side].argsort()]
    size = min(batch, len(order))
    return order[torch.arange(count * size, device=order.device) % len(order)].view(count, size)
