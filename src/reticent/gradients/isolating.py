"""Do the examples of a batch stay apart? Tested by behaviour, on whatever the model does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from reticent.errors import ModelError, OptionError
from reticent.gradients import rounding
from reticent.gradients.batches import (
    batch_size,
    call,
    part,
    synthetic_like,
    tensors,
    unwrapped,
)
from reticent.gradients.engine import clipped_sum
from reticent.gradients.losses import LossFn
from reticent.gradients.validation import problems

T = TypeVar("T")
# not a seed anyone uses for their own data: the replacement must differ from what it replaces
PERTURBATION = 0x5E1F_1E55
SEED = 20
# A module that mixes with probability p escapes with probability (1 - p)^SEEDS.
SEEDS = 32


_MACHINERY = frozenset(vars(nn.Module()))  # what every module has: mode, hooks, registries


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _held(model: nn.Module) -> dict[tuple[nn.Module, str], Any]:
    """Everything that a forward pass could leave something in, lists and dicts included."""
    held: dict[tuple[nn.Module, str], Any] = {}
    for module in model.modules():
        own = {k: v for k, v in vars(module).items() if k not in _MACHINERY}
        for name, value in (*module._parameters.items(), *module._buffers.items(), *own.items()):
            if isinstance(value, (Tensor, float, int, list, dict, tuple)):
                held[module, name] = value
    return held


def plain_settings(model: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Where a model's modules keep numbers, words and flags of their own: (attributes, name)."""
    return [
        (vars(module), name)
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in _MACHINERY and isinstance(value, (bool, int, float, str))
    ]


@contextmanager
def as_found(model: nn.Module) -> Iterator[None]:
    """Leave modes, buffers and plain attributes as they were."""
    modes = {module: module.training for module in model.modules()}
    before = {key: _copy(value) for key, value in _held(model).items()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        _put_back(model, before)


def draws_apart(model: nn.Module) -> AbstractContextManager[None]:
    """Random numbers drawn meanwhile do not count: the generators come back as they were."""
    return torch.random.fork_rng(devices=_cuda(model))


def reseed(seed: int) -> None:
    """As `torch.manual_seed`, which takes milliseconds to reach devices that nobody uses."""
    torch.default_generator.manual_seed(seed)
    for kind in (torch.cuda, torch.xpu):
        if kind.is_initialized():
            kind.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def _copy(value: Any) -> Any:
    return tree_map(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, value)


def _put_back(model: nn.Module, before: dict[tuple[nn.Module, str], Any]) -> None:
    for (module, name), value in before.items():
        current = getattr(module, name)
        if not _differ(current, value):
            continue
        if isinstance(current, Tensor) and current.shape == getattr(value, "shape", None):
            current.detach().copy_(value)
        else:
            setattr(module, name, value)


def _learned(model: nn.Module, inputs: Any, others: Any) -> list[str]:
    """What the forward pass keeps and that depends on the records."""
    names = {id(module): name for name, module in model.named_modules()}
    after: list[dict[tuple[nn.Module, str], Any]] = []
    for batch in (inputs, others):
        with as_found(model), draws_apart(model), torch.no_grad():
            reseed(SEED)
            call(unwrapped(model), batch)
            after.append({key: _copy(value) for key, value in _held(model).items()})
    return [
        f"{'.'.join(filter(None, (names[id(module)], name)))!r} takes up the records in the "
        "forward pass, outside the gradient, where no noise reaches it"
        for (module, name), value in after[0].items()
        if _differ(value, after[1].get((module, name)))
    ]


def changed_by(model: nn.Module, inputs: Any, *, evaluated: bool = False) -> list[str]:
    """What a forward pass changes in the model, in its present mode or in evaluation mode."""
    names = {id(module): name for name, module in model.named_modules()}
    with as_found(model), draws_apart(model), torch.no_grad():
        if evaluated:
            model.eval()
        before = {key: _copy(value) for key, value in _held(model).items()}
        call(unwrapped(model), inputs)
        after = _held(model)
        return [
            ".".join(filter(None, (names[id(module)], name)))
            for (module, name) in {**before, **after}
            if _differ(before.get((module, name)), after.get((module, name)))
        ]


def _differ(a: Any, b: Any) -> bool:
    (left, shape), (right, other) = tree_flatten(a), tree_flatten(b)
    if shape != other:
        return True
    return any(
        x.shape != y.shape or not torch.allclose(x.double(), y.double(), equal_nan=True)
        if isinstance(x, Tensor) and isinstance(y, Tensor)
        else x is not y and not (isinstance(x, (int, float, str)) and x == y)
        for x, y in zip(left, right, strict=True)
    )


def _cuda(model: nn.Module) -> list[torch.device]:
    device = device_of(model)
    return [device] if device.type == "cuda" else []


def isolation(
    model: nn.Module,
    loss_fn: LossFn,
    inputs: Any,
    targets: Any,
    *,
    rtol: float = 1e-3,
    atol: float = 1e-5,
) -> None:
    """Test that no example influences another; raises `ModelError` if one does.

    One example is replaced at a time: the outputs, losses and gradient norms of the others must not
    move, and every example alone must give what it gave in the batch. Finds what no list of layer
    types can: a module that subtracts the batch mean, or a layer that takes time for batch.

    >>> import torch
    >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    >>> isolation(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), x, y)
    """
    found = problems(model) or isolation_problems(model, loss_fn, inputs, targets, rtol, atol)
    if found:
        raise ModelError(
            "examples of a batch influence each other:\n" + "\n".join(f"- {line}" for line in found)
        )


def isolation_problems(
    model: nn.Module, loss_fn: LossFn, inputs: Any, targets: Any, rtol: float, atol: float
) -> list[str]:
    """What `isolation` finds, in words.

    The model stays in the mode it is in, and calls are compared with the same random numbers:
    mixing that happens in training only, or at random, shows like any other (at random with
    probability p: except with probability (1 - p)^32).
    """
    size = batch_size(inputs, targets)
    if size < 2:
        raise OptionError("inputs", f"{size} examples", "give at least 2 to compare")
    inner = unwrapped(model)

    def seeded(compute: Callable[[], T], seed: int = SEED) -> T:
        reseed(seed)
        return compute()

    def outputs(x: Any) -> list[Tensor]:
        with torch.no_grad():
            return [leaf.detach() for leaf in tensors(call(inner, x))]

    def same(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)

    def alike(a: list[Tensor], b: list[Tensor]) -> bool:
        return all(x.shape == y.shape and same(x, y) for x, y in zip(a, b, strict=True))

    others_x, others_y = synthetic_like(inputs, targets, size, seed=PERTURBATION)
    learned = _learned(model, inputs, others_x)
    if learned:
        return learned
    with (
        as_found(model),
        rounding.forbidden(device_of(model)),
        draws_apart(model),
    ):
        base = seeded(lambda: outputs(inputs))
        for leaf in base:
            if leaf.ndim == 0 or leaf.shape[0] != size:
                return [
                    f"the model's output has shape {tuple(leaf.shape)}: its dimension 0 is not the "
                    f"{size} examples"
                ]
        drawn = _generators(model)
        if not alike(base, seeded(lambda: outputs(inputs))):
            return ["a second call on the same inputs gives another output: it keeps a state"]
        reseed(SEED)
        random = not all(torch.equal(a, b) for a, b in zip(drawn, _generators(model), strict=True))
        if random:
            shared = _shared_coins(model, inputs, size)
            if shared:
                return shared
        changed = [(j, _with(inputs, others_x, j)) for j in range(min(size, 3))]
        for seed in range(SEED + 1, SEED + SEEDS) if random else ():
            other = seeded(partial(outputs, inputs), seed)
            for j, x in changed:
                rest = [i for i in range(size) if i != j]
                moved_x = seeded(partial(outputs, x), seed)
                if not all(same(a[rest], b[rest]) for a, b in zip(other, moved_x, strict=True)):
                    return [f"changing example {j} at times changes the output for other examples"]
        norms = seeded(lambda: clipped_sum(model, loss_fn, inputs, targets, torch.inf))
        for j in range(min(size, 3)):
            x, y = _with(inputs, others_x, j), _with(targets, others_y, j)
            rest = [i for i in range(size) if i != j]
            for before, after in zip(base, seeded(partial(outputs, x)), strict=True):
                if not same(before[rest], after[rest]):
                    return [f"changing example {j} changes the output for other examples"]
            moved = seeded(partial(clipped_sum, model, loss_fn, x, y, torch.inf))
            if not same(norms.losses[rest], moved.losses[rest]):
                return [f"changing example {j} changes the losses of other examples"]
            if not same(norms.norms[rest], moved.norms[rest]):
                return [f"changing example {j} changes the gradients of other examples"]
        if random:  # an example alone cannot get the masks it had in the batch
            model.eval()
            base = seeded(lambda: outputs(inputs))
            random = not alike(base, seeded(lambda: outputs(inputs), SEED + 1))
        for i in range(size):
            for whole, alone in zip(base, outputs(part(inputs, i, i + 1)), strict=True):
                if alone.shape[0] != 1 or not (random or same(whole[i : i + 1], alone)):
                    return [f"the output for example {i} is not what it is for that example alone"]
    return []


def _generators(model: nn.Module) -> list[Tensor]:
    """The state of the generators a model may draw from."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in _cuda(model))]


def _shared_coins(model: nn.Module, inputs: Any, size: int) -> list[str]:
    """Modules that draw one coin for all examples of a call (batch-wise drop path, weight drop).

    Which records share such a coin depends on how the drawn ones are dealt into pieces, which one
    record more would shift. Every module is given copies of one example: if they come out equal,
    but differently each time, the coin is shared.
    """
    seen: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        if len(args) == 1 and isinstance(args[0], Tensor) and args[0].shape[:1] == (size,):
            seen.setdefault(module, args[0].detach().clone())

    hooks = [module.register_forward_pre_hook(note) for module in model.modules()]
    try:
        with torch.no_grad():
            call(unwrapped(model), inputs)
    finally:
        for hook in hooks:
            hook.remove()
    names = {module: name for name, module in model.named_modules()}
    for module, x in seen.items():
        copies = x[:1].expand_as(x).clone()
        results = []
        for seed in range(8):
            reseed(SEED + seed)
            with torch.no_grad():
                results.append([t for t in tensors(module(copies)) if t.ndim and len(t) == size])
        varies = any(
            not torch.allclose(a, b)
            for result in results[1:]
            for a, b in zip(results[0], result, strict=True)
        )
        # rows of one product may differ in their last bits
        equal = all(torch.allclose(t, t[:1].expand_as(t)) for result in results for t in result)
        if varies and equal:
            return [
                f"module {names[module]!r} ({type(module).__name__}) draws one random number for "
                "the whole batch; draw one per example"
            ]
    return []


def _with(tree: Any, others: Any, j: int) -> Any:
    """`tree` with example j replaced; integers go to their complement in {0, 1}."""

    def swap(leaf: Any, other: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        changed = leaf.clone()
        changed[j] = other[j] if leaf.is_floating_point() else (leaf[j] == 0).to(leaf.dtype)
        return changed

    return tree_map(swap, tree, others)
