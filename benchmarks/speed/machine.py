"""What the figures depend on: the processor, the memory and the versions."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

from condens import kernels

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def describe(*, quick: bool) -> dict[str, str]:
    """Return the machine, the versions and the settings, by name."""
    packages = ("torch", "FrEIA", "sbi", "zuko")
    return {
        "processor": f"{_processor()} ({platform.machine()}), {os.cpu_count()} cores",
        "caches": _caches(),
        "memory": _memory(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "kernel": kernels.active(),
        "threads": str(torch.get_num_threads()),
        "dtype": "float32",
        "sizes": "few, --quick" if quick else "all",
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _caches() -> str:
    def field(cache: Path, name: str) -> str:
        return (cache / name).read_text().strip()

    found = [
        f"L{field(cache, 'level')} {field(cache, 'size')}"
        for cache in sorted(_CACHES.glob("index*"))
        if field(cache, "type") != "Instruction"
    ]
    return ", ".join(found) or "unknown"


def _memory() -> str:
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not on every system
        return "unknown"
    return f"{size / 1e9:.0f} GB"
