"""Tests that every mutant still matches the sources. `make mutants` checks that tests catch them."""

from __future__ import annotations

import pytest

from campaign.mutant_list import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_matches_the_sources_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.before) == 1
    assert mutant.before != mutant.after
