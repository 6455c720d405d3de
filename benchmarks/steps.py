"""What a private step costs beside an ordinary one: same model, same batch, same process, in turns.

python benchmarks/steps.py --device cuda

Each private contestant's update without noise is first compared with one example at a time; what
is wrong is not timed. Opacus takes part where it is installed.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import json
import multiprocessing
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import rivals
from cases import CASES
from machine import describe_machine
from reticent import gradients
from reticent.gradients import clipped_sum, rounding
from reticent.training.parameters import FlatParameters
from rivals import Run

RESULTS = Path(__file__).parent / "results"
LR, CLIP, NOISE = 0.1, 1.0, 1.0
WARMUP, CHECKED = 3, 6
# Of an update against one example at a time in float32; on a GPU steps are timed with TF32.
TOLERANCE = {"float32": 1e-3, "tf32": 5e-2}
MIB = 2**20


def summing(repeated: bool, model: nn.Module, clip: float) -> Any:
    """From a batch to the clipped sum; `repeated` replays where it can."""
    if repeated:
        return gradients.RepeatedSum(model, nn.CrossEntropyLoss(), clip)
    return functools.partial(clipped_sum, model, nn.CrossEntropyLoss(), clip=clip)


def private(
    repeated: bool,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    lr: float = LR,
    noise: float = NOISE,
    clip: float = CLIP,
) -> Run:
    """Clipped sum, noise, optimizer on the flat parameters."""
    parameters = FlatParameters(model)
    optimizer = torch.optim.SGD([parameters.flat], lr=lr)
    total_of = summing(repeated, model, clip)

    def run() -> None:
        total = total_of(inputs, targets)
        flat = total.flat()
        drawn = torch.randn(flat.shape, dtype=flat.dtype, device=flat.device)
        released = torch.add(flat, drawn, alpha=noise * total.sensitivity)
        parameters.set_gradient(released.div_(len(inputs)))
        optimizer.step()

    return run


class Contestant(NamedTuple):
    """How to prepare a model for it, and how to make its step."""

    make: Callable[..., Run]
    private: bool
    prepare: Callable[[nn.Module], tuple[nn.Module, str]] = lambda model: (model, "")
    skipped: str = ""
    """Why it cannot take part."""


def contestants(device: str, compiled: bool, others: bool) -> dict[str, Contestant]:
    """All of them in the order of the tables; those that cannot take part say why."""
    no_graph = "" if device == "cuda" else "needs CUDA"
    found = {
        "plain": Contestant(rivals.plain, False),
        "plain compiled": Contestant(
            rivals.plain_compiled, False, skipped="" if compiled else "not asked for"
        ),
        "plain graph": Contestant(rivals.plain_graph, False, skipped=no_graph),
        "reticent": Contestant(functools.partial(private, True), True),
        "reticent eager": Contestant(functools.partial(private, False), True),
    }
    no_rival = "" if rivals.version() else "not installed"
    for mode in rivals.MODES if others else ():
        make = functools.partial(rivals.opacus, mode)
        found[f"opacus {mode}"] = Contestant(make, True, rivals.variant, no_rival)
    return found


def largest_error(
    who: Contestant, model: nn.Module, inputs: Tensor, targets: Tensor, precision: str
) -> float:
    """How far updates without noise are from one example at a time, the worst of three.

    Relative to the parameter's largest entry, or to a thousandth of the model's; half the examples
    are clipped. A huge learning rate keeps the rounding of the weights out of it. The first step
    may be computed in another way than those that follow.
    """
    scale = 1e3
    with rounding.forbidden(inputs.device):
        expected, clip = rivals.one_at_a_time(model, inputs, targets)
        most = max(float(total.abs().max()) for total in expected.values())
        named = {name: p for name, p in model.named_parameters() if name in expected}
        start = {name: p.detach().clone() for name, p in named.items()}
    with rounding.precision(precision, inputs.device):
        run = who.make(model, inputs, targets, lr=scale * len(inputs), noise=0.0, clip=clip)
        errors = [0.0]
        for _ in range(3):
            for name, p in named.items():
                p.detach().copy_(start[name])
            run()
            for name, total in expected.items():
                moved = (start[name].double() - named[name].detach().double()) / scale
                off = float((moved - total).abs().max())
                errors.append(off / max(float(total.abs().max()), 1e-3 * most))
    return float(np.max(errors))  # not a number stays so


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def tidy() -> None:
    gc.collect()
    torch.cuda.empty_cache()  # nothing where there is none


def told(error: Exception) -> str:
    """An error in one short line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:160]


def peak_memory(make: Callable[[], Run], batch: int) -> dict[str, float]:
    """MiB at most in use and at most held, from the making of a step to the third one.

    The first ones count: a captured graph keeps what it took then. What others left behind does
    not count, the batch (so many bytes) does.
    """
    torch._C._cuda_clearCublasWorkspaces()  # one for each stream ever used
    tidy()
    torch.cuda.reset_peak_memory_stats()
    used, held = torch.cuda.memory_allocated() - batch, torch.cuda.memory_reserved() - batch
    run = make()
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    return {
        "peak_mib": short((torch.cuda.max_memory_allocated() - used) / MIB),
        "held_mib": short((torch.cuda.max_memory_reserved() - held) / MIB),
    }


def race(
    makers: dict[str, Callable[[], Run]], device: str, repeats: int, warmup: int = WARMUP
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Milliseconds of each contestant in each round, and who fell out and why."""
    runs: dict[str, Run] = {}
    failed: dict[str, str] = {}
    for name, make in makers.items():
        try:
            runs[name] = make()
        except Exception as error:
            failed[name] = told(error)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(warmup + repeats if runs else 0):
        order = list(runs)
        gc.collect()
        for name in order[repeat % len(order) :] + order[: repeat % len(order)]:
            wait(device)
            started = time.perf_counter()
            try:
                runs[name]()
                wait(device)
            except Exception as error:
                failed[name] = told(error)
                del runs[name], times[name]
                tidy()
                continue
            if repeat >= warmup:
                times[name].append(1e3 * (time.perf_counter() - started))
    return times, failed


def short(value: float) -> float:
    return float(f"{value:.4g}")


def spread(values: Any) -> list[float]:
    return [short(float(q)) for q in np.quantile(values, (0.05, 0.5, 0.95))]


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, list[float]]]:
    """Each contestant's milliseconds and ratio to the plain step of the same round."""
    if "plain" not in times:
        return {name: {"ms": spread(values)} for name, values in times.items()}
    base = np.array(times["plain"])
    return {
        name: {"ms": spread(values), "ratio": spread(np.array(values) / base)}
        for name, values in times.items()
    }


class Bench:
    """One case at one batch: the contestants are admitted, then timed together."""

    def __init__(self, name: str, device: str, batch: int | None) -> None:
        self.case, self.device = CASES[name], device
        self.shape, usual = self.case.cuda if device == "cuda" else self.case.cpu
        self.batch = max(batch or usual, CHECKED)
        self.inputs, self.targets = self.case.examples(self.shape, self.batch, device)
        self.few = self.inputs[:CHECKED], self.targets[:CHECKED]
        self.base = self.case.build(name, self.shape)
        self.smooth = self.case.build(name, self.shape, smooth=True)

    def fresh(self, who: Contestant, smooth: bool = False) -> tuple[nn.Module, str]:
        """A copy of the model as this contestant wants it, and what that changed."""
        model, note = who.prepare(copy.deepcopy(self.smooth if smooth else self.base))
        return model.to(self.device), note

    def make(self, who: Contestant) -> Run:
        """Its step on the whole batch."""
        model, _ = self.fresh(who)
        return who.make(model, self.inputs, self.targets, lr=LR, noise=NOISE, clip=CLIP)

    def admit(self, who: Contestant) -> dict[str, Any]:
        """Is it right, and what memory does it take."""
        found: dict[str, Any] = {}
        model, note = self.fresh(who, smooth=True)
        if note:
            asked = copy.deepcopy(self.smooth).to(self.device)
            with torch.no_grad():
                off = float((model(self.few[0]) - asked(self.few[0])).abs().max())
            found["note"] = f"{note}; its outputs differ by {off:.0e}"
        for precision in ("float32", "tf32")[: 2 if self.device == "cuda" else 1]:
            if not who.private:
                break
            model, _ = self.fresh(who, smooth=True)
            off = short(largest_error(who, model, *self.few, precision))
            found["error" if precision == "float32" else f"error_{precision}"] = off
            if not off <= TOLERANCE[precision]:
                return {**found, "wrong": f"off by {off:.0e} in {precision}"}
        if self.device == "cuda":
            del model
            found |= peak_memory(functools.partial(self.make, who), self.inputs.nbytes)
        return found

    def measure(self, repeats: int, compiled: bool, others: bool) -> dict[str, Any]:
        """All contestants, one after the other and then in turns."""
        found: dict[str, dict[str, Any]] = {}
        makers: dict[str, Callable[[], Run]] = {}
        for title, who in contestants(self.device, compiled, others).items():
            if who.skipped:
                found[title] = {"skipped": who.skipped}
                continue
            try:
                found[title] = self.admit(who)
            except Exception as error:
                found[title] = {"failed": told(error)}
            if not {"wrong", "failed"} & found[title].keys():
                makers[title] = functools.partial(self.make, who)
            tidy()
        times, failed = race(makers, self.device, repeats)
        for title, reason in failed.items():
            found[title]["failed"] = reason
        for title, figures in summary(times).items():
            found[title] |= figures
        if compiled:
            torch.compiler.reset()
        total_of = summing(True, self.base.to(self.device), CLIP)
        total = total_of(*self.few)
        tidy()
        return {
            "label": self.case.label,
            "input": list(self.shape),
            "batch": self.batch,
            "path": ": ".join(filter(None, (total.path, total.reason, total_of.reason))),
            "contestants": found,
        }


def allow_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def save(record: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    path.write_text(text + "\n")


def measured(
    name: str, device: str, batch: int | None, repeats: int, compiled: bool, others: bool
) -> dict[str, Any]:
    """One case."""
    return Bench(name, device, batch).measure(repeats, compiled, others)


def measured_apart(*what: Any) -> dict[str, Any]:
    """One case in a process of its own, as one would train it.

    What an earlier case left with the system's allocator decides how fast the next gets memory.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--rivals", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    compiled = options.device == "cuda" if options.compile is None else options.compile
    if options.device == "cuda":
        allow_tf32()
    record: dict[str, Any] = {
        "what": "steps",
        "device": options.device,
        "repeats": options.repeats,
        "tf32": options.device == "cuda",
        "checked": CHECKED,
        "tolerance": TOLERANCE["float32"],
        "tolerance_tf32": TOLERANCE["tf32"],
        "opacus": rivals.version(),
        "machine": describe_machine(),
        "cases": {},
    }
    apart = options.device == "cpu" and len(options.case) > 1
    for name in options.case:
        case = (measured_apart if apart else measured)(
            name, options.device, options.batch, options.repeats, compiled, options.rivals
        )
        record["cases"][name] = case
        print(f"{name}, batch {case['batch']}", flush=True)
        for title, one in case["contestants"].items():
            reasons = [f"{k}: {one[k]}" for k in ("skipped", "wrong", "failed") if k in one]
            ending = reasons or [f"{one['ms'][1]:9.2f} ms  {one.get('ratio', ['', ''])[1]} x plain"]
            print(f"  {title:16} {ending[0]} {one.get('peak_mib', '')}", flush=True)
        save(record, options.out / f"steps-{options.device}.json")  # each time: it may be cut short


if __name__ == "__main__":
    main()
