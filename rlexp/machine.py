"""What this machine is and has: its processor, and how much memory there is to take, so that a buffer or dataset too
large is refused instead of killing the run."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlexp.errors import ConfigError

CORES_VARIABLE = "RLEXP_CORES"  # a process is to make do with so many: a job that shares the machine with others
_HEADROOM = 0.9  # networks, environments and the interpreter need the rest
_CGROUP = Path("/sys/fs/cgroup")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT_BLOCKS = 1 << 28, 1 << 25  # bytes: freed blocks below are kept; glibc before 2.35 takes the second
_KEPT_HEAP = 1 << 29  # bytes of free memory at the end of the heap that are kept
_MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, or None where the system does not say."""
    figures = [figure for figure in (_system_memory(), _container_memory()) if figure is not None]
    return int(min(figures) * _HEADROOM) if figures else None


def cpu_count() -> int:
    """Cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get(CORES_VARIABLE, "")
    return max(1, min(cores, int(share))) if share.isascii() and share.isdigit() else cores


def busy_cores() -> int:
    """Cores of the machine that other threads want at this moment; 0 where the system does not tell."""
    try:
        running = Path("/proc/loadavg").read_text(encoding="utf-8").split()[3].partition("/")[0]
        return max(int(running) - 1, 0)  # who asks is one of them
    except (OSError, IndexError, ValueError):
        return 0


def cpu_model() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def keep_freed_memory() -> bool:
    """Have the allocator keep the memory of freed tensors; whether it will (glibc, where the user has set nothing).

    By default it returns each activation of some MB to the system and fetches it anew, page by page, for the next one:
    a quarter of the time of PPO's updates on images. At most half a GB stays with the process that it does not use.
    """
    if any(name in os.environ for name in _MALLOC_VARIABLES):
        return False
    try:
        mallopt = ctypes.pythonapi.mallopt  # of the process itself, which is open: no library is loaded
    except (OSError, AttributeError, TypeError):
        return False
    kept = any(mallopt(_M_MMAP_THRESHOLD, size) for size in _KEPT_BLOCKS)
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_HEAP)) and kept


def _instructions() -> Mapping[str, Any]:
    """What the processor has, by name; nothing where torch does not tell."""
    import torch  # this module is free of it otherwise

    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for it; where they are not known, it is left to the user."""
    known = _instructions()
    names = ("avx512_bf16", "amx_bf16", "bf16")
    return not any(name in known for name in names) or any(known.get(name) for name in names)


def is_zen5() -> bool:
    """Whether the processor is one of AMD's Zen 5, by an instruction that came with it.

    Those of servers and desktops compute 512 bits at once; some of laptops do it in halves, and gain less by it.
    """
    return cpu_model().startswith("AMD") and bool(_instructions().get("avx512_vp2intersect"))


def gigabytes(size: int) -> str:
    """``size`` bytes for a message."""
    return f"{size / 1e9:.3g} GB"


def check_fits(size: int, what: str) -> None:
    """Refuse ``what`` if it takes more bytes than there are, before anything is allocated."""
    free = available_memory()
    if free is not None and size > free:
        raise ConfigError(
            f"{what} needs {gigabytes(size)}, but only {gigabytes(free)} of memory can be used. Choose a smaller one."
        )


def _system_memory() -> int | None:
    try:  # counts reclaimable page cache as available, which sysconf does not
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _container_memory() -> int | None:
    """What a control group still allows; its page cache is given back on demand, so it does not count as used."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit == "max":
            return None
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        used = int((_CGROUP / "memory.current").read_text()) - int(stat.get("file", 0))
        return max(int(limit) - used, 0)
    except (OSError, ValueError):
        return None
