"""How long the scattering transform of 60,000 images takes, and how much memory.

python benchmarks/features.py --device cpu

Images are random: the transform takes the same time for all. Results are dropped piece by piece, as
they are when they go to a file.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import torch

from machine import describe_machine
from reticent.features import Scattering

RESULTS = Path(__file__).parent / "results"
PIECE = 1024
MIB = 2**20


def peak(device: str) -> float:
    """MiB at most so far: of the process, or allocated on the device."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / MIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(images: int, shape: tuple[int, int, int], device: str) -> dict[str, Any]:
    """Seconds for this many images, and the memory at most."""
    channels, height, width = shape
    transform = Scattering((height, width)).to(device)
    generator = torch.Generator().manual_seed(0)
    piece = torch.rand(PIECE, channels, height, width, generator=generator)
    transform(piece.to(device))
    started = time.perf_counter()
    for start in range(0, images, PIECE):
        transform(piece[: min(PIECE, images - start)].to(device)).cpu()
    seconds = time.perf_counter() - started
    return {"images": images, "shape": shape, "seconds": seconds, "peak_mib": peak(device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    runs = [
        measured(images, shape, options.device)
        for shape in ((1, 28, 28), (3, 32, 32))
        for images in (options.images // 10, options.images)
    ]
    for run in runs:
        print({name: round(v, 1) if isinstance(v, float) else v for name, v in run.items()})
    record = {
        "what": "features",
        "device": options.device,
        "machine": describe_machine(),
        "runs": runs,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"features-{options.device}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
