"""`reticent features pretrain`: other weights for `random-images`, learned from random images."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from reticent.cli.output import AsJson, errors, print_json, screen
from reticent.errors import OptionError
from reticent.features.image_network import learn_network, save_network
from reticent.files import check_folder
from reticent.pretraining.contrastive import Pretraining
from reticent.training.train import pick_device


def pretrain(
    out: Annotated[Path, typer.Option(help="File for the weights, such as mine.safetensors.")],
    steps: Annotated[int, typer.Option(help="How many steps.")] = Pretraining.steps,
    images: Annotated[int, typer.Option(help="Images drawn to learn from.")] = Pretraining.images,
    batch: Annotated[int, typer.Option(help="Images in a step.")] = Pretraining.batch,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = Pretraining.lr,
    seed: Annotated[int, typer.Option(help="Public seed of everything.")] = Pretraining.seed,
    side: Annotated[
        int, typer.Option(help="Side of the views; features show the network 32x32 pixels.")
    ] = Pretraining.side,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile first: a minute, then faster on a GPU.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file, once the new one is whole.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train the network of random-images anew; no record is read, so it costs no privacy."""
    plan = Pretraining(
        images=images,
        drawn_side=max(side * 3 // 2, side + 1),
        side=side,
        batch=batch,
        steps=steps,
        lr=lr,
        seed=seed,
    )
    _check_file(out, overwrite)
    started = time.perf_counter()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=as_json) as bars:
        drawn = bars.add_task("drawing images", total=plan.images, shown="")
        learned = bars.add_task("learning", total=plan.steps, shown="", start=False)

        def drawing(done: int, total: int) -> None:
            bars.update(drawn, completed=done)

        def progress(step: int, total: int, loss: float | None) -> None:
            if step == 1:
                bars.start_task(learned)
            shown = "" if loss is None else f"loss {loss:.3f}"
            bars.update(learned, completed=step, shown=shown)

        try:
            net, loss = learn_network(
                plan,
                device=pick_device(device),
                compiled=compiled,
                drawing=drawing,
                progress=progress,
            )
        except KeyboardInterrupt:
            errors.print("stopped; nothing was written")
            raise
    save_network(out, net, plan, loss)
    seconds = time.perf_counter() - started
    if as_json:
        return print_json(
            {"out": str(out), **plan.to_json(), "loss": loss, "seconds": round(seconds, 1)}
        )
    screen.print(f"loss {loss:.3f} after {plan.steps:,} steps in {seconds:.0f} s")
    return screen.print(
        f"use it with: reticent train --features random-images --feature weights={out}",
        soft_wrap=True,
    )


def _check_file(out: Path, overwrite: bool) -> None:
    """Refuse what could not be written, before hours of learning."""
    if out.is_dir():
        raise OptionError("out", str(out), "is a folder; name a file")
    if out.exists() and not overwrite:
        raise OptionError("out", str(out), "is there already; say --overwrite or another name")
    check_folder("out", out.parent)
