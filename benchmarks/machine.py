"""What a measurement was made on: enough to judge it, nothing that names the machine."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from reticent.training.result import versions


def describe_machine() -> dict[str, Any]:
    """Processor, cores, accelerator and versions."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
        processor = models[0] if models else processor
    except OSError:
        pass
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "system": platform.system(),
        "versions": versions(),
    }
