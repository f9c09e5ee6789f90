"""The price table of providers, from the setting `provider_prices`."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from holdfast.errors import SettingsError
from holdfast.systems.providers.usage import ProviderUsage

TOKENS_PER_PRICE = 1_000_000
SECONDS_PER_MINUTE = 60
PRICE_EXAMPLE = '{"gpt-5-mini": {"tokens_in": 0.25, "tokens_out": 2}, "whisper-1": {"audio_minute": 0.006}}'


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of a model: per million tokens in and out, per minute of audio, per image and per request."""

    tokens_in: float = 0
    tokens_out: float = 0
    audio_minute: float = 0
    image: float = 0
    request: float = 0

    def compute_cost(self, usage: ProviderUsage) -> Decimal | None:
        """Return the cost of a call, or None if its usage lacks a number that has a price."""
        cost = Decimal(str(self.request))
        for price, amount, unit in (
            (self.tokens_in, usage.tokens_in, TOKENS_PER_PRICE),
            (self.tokens_out, usage.tokens_out, TOKENS_PER_PRICE),
            (self.audio_minute, usage.audio_s, SECONDS_PER_MINUTE),
            (self.image, usage.images, 1),
        ):
            if price and amount is None:
                return None
            cost += Decimal(str(price)) * Decimal(str(amount or 0)) / unit
        return cost


class PriceTable:
    """Prices by model, in the currency of the operator's choice."""

    def __init__(self, prices: dict[str, ModelPrice] | None = None) -> None:
        self._prices = prices or {}

    @classmethod
    def parse(cls, text: str) -> PriceTable:
        """Parse the setting `provider_prices`. Raise SettingsError if it is not valid."""
        if not text.strip():
            return cls()
        try:
            prices = msgspec.json.decode(text, type=dict[str, ModelPrice])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise SettingsError(
                f"provider_prices is not a valid price table: {error}.",
                fix=f"Use JSON such as {PRICE_EXAMPLE}.",
                field="provider_prices",
            ) from None
        for model, price in prices.items():
            if any(not 0 <= value < float("inf") for value in msgspec.structs.astuple(price)):
                raise SettingsError(
                    f"provider_prices has a negative price for {model!r}.",
                    fix="Use prices of 0 or more.",
                    field="provider_prices",
                )
        return cls(prices)

    def compute_cost(self, model: str, usage: ProviderUsage) -> Decimal | None:
        """Return the cost of a call of a model, or None if it is not known."""
        price = self._prices.get(model)
        return None if price is None else price.compute_cost(usage)
