"""Attack the whole product from outside: `python -m attack`. Prints each finding with how to repeat it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
import traceback
from pathlib import Path

# Identities, tokens, targets and hostile texts come from the helpers of the tests: there is one of each.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from attack.app import SYSTEM_NAMES
from attack.attacks import ATTACKS_BY_NAME, Attack
from attack.findings import AttackLog
from attack.population import plant_user
from attack.target import Product, open_product

MAX_SHOWN_ENTRIES = 40


async def execute_attack(attack: Attack, product: Product) -> AttackLog:
    """Execute one attack, then check that the API and the worker still work."""
    log = AttackLog()
    api_log_length = len(product.read_log("api"))
    try:
        await attack.run(product, log)
    except Exception:  # an attack that cannot be finished is a finding too
        log.check(False, f"the attack could not be finished:\n{traceback.format_exc()}", attack.name)
    dead = product.find_dead_processes()
    log.check(not dead, f"processes ended: {dead}", f"python -m attack --only {attack.name}")
    try:
        await product.run_probe()
        log.checks += 1
    except Exception as error:
        log.check(False, f"the worker does not work any more: {error!r}", f"--only {attack.name}")
    new_lines = product.read_log("api")[api_log_length:]
    log.check(
        "Traceback" not in new_lines,
        f"the API logged an unhandled error:\n{new_lines[-2000:]}",
        f"--only {attack.name}",
    )
    return log


async def execute_attacks(names: list[str], dose: str, systems: list[str]) -> int:
    """Start the product, execute the attacks one after the other, and return the number of findings."""
    total = 0
    started_at = time.monotonic()
    async with open_product(dose, systems) as product:
        for user in ("ann", "bob"):
            await plant_user(product, user)
        print(f"started and planted in {time.monotonic() - started_at:.1f} s", flush=True)
        for name in names:
            attack_started_at = time.monotonic()
            log = await execute_attack(ATTACKS_BY_NAME[name], product)
            total += len(log.findings)
            seconds = time.monotonic() - attack_started_at
            print(f"{name:20} {log.checks:6} checks, {len(log.findings)} findings ({seconds:.1f} s)")
            entries = log.format_findings()
            for entry in entries[:MAX_SHOWN_ENTRIES]:
                print(f"  - {entry}")
            if len(entries) > MAX_SHOWN_ENTRIES:
                print(f"  - and {len(entries) - MAX_SHOWN_ENTRIES} more")
            sys.stdout.flush()
    return total


def main() -> int:
    parser = argparse.ArgumentParser(prog="attack", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help="Execute these attacks. Default: all."
    )
    parser.add_argument(
        "--dose",
        choices=("short", "full"),
        default="full",
        help="Choose the number of values, pages and requests. Default: full.",
    )
    parser.add_argument(
        "--systems",
        nargs="*",
        metavar="NAME",
        choices=SYSTEM_NAMES,
        default=list(SYSTEM_NAMES),
        help="Mount only these systems. Default: all.",
    )
    parser.add_argument("--list", action="store_true", help="List the attacks and exit.")
    options = parser.parse_args()
    if options.list:
        for attack in ATTACKS_BY_NAME.values():
            print(f"{attack.name:20} {attack.description}")
        return 0
    unknown = sorted(set(options.only) - set(ATTACKS_BY_NAME))
    if unknown:
        parser.error(f"attack {unknown[0]!r} does not exist; choose from {', '.join(ATTACKS_BY_NAME)}")
    names = options.only or [
        attack.name for attack in ATTACKS_BY_NAME.values() if options.dose == "full" or attack.in_short_dose
    ]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the run stops the processes that it started
    total = asyncio.run(execute_attacks(names, options.dose, options.systems))
    print(f"{total} findings", file=sys.stderr)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
