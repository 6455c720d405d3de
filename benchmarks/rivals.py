"""What to compare with: one example at a time, ordinary SGD, Opacus as its documents say.

Opacus is no dependency. Where it cannot be imported its steps are recorded as not installed.
"""

from __future__ import annotations

import copy
import functools
import logging
import warnings
from collections.abc import Callable
from importlib import metadata

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

MODES = ("hooks", "functorch", "ghost")
Run = Callable[[], None]


def plain(model: nn.Module, inputs: Tensor, targets: Tensor, *, lr: float, **_: float) -> Run:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    loss_fn = nn.CrossEntropyLoss()

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_fn(model(inputs), targets).backward()
        optimizer.step()

    return run


def plain_compiled(model: nn.Module, inputs: Tensor, targets: Tensor, **options: float) -> Run:
    return plain(torch.compile(model), inputs, targets, **options)  # type: ignore[arg-type]


def plain_graph(model: nn.Module, inputs: Tensor, targets: Tensor, *, lr: float, **_: float) -> Run:
    """The ordinary step as a captured CUDA graph: the counterpart of a replayed private one."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    loss_fn = nn.CrossEntropyLoss()

    def whole() -> None:
        loss_fn(model(inputs), targets).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _warm in range(3):
            optimizer.zero_grad(set_to_none=True)
            whole()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        whole()
    # a graph does not own the memory it works on: without the model, replays would hit others'
    return functools.partial(_replay, graph, whole)


def _replay(graph: torch.cuda.CUDAGraph, held: object) -> None:
    graph.replay()


def gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The gradient of one example, by plain autograd, in double."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = nn.functional.cross_entropy(model(inputs), targets)
    grads = torch.autograd.grad(loss, list(named.values()))
    return {name: grad.double() for name, grad in zip(named, grads, strict=True)}


def one_at_a_time(
    model: nn.Module, inputs: Tensor, targets: Tensor
) -> tuple[dict[str, Tensor], float]:
    """The clipped sum in double precision, and the bound, which clips half the examples."""
    exact = copy.deepcopy(model).double()
    wide = inputs.double() if inputs.is_floating_point() else inputs
    rows = [gradient(exact, wide[i : i + 1], targets[i : i + 1]) for i in range(len(inputs))]
    norms = [float(sum(g.square().sum() for g in row.values())) ** 0.5 for row in rows]
    clip = sorted(norms)[(len(norms) - 1) // 2]
    total = {name: torch.zeros_like(g) for name, g in rows[0].items()}
    for row, norm in zip(rows, norms, strict=True):
        for name, g in row.items():
            total[name] += min(1.0, clip / norm) * g
    return total, clip


def version() -> str | None:
    """The version of Opacus at hand, None without it."""
    try:
        import opacus  # noqa: F401

        return metadata.version("opacus")
    except ImportError:  # that of metadata is one, too
        return None


def variant(model: nn.Module) -> tuple[nn.Module, str]:
    """The model with the layers Opacus refuses replaced by its own, and a note of which."""
    from opacus.validators import ModuleValidator

    if not ModuleValidator.validate(model, strict=False):
        return model, ""
    before = {name: type(module).__name__ for name, module in model.named_modules()}
    fixed = ModuleValidator.fix(model)
    ModuleValidator.validate(fixed, strict=True)
    swaps = {
        (before[name], type(module).__name__)
        for name, module in fixed.named_modules()
        if name in before and before[name] != type(module).__name__
    }
    return fixed, ", ".join(f"{old} replaced by {new}" for old, new in sorted(swaps))


def opacus(
    mode: str,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    lr: float,
    noise: float,
    clip: float,
) -> Run:
    """One whole private step: the same batch each time, flat clipping, no Poisson sampling."""
    from opacus import PrivacyEngine

    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message=".*backward hook.*")
    logging.getLogger("opacus").setLevel(logging.ERROR)
    criterion = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr),
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=len(inputs)),
        noise_multiplier=noise,
        max_grad_norm=clip,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    wrapped, optimizer = made[0], made[1]
    loss_fn = made[2] if mode == "ghost" else criterion

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_fn(wrapped(inputs), targets).backward()
        optimizer.step()

    return run
