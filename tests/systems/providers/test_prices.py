"""Prices of models, and what calls cost."""

from __future__ import annotations

from decimal import Decimal

import pytest

from holdfast.errors import SettingsError
from holdfast.settings import Settings
from holdfast.systems.providers import ProviderRegistry, ProviderUsage
from holdfast.systems.providers.prices import PRICE_EXAMPLE, PriceTable


def test_costs_are_exact() -> None:
    prices = PriceTable.parse(PRICE_EXAMPLE)
    usage = ProviderUsage(tokens_in=1_000, tokens_out=3)
    assert prices.compute_cost("gpt-5-mini", usage) == Decimal("0.000256")
    assert prices.compute_cost("whisper-1", ProviderUsage(audio_s=90)) == Decimal("0.009")


def test_costs_that_are_not_known() -> None:
    prices = PriceTable.parse(PRICE_EXAMPLE)
    assert prices.compute_cost("another model", ProviderUsage(tokens_in=1)) is None
    assert (
        prices.compute_cost("gpt-5-mini", ProviderUsage(tokens_in=1)) is None
    )  # the server counted only one
    assert PriceTable.parse("").compute_cost("gpt-5-mini", ProviderUsage()) is None


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"m": 1}', '{"m": {"tokens": 1}}', '{"m": {"request": -1}}', '{"m": {"request": "1"}}',
     '{"m": {"request": 1e999}}', "[" * 10_000],
)  # fmt: skip
def test_an_invalid_price_table_is_an_error_at_start(text: str) -> None:
    with pytest.raises(SettingsError, match="provider_prices"):
        ProviderRegistry(Settings(provider_prices=text))
