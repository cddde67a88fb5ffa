"""The implementations of the kernel that this machine can run."""

import pytest

from condens.kernels import native

_missing = pytest.mark.skipif(bool(native.missing), reason=native.missing)
_LEVELS = ("x86-64-v4", "x86-64-v3", "baseline")


def _others():
    """Name the levels this machine has besides the one in use."""
    module = native._module
    if module is None:
        return []
    best = module.level()
    found = [level for level in _LEVELS if level != best and module.use(level)]
    module.use(best)
    return found


IMPLEMENTATIONS = [
    pytest.param("native", marks=_missing),
    *(f"native {level}" for level in _others()),
    "eager",
]


def forced(implementation, monkeypatch):
    """Run with an implementation, by name; native at a level of instructions if it says one."""
    kernel, _, level = implementation.partition(" ")
    monkeypatch.setenv("CONDENS_KERNEL", kernel)
    before = native._module.level() if level else ""
    if level:
        assert native._module.use(level)
    yield implementation
    if level:
        native._module.use(before)
