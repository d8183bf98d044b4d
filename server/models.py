"""The models a gateway serves, by every name that clients may send.

Role: bottom layer; made from the settings once, asked on every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from server.context import Tenant
from server.errors import ModelNotFoundError, PermissionDeniedError
from server.sections import ModelSettings, PriceSettings


@dataclass(slots=True, frozen=True)
class Price:
    """Of one token, in 10**-15 US dollars (so that prices per million tokens are whole numbers of it)."""

    input: int = 0
    cached_input: int = 0
    output: int = 0

    @classmethod
    def of(cls, settings: PriceSettings) -> Price:
        """The price that `settings` ask for."""
        return cls(*(int(usd * 10**9) for usd in (settings.input, settings.cached_input, settings.output)))

    def nano_usd(self, num_input_tokens: int, num_cached_tokens: int, num_output_tokens: int) -> int:
        """What these tokens cost in 10**-9 US dollars, rounded up. Of the input tokens, `num_cached_tokens` were cached."""
        num_uncached = num_input_tokens - num_cached_tokens
        femto = num_uncached * self.input + num_cached_tokens * self.cached_input + num_output_tokens * self.output
        return -(-femto // 10**6)


def usd(nano_usd: int) -> str:
    """So many 10**-9 US dollars in dollars, exact: at least two digits after the point, at most nine."""
    whole, fraction = divmod(abs(nano_usd), 10**9)
    digits = f"{fraction:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if nano_usd < 0 else ''}{whole}.{digits}"


@dataclass(slots=True, frozen=True)
class ServedModel:
    """One model: the name that answers, metrics and ledgers use, and how it is spoken to.

    `settings` has the rest, as configured.
    """

    name: str
    format: str
    reasoning_fields: tuple[str, ...]
    settings: ModelSettings = field(default_factory=ModelSettings)
    price: Price = Price()

    @property
    def usage_in_choice(self) -> bool:
        """Whether streams carry the token counts inside a choice, too."""
        wanted = self.settings.usage_in_choice
        return self.settings.sampling == "moonshot" if wanted is None else wanted


class ModelTable:
    """Looks models up by name or alias."""

    def __init__(self, models: Mapping[str, ModelSettings]) -> None:
        self._by_name: dict[str, ServedModel] = {}
        self.models: list[ServedModel] = []
        for name, of in models.items():
            fields = ("reasoning_content", "reasoning") if of.reasoning_field == "both" else (of.reasoning_field,)
            model = ServedModel(
                name=name, format=of.format, reasoning_fields=fields, settings=of, price=Price.of(of.price_per_million_tokens_usd)
            )
            self.models.append(model)
            self._by_name.update(dict.fromkeys((name, *of.aliases), model))

    def reprice(self, models: Mapping[str, ModelSettings]) -> None:
        """Take over the prices of `models`; requests under way keep those they began with."""
        for index, model in enumerate(self.models):
            if (of := models.get(model.name)) is None:
                continue
            self.models[index] = new = replace(model, price=Price.of(of.price_per_million_tokens_usd))
            self._by_name.update((name, new) for name, known in self._by_name.items() if known is model)

    @property
    def formats(self) -> frozenset[str]:
        """The formats that are in use."""
        return frozenset(model.format for model in self.models)

    def open_to(self, tenant: Tenant) -> list[ServedModel]:
        """The models that `tenant` may use, in the configured order."""
        return [model for model in self.models if tenant.may_use(model.name)]

    def resolve(self, name: str, tenant: Tenant) -> ServedModel:
        """The model of `name`. Raises `ModelNotFoundError`, which lists those allowed, or `PermissionDeniedError`."""
        model = self._by_name.get(name)
        allowed = ", ".join(f"`{model.name}`" for model in self.open_to(tenant)) or "none"
        if model is None:
            raise ModelNotFoundError(f"there is no model `{name[:100]}`; models you may use: {allowed}", param="model")
        if not tenant.may_use(model.name):
            raise PermissionDeniedError(f"model `{model.name}` is not open to you; models you may use: {allowed}", param="model")
        return model
