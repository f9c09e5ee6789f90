"""How busy the machine was during a measurement. Times on a machine that others use mean little."""

from __future__ import annotations

from pathlib import Path


def read_machine_ticks() -> dict[str, int]:
    """Return the ticks that the cores of the machine were busy, idle, waiting for disks and stolen."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return dict(zip(names, map(int, fields), strict=False))


def describe_machine_use(before: dict[str, int], after: dict[str, int]) -> str:
    """Describe what the cores did between two readings. Stolen: the host gave the time to other machines."""
    ticks = {name: after[name] - before[name] for name in after}
    total = sum(ticks.values()) or 1
    busy = 1 - (ticks["idle"] + ticks["iowait"]) / total
    waiting, stolen = ticks["iowait"] / total, ticks["steal"] / total
    return f"machine {busy:.0%} busy, {waiting:.0%} waiting for disks, {stolen:.0%} stolen"
