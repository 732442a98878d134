"""What a run asks of the machine it is on."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from rlexp.machine import keep_freed_memory

FREED = """
import resource, torch
from rlexp.machine import keep_freed_memory
keep_freed_memory() if {kept} else None
torch.set_num_threads(1)
for i in range(60):
    torch.ones(12_000_000)  # 48 MB: by default glibc keeps up to 32
    if i == 9:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(kept: bool) -> int:
    """Pages that the system hands out for fifty tensors of 48 MB, each freed before the next one."""
    command = [sys.executable, "-c", FREED.format(kept=kept)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_the_memory_of_freed_tensors_is_used_again() -> None:
    pages_of_one = 48_000_000 // 4096
    assert faults(kept=True) < pages_of_one < faults(kept=False)


def test_the_users_own_settings_of_the_allocator_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not keep_freed_memory()
