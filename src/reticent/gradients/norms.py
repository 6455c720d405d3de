"""Squared per-example norms of every parameter, from the recorded uses.

A parameter that is used once is left to its rule. One that is used several times (a module called
twice, tied weights) has the *sum* over its uses for a gradient, whose norm is not found from the
norms of the parts: uses of one kind are joined into a single use where the rule allows it, an
embedding tied to a linear layer has its cross term computed, and all else is written out and added.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import torch
from torch import Tensor

from reticent.gradients.rules.base import Grads, Use, per_position
from reticent.gradients.rules.embedding import EMBEDDING, table_squares, tokens_and_grads
from reticent.gradients.rules.lengths import squares
from reticent.gradients.rules.linear import LINEAR

# Written-out gradients up to this many bytes in all are kept between norms and sums.
KEEP_BYTES = 256 * 2**20

# For clipping, a norm counts as at least this part of the terms it is a sum of. Terms of ±1e8 that
# cancel have a small norm; let through unscaled, they would swallow the other examples' values in
# the sum over the batch. Gradients of real examples cancel far less (about √positions).
LEAST_SHARE = 1 / 256

Part = tuple[Use, str]


def squared_norms(uses: list[Use]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Squared norms [B], and squares of what they must at least count as, by `id` of the parameter.

    `uses` have their output gradients.
    """
    parts: dict[int, list[Part]] = defaultdict(list)
    for use in uses:
        for role, target in use.targets.items():
            parts[id(target.parameter)].append((use, role))
    norms: dict[int, Tensor] = {}
    floors: dict[int, Tensor] = {}
    shared = {key for key, found in parts.items() if not _disjoint(found)}
    left = KEEP_BYTES
    for use in uses:
        roles = [r for r, t in use.targets.items() if id(t.parameter) not in shared]
        if not roles:
            continue
        rest = [role for role in roles if role not in use.kept]
        found: Grads = {}
        if rest:
            x, g = use.operands()
            need = 4 * x.shape[0] * sum(use.numel(role) for role in rest)
            if use.rule.small or (need <= left and use.rule.instantiates(use.module, x, g)):
                left -= need
                use.kept = {**use.kept, **use.written(rest)}
            else:
                found, masses = use.rule.measures(use.module, x, g, rest)
                for role, mass in masses.items():
                    _raise(floors, id(use.targets[role].parameter), mass)
        found |= {role: squares(use.kept[role]) for role in roles if role in use.kept}
        for role in roles:
            key = id(use.targets[role].parameter)
            norms[key] = norms[key] + found[role] if key in norms else found[role]
    for key in shared:
        norms[key] = _shared(parts[key])
        _raise(floors, key, _shared_mass(parts[key]).square())
    return norms, floors


def _raise(floors: dict[int, Tensor], key: int, mass: Tensor) -> None:
    """Add the terms, squared, of one more use, or of one more block of rows."""
    floor = mass * LEAST_SHARE**2
    floors[key] = floors[key] + floor if key in floors else floor


def _shared_mass(parts: list[Part]) -> Tensor:
    """The terms of all uses; a use that adds whole gradients counts with their norm."""
    total: Tensor | None = None
    for use, role in parts:
        found = use.rule.mass(use.module, *use.operands(), (role,)).get(role)
        if found is None:
            grad = use.kept[role] if role in use.kept else use.written([role])[role]
            found = grad.flatten(1).norm(dim=1)
        total = found if total is None else total + found
    assert total is not None
    return total


def _disjoint(parts: list[Part]) -> bool:
    """Whether the parts are rows of one parameter that do not overlap: norms then add up."""
    spans = sorted((u.targets[r].start, u.targets[r].stop) for u, r in parts)
    return all(a[1] <= b[0] for a, b in pairwise(spans))


def _shared(parts: list[Part]) -> Tensor:
    """Squared norm of the sum over several uses of one parameter."""
    spans: dict[tuple[int, int], list[Part]] = defaultdict(list)
    for use, role in parts:
        spans[use.targets[role].start, use.targets[role].stop].append((use, role))
    if _disjoint([found[0] for found in spans.values()]):
        return torch.stack([_same_rows(found) for found in spans.values()]).sum(0)
    return _instantiated(parts)


def _same_rows(parts: list[Part]) -> Tensor:
    """The same, where all uses have the same rows."""
    if len(parts) == 1:
        use, role = parts[0]
        return use.rule.squared_norms(use.module, *use.operands(), (role,))[role]
    rules = {use.rule for use, _ in parts}
    roles = {role for _, role in parts}
    if len(roles) == 1 and len(rules) == 1:
        role, use = parts[0][1], parts[0][0]
        if (
            use.rule is EMBEDDING
            and len({getattr(u.module, "padding_idx", 0) for u, _ in parts}) > 1
        ):
            return _instantiated(parts)
        joined = use.rule.concatenate(use.module, [u.operands() for u, _ in parts])
        if joined is not None:
            return use.rule.squared_norms(use.module, *joined, (role,))[role]
    if rules == {LINEAR, EMBEDDING} and roles == {"weight"}:
        return _tied(
            [u for u, _ in parts if u.rule is EMBEDDING], [u for u, _ in parts if u.rule is LINEAR]
        )
    return _instantiated(parts)


def _tied(embeddings: list[Use], heads: list[Use]) -> Tensor:
    """An embedding table that is also an output layer, without a [B, V, D] tensor.

    Embedding gradient E = Σ_t e(token_t) h_tᵀ, head gradient L = Σ_s p_s x_sᵀ, hence
    ‖E + L‖² = ‖E‖² + ‖L‖² + 2 Σ_{t,s} p_s[token_t] (h_t·x_s).
    """
    pairs = [tokens_and_grads(u.module, *u.operands()) for u in embeddings]
    tokens, h = torch.cat([t for t, _ in pairs], 1), torch.cat([g for _, g in pairs], 1)
    joined = LINEAR.concatenate(heads[0].module, [u.operands() for u in heads])
    assert joined is not None
    x, p = (per_position(t) for t in joined)
    picked = p.gather(2, tokens.unsqueeze(1).expand(-1, p.shape[1], -1))
    cross = (picked * (x @ h.mT)).sum((1, 2))
    # each module's padding token is silent already, and may be another one's word
    table = table_squares(tokens, h)
    head = LINEAR.squared_norms(heads[0].module, x, p, ("weight",))["weight"]
    return (table + head + 2 * cross).clamp(min=0)


def _instantiated(parts: list[Part]) -> Tensor:
    """Write the gradients out and add them up."""
    total: Tensor | None = None
    for use, role in parts:
        target = use.targets[role]
        grad = use.written([role])[role]
        if use.rule.small:
            use.kept[role] = grad
        if total is None:
            total = grad.new_zeros(grad.shape[0], *target.parameter.shape)
        if target.whole:
            total += grad
        else:
            total[:, target.start : target.stop] += grad
    assert total is not None
    return squares(total)
