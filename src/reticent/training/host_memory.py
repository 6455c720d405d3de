"""How much memory this process may still take on the host."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NO_LIMIT = 1 << 60  # what control groups write where there is none


def available(root: Path = Path("/")) -> int | None:
    """The least of what the system, the control groups and the process's limits leave, in bytes.

    None where nothing of it can be read.
    """
    found = [_system(root), *_control_groups(root), _address_space(root)]
    known = [max(value, 0) for value in found if value is not None]
    return min(known) if known else None


def _system(root: Path) -> int | None:
    """What could be had without swapping."""
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    with suppress(ValueError, OSError, AttributeError):  # not Linux: at least no more than there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _control_groups(root: Path) -> list[int]:
    """What every group above this process leaves; both versions of the interface."""
    left = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = top / path.strip("/")
        # inside a container the path may be that of the world outside: then the top is its own
        for group in [folder, *folder.parents]:
            most, taken = _number(group / limit), _number(group / used)
            if most is not None and taken is not None and most < NO_LIMIT:
                left.append(most - taken + _reclaimable(group))
            if group == top:
                break
    return left


def _reclaimable(group: Path) -> int:
    """Cached files count as used, and go when memory is wanted."""
    found = dict(line.split()[:2] for line in _lines(group / "memory.stat"))
    return int(found.get("total_inactive_file", found.get("inactive_file", 0)))


def _address_space(root: Path) -> int | None:
    with suppress(ImportError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = _lines(root / "proc/self/statm")
        if most != resource.RLIM_INFINITY and pages:
            return most - int(pages[0].split()[0]) * resource.getpagesize()
    return None


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
