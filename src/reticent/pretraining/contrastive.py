"""Learn to see from images that nobody took: an encoder trained on random processes.

DP-RandP (Tang et al. 2023, "Differentially private image classification by learning priors from
random processes") starts private training from features that were learned without any record, so
that they cost no privacy. Learning is by contrast: two views of one image are to be closer to one
another than to the views of all others (InfoNCE, van den Oord et al. 2018; Chen et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from reticent.errors import OptionError, between, positive, whole
from reticent.pretraining.shapes import blurred, dead_leaves, fractals
from reticent.pretraining.textures import coloured_noise, random_networks
from reticent.pretraining.views import view

Drawing = Callable[[int, int], None]
"""Called with the images drawn and their number."""

Progress = Callable[[int, int, float | None], None]
"""Called after each step with its number, the number of steps and the last loss that is known."""

_REPORT = 100  # steps that one loss is the mean of
_LEAST_SIDE = 4
_PIECE = 1024  # images drawn at a time; part of what a seed means
# Shares of the bank: what has shapes teaches most.
_SHARES = (("leaves", 0.5), ("networks", 0.25), ("fractals", 0.15), ("noise", 0.1))


@dataclass(frozen=True)
class Pretraining:
    """How an encoder is trained; the whole of it, with the seed, so that it can be repeated.

    Attributes:
        images: how many images are drawn.
        drawn_side: their side; views are parts of them.
        side: the side of the views, and of the images that the encoder is for.
        batch: images in a step, each seen twice.
        steps: how many.
        lr: the peak learning rate of Adam, after a warm-up and before a cosine.
        temperature: of the contrast.
        smallest: the smallest part of an image that is a view of it.
        seed: of everything.
    """

    images: int = 131_072
    drawn_side: int = 48
    side: int = 32
    batch: int = 1024
    steps: int = 8000
    lr: float = 2e-3
    temperature: float = 0.2
    smallest: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"drawn_side": _LEAST_SIDE, "side": _LEAST_SIDE, "batch": 2, "seed": 0}
        for name in ("images", "drawn_side", "side", "batch", "steps", "seed"):
            whole(name, getattr(self, name), least=least.get(name, 1))
        positive("lr", self.lr)
        positive("temperature", self.temperature)
        between("smallest", self.smallest, 0, 1, open_low=True)

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON-ready data."""
        return asdict(self)


def draw_images(
    count: int, side: int, coins: Generator, *, progress: Drawing | None = None
) -> Tensor:
    """Images of all processes, shuffled: [count, 3, side, side] of bytes, on the coins' device."""
    bank = torch.empty(count, 3, side, side, dtype=torch.uint8, device=coins.device)
    done = 0
    while done < count:
        half = _PIECE // 2
        textures = torch.cat(
            (coloured_noise(half, side, coins), random_networks(half, side, coins))
        )
        parts = []
        for name, share in _SHARES:
            number = math.ceil(share * _PIECE)
            if name == "leaves":
                parts.append(dead_leaves(textures, number, coins))
            elif name == "fractals":
                parts.append(fractals(textures, number, coins))
            else:
                start = 0 if name == "noise" else half
                parts.append(textures[start : start + number])
        piece = blurred(torch.cat(parts), coins)
        piece = piece[torch.randperm(len(piece), generator=coins, device=coins.device)]
        taken = min(_PIECE, count - done)
        bank[done : done + taken] = (piece[:taken] * 255).round().to(torch.uint8)
        done += taken
        if progress is not None:
            progress(done, count)
    return bank


def contrast(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """InfoNCE of two views [n, d] each: every view is to find its twin among all 2n - 1 others."""
    views = F.normalize(torch.cat((first, second)), dim=1)
    alike = views @ views.T / temperature
    alike.fill_diagonal_(-math.inf)
    count = len(first)
    twins = torch.arange(2 * count, device=views.device).roll(count)
    return F.cross_entropy(alike, twins)


def pretrain(
    encoder: nn.Module,
    width: int,
    plan: Pretraining,
    *,
    device: torch.device | str,
    compiled: bool = False,
    drawing: Drawing | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Train an encoder in place; the mean losses of every hundred steps, and of the last ones.

    Args:
        encoder: from images [n, 3, side, side] in [0, 1] to features [n, width].
        width: of its features.
        plan: what to do.
        device: where.
        compiled: whether to compile the encoder first, which takes a minute and then saves most.
        drawing: told about the images that are drawn first.
        progress: told about every step.
    """
    device = torch.device(device)
    coins = Generator(device).manual_seed(plan.seed)
    bank = draw_images(plan.images, plan.drawn_side, coins, progress=drawing)
    fast = device.type == "cuda"
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(plan.seed)
        projector = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 128))
    encoder = encoder.to(device).train()
    for weight in encoder.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.to(memory_format=torch.channels_last)
    projector = projector.to(device)
    seeing = torch.compile(encoder) if compiled else encoder
    weights = [*encoder.parameters(), *projector.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=plan.lr, weight_decay=1e-4, fused=fast)
    warm = max(min(200, plan.steps // 10), 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            (step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(step / plan.steps, 1)))
        ),
    )
    losses: list[float] = []
    running = torch.zeros((), device=device)
    for step in range(plan.steps):
        chosen = torch.randint(len(bank), (plan.batch,), generator=coins, device=device)
        images = bank[chosen].float() / 255
        both = torch.cat(
            [view(images, plan.side, coins, smallest=plan.smallest) for _ in range(2)]
        ).to(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=fast):
            seen = projector(seeing(both))
        first, second = seen.float().chunk(2)
        loss = contrast(first, second, plan.temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        running += loss.detach()
        if (step + 1) % _REPORT == 0 or step + 1 == plan.steps:
            losses.append(float(running) / ((step % _REPORT) + 1))
            running.zero_()
            if not math.isfinite(losses[-1]):
                raise OptionError(
                    "lr",
                    plan.lr,
                    f"the loss was not finite any more at step {step + 1:,}; lower it",
                )
        if progress is not None:
            progress(step + 1, plan.steps, losses[-1] if losses else None)
    encoder.eval()
    return losses
