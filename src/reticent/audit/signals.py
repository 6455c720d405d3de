"""What a model says about records: the raw material of every attack.

`Signals` is what anyone sees who may ask the model (black box), `WhiteBox` what its holder sees in
addition, and `Evidence` all of it for one audit. Everything lies on the CPU; models are asked on
the device of the caller's choice, in batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from reticent.errors import DataError, ModelError, OptionError, whole
from reticent.gradients import clipped_sum
from reticent.gradients.batches import batch_size, call, part


@dataclass(frozen=True, eq=False)
class Signals:
    """One model's class scores on some records, and what follows from them.

    >>> said = Signals(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> said.correct.tolist(), said.confidence.tolist()
    ([True, False], [2.0, -1.0])
    """

    logits: Tensor
    """[n, classes] float32; probabilities are their softmax."""
    labels: Tensor
    """[n] int64, the records' true classes."""

    def __post_init__(self) -> None:
        logits, labels = self.logits.detach().cpu().float(), self.labels.detach().cpu().long()
        if logits.ndim != 2 or logits.shape[1] < 2 or labels.shape != logits.shape[:1]:
            raise DataError(
                f"logits and labels have shapes {tuple(logits.shape)} and {tuple(labels.shape)}: "
                "give [n, classes] scores of at least two classes, and [n] labels"
            )
        _refuse_labels(labels, logits.shape[1])
        _refuse_non_finite("logits", logits)
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """How many classes."""
        return self.logits.shape[1]

    @cached_property
    def posteriors(self) -> Tensor:
        """[n, classes] float64 probabilities."""
        return self.logits.double().softmax(1)

    @cached_property
    def confidence(self) -> Tensor:
        """[n] float64: log p_y − log Σ_{c≠y} p_c, the statistic of LiRA (see `confidence`)."""
        return confidence(self.logits, self.labels)

    @cached_property
    def losses(self) -> Tensor:
        """[n] float64 cross-entropies (see `losses`)."""
        return losses(self.confidence)

    @cached_property
    def correct(self) -> Tensor:
        """[n] bool: whether the highest score is the label's."""
        return self.logits.argmax(1) == self.labels


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """The label's log-odds, log p_y − log Σ_{c≠y} p_c, in float64.

    Close to a normal law over models, where losses are not (Carlini et al. 2022). Taken from the
    logits as z_y − log Σ_{c≠y} exp z_c, it keeps its digits where p_y rounds to 1.

    Args:
        logits: [n, classes], or [K, n, classes] of K models.
        labels: [n].

    Returns:
        [n] or [K, n].
    """
    if logits.ndim > 2:  # model by model: a table in float64 of all of them may not fit
        return torch.stack([confidence(one, labels) for one in logits])
    values, index = logits.double(), labels.to(logits.device)[:, None]
    own = values.gather(1, index).squeeze(1)
    return own - values.scatter(1, index, -torch.inf).logsumexp(1)


def losses(confidence: Tensor) -> Tensor:
    """Cross-entropies from confidences: −log p_y = log(1 + exp(−confidence)), small ones exact."""
    return torch.logaddexp(torch.zeros_like(confidence), -confidence)


@dataclass(frozen=True, eq=False)
class WhiteBox:
    """What the holder of the model sees of some records, besides its class scores.

    The gradient of the last linear layer is the outer product of `errors` and `embeddings` (and
    `errors` for its bias), so these two stand for it without its size.
    """

    norms: Tensor
    """[n] L2 norms of the loss's gradient in all trainable parameters."""
    embeddings: Tensor
    """[n, d] what goes into the last linear layer."""
    errors: Tensor
    """[n, classes] posteriors − one-hot label: the loss's gradient in the class scores."""

    def __len__(self) -> int:
        return len(self.norms)

    @cached_property
    def last_norms(self) -> Tensor:
        """[n] L2 norms of the gradient in the last layer's weight: ‖error‖·‖embedding‖."""
        return self.errors.norm(dim=1) * self.embeddings.norm(dim=1)


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that attacks may look at; K shadow models, n audited records, m population records."""

    target: Signals
    """The target model on the audited records."""
    members: Tensor
    """[n] bool, the truth. Attacks do not read it, but for the part that white-box knows."""
    shadow_logits: Tensor | None = None
    """[K, n, classes]: the shadow (reference) models on the audited records."""
    shadow_members: Tensor | None = None
    """[K, n] bool: which audited records each of them was trained on."""
    population: Signals | None = None
    """The target on records that neither its training nor the audited set contains."""
    shadow_population: Tensor | None = None
    """[K, m, classes]: the shadow models on the same population records."""
    shadow_population_members: Tensor | None = None
    """[K, m] bool: which of these each shadow model was trained on; none, if not given."""
    whitebox: WhiteBox | None = None
    """The target's inside on the audited records."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                object.__setattr__(self, name, value.detach().cpu())
        n, classes = len(self.target), self.target.classes
        if self.members.dtype != torch.bool or tuple(self.members.shape) != (n,):
            raise DataError(
                f"members is {self.members.dtype} of shape {tuple(self.members.shape)}: "
                f"give booleans of shape ({n},), one per audited record"
            )
        if (self.shadow_logits is None) != (self.shadow_members is None):
            raise DataError("give shadow_logits and shadow_members together, or neither")
        if self.population is not None and self.population.classes != classes:
            raise DataError(f"population has {self.population.classes} classes, not {classes}")
        if self.shadow_population is not None and self.population is None:
            raise DataError("shadow_population needs population: the target on the same records")
        models = None if self.shadow_logits is None else len(self.shadow_logits)
        m = 0 if self.population is None else len(self.population)
        _expect("shadow_logits", self.shadow_logits, (models, n, classes))
        _expect("shadow_members", self.shadow_members, (models, n), torch.bool)
        _expect("shadow_population", self.shadow_population, (models, m, classes))
        _expect(
            "shadow_population_members", self.shadow_population_members, (models, m), torch.bool
        )
        if self.whitebox is not None and len(self.whitebox) != n:
            raise DataError(f"whitebox has {len(self.whitebox)} records, target has {n}")

    @cached_property
    def shadow_confidence(self) -> Tensor | None:
        """[K, n] float64: `confidence` of every shadow model on the audited records."""
        if self.shadow_logits is None:
            return None
        return confidence(self.shadow_logits, self.target.labels)

    @cached_property
    def shadow_population_confidence(self) -> Tensor | None:
        """[K, m] float64: the same on the population records."""
        if self.shadow_population is None or self.population is None:
            return None
        return confidence(self.shadow_population, self.population.labels)


def query(
    model: nn.Module,
    inputs: Any,
    labels: Tensor,
    *,
    device: torch.device | str = "cpu",
    batch: int = 1024,
) -> Signals:
    """Ask `model` about records, in evaluation mode and in batches.

    Args:
        model: Moved to `device` if it is elsewhere; its mode is as before afterwards.
        inputs: A tensor, or a tuple or dict of tensors, examples along dimension 0.
        labels: [n] class numbers.
        device: Where the model is run.
        batch: Records at a time.
    """
    with _asked(model, device), torch.no_grad():
        logits = [
            _scores(model, x).float().cpu() for x, _ in _batches(inputs, labels, device, batch)
        ]
    return Signals(torch.cat(logits), labels)


def look_inside(
    model: nn.Module,
    inputs: Any,
    labels: Tensor,
    *,
    layer: str | None = None,
    device: torch.device | str = "cpu",
    batch: int = 256,
) -> WhiteBox:
    """What the holder of `model` sees: gradients and the last layer's embeddings.

    Gradients are those of the cross-entropy, one record at a time, in evaluation mode (so that
    dropout adds no noise).

    Args:
        model: As for `query`; without layers that mix examples.
        inputs: As for `query`.
        labels: As for `query`.
        layer: Name of the linear layer whose input is the embedding; the last that is called, if
            left. It must make the class scores.
        device: Where the model is run.
        batch: Records at a time.
    """
    norms, embeddings, errors = [], [], []
    with _asked(model, device):
        name = _last_linear(model, part(_placed(inputs, device), 0, 1)) if layer is None else layer
        watched = dict(model.named_modules()).get(name)
        if not isinstance(watched, nn.Linear):
            raise OptionError("layer", layer, "must name an nn.Linear of the model")
        for x, y in _batches(inputs, labels, device, batch):
            embedding, scores, output = _around(model, watched, x)
            _refuse_other_scores(name, scores, output)
            error = output.double().softmax(1)
            error.scatter_add_(1, y[:, None], -torch.ones_like(error[:, :1]))
            found = clipped_sum(model, nn.CrossEntropyLoss(), x, y, clip=1.0)
            norms.append(found.norms.detach().cpu())
            embeddings.append(embedding.float().cpu())
            errors.append(error.float().cpu())
    inside = WhiteBox(torch.cat(norms), torch.cat(embeddings), torch.cat(errors))
    for what, values in vars(inside).items():
        _refuse_non_finite(what, values)
    return inside


def _around(model: nn.Module, watched: nn.Linear, inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What goes into a layer and out of it at its last call, and the model's class scores."""
    seen: list[tuple[Tensor, Tensor]] = []
    hook = watched.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    try:
        with torch.no_grad():
            output = _scores(model, inputs)
    finally:
        hook.remove()
    return (*seen[-1], output)


def _last_linear(model: nn.Module, one: Any) -> str:
    called: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.no_grad():
            _scores(model, one)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise ModelError(
            "the model calls no nn.Linear, which white-box attacks take embeddings from: let its "
            "last layer be one"
        )
    return called[-1]


def _refuse_other_scores(name: str, scores: Tensor, output: Tensor) -> None:
    """The closed form of the gradient holds if nothing but a log-softmax follows the layer."""
    same = scores.shape == output.shape and torch.allclose(
        scores.double().log_softmax(1), output.double().log_softmax(1), rtol=1e-3, atol=1e-3
    )
    if not same:
        raise ModelError(
            f"the linear layer {name!r} does not make the model's class scores: name the one that "
            "does as layer=, and let nothing but a log-softmax follow it"
        )


def _scores(model: nn.Module, inputs: Any) -> Tensor:
    output = call(model, inputs)
    if not isinstance(output, Tensor) or output.ndim != 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(f"the model returns {shape}: membership attacks need [n, classes] scores")
    return output


def _placed(tree: Any, device: torch.device | str) -> Any:
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


def _batches(
    inputs: Any, labels: Tensor, device: torch.device | str, batch: int
) -> Iterator[tuple[Any, Tensor]]:
    size, n = whole("batch", batch), batch_size(inputs, labels)
    if not n:
        raise DataError("there are 0 records to ask the model about: give at least one")
    for start in range(0, n, size):
        yield _placed(part((inputs, labels.long()), start, start + size), device)


@contextmanager
def _asked(model: nn.Module, device: torch.device | str) -> Iterator[None]:
    """The model in evaluation mode on `device`; each module's mode as before afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.to(device)
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _expect(
    name: str, found: Tensor | None, shape: tuple[int | None, ...], dtype: torch.dtype | None = None
) -> None:
    if found is None:
        return
    # None stands for any size
    if len(found.shape) != len(shape) or any(
        want not in (None, have) for have, want in zip(found.shape, shape, strict=True)
    ):
        wanted = ", ".join("K" if size is None else str(size) for size in shape)
        raise DataError(f"{name} has shape {tuple(found.shape)}: must be ({wanted})")
    if dtype is not None and found.dtype != dtype:
        raise DataError(f"{name} has dtype {found.dtype}: must be {dtype}")
    if found.is_floating_point():
        _refuse_non_finite(name, found)


def _refuse_labels(labels: Tensor, classes: int) -> None:
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(
            f"labels run from {int(labels.min())} to {int(labels.max())}: must be class numbers "
            f"from 0 to {classes - 1}"
        )


def _refuse_non_finite(name: str, values: Tensor) -> None:
    if not bool(values.isfinite().all()):
        raise DataError(f"{name} holds NaN or infinity: the model has diverged, or its inputs have")
