"""The models a gateway serves, by every name that clients may send.

Role: bottom layer; made from the settings once, asked on every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.context import Tenant
from server.errors import ModelNotFoundError, PermissionDeniedError
from server.settings import ModelSettings


@dataclass(slots=True, frozen=True)
class ServedModel:
    """One model: the name that answers, metrics and ledgers use, and how it is spoken to.

    `settings` has the rest, as configured.
    """

    name: str
    format: str
    reasoning_fields: tuple[str, ...]
    settings: ModelSettings = field(default_factory=ModelSettings)

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
            model = ServedModel(name=name, format=of.format, reasoning_fields=fields, settings=of)
            self.models.append(model)
            self._by_name.update(dict.fromkeys((name, *of.aliases), model))

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
