"""Which engine the settings name, and how it is opened.

Role: composition below `serving.py`: what can be known to fail is found before anything slow begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from server.banner import say
from server.engine.base import Engine
from server.grammar.base import Bounds
from server.lifespan import OpenEngine
from server.settings import Settings
from server.warm_up import warm_up

if TYPE_CHECKING:
    from server.engine.profiles import Profile
    from server.engine.vllm_start import Attachment


def engine_opener(settings: Settings, attachment: Attachment | None = None) -> OpenEngine:
    """What opens the configured engine. Raises `ValueError` or `OSError` for what can be known to fail before that.

    `attachment`: to an engine core of another process, which has looked at the machine already.
    """
    return _scripted_opener(settings) if settings.engine.kind == "scripted" else _vllm_opener(settings, attachment)


def _scripted_opener(settings: Settings) -> OpenEngine:
    from server.engine.scripted.engine import ScriptedEngine
    from server.engine.scripted.rules import Script
    from server.engine.scripted.script import read_script
    from server.vocabulary.byte import ByteVocabulary
    from server.vocabulary.load import load

    vocabulary = load(settings.engine.vocab) if settings.engine.vocab else ByteVocabulary()
    script = read_script(settings.engine.script, vocabulary) if settings.engine.script else Script()

    async def open_engine() -> Engine:
        return ScriptedEngine(vocabulary, script, **settings.engine.overrides)

    return open_engine


def vllm_model(settings: Settings) -> tuple[Profile, Path]:
    """How vLLM is started, and the folder of its model. Raises `ValueError` for what can't be."""
    from server.engine.profiles import load_profile

    profile = load_profile(settings.engine.profile, settings.engine.overrides, settings.engine.draft_model_path)
    try:
        Bounds.read(profile.answer_bounds)
    except ValueError as error:
        raise ValueError(f"the engine profile `{profile.name}`: {error}") from None
    model_path = settings.engine.model_path
    if model_path is None:
        raise ValueError(
            "engine.model_path: is not set; give the model's folder with `--model DIR` (`demo-model DIR` builds a small one)"
        )
    if not (model_path / "config.json").is_file():
        raise ValueError(f"engine.model_path: `{model_path}` has no `config.json`; give the folder of a checkpoint")
    return profile, model_path


def _vllm_opener(settings: Settings, attachment: Attachment | None) -> OpenEngine:
    if attachment is None:
        _check_machine(settings)
    profile, model_path = vllm_model(settings)

    async def open_engine() -> Engine:
        from server.engine.vllm import VllmEngine  # loads vLLM, which takes seconds

        progress = say if attachment is None else _silent  # else whoever starts the core tells of it
        engine = await VllmEngine.open(profile, model_path, progress=progress, attachment=attachment)
        if any(model.format == "kimi_k3" and model.grammar != "off" for model in settings.models.values()):
            await warm_up(engine)
        return engine

    return open_engine


def _check_machine(settings: Settings) -> None:
    """Before the model is asked for: who has the wrong machine need not get it."""
    from server.engine.profiles import load_profile

    profile = load_profile(settings.engine.profile, settings.engine.overrides, settings.engine.draft_model_path)
    odd = profile.check_machine() if settings.engine.check_hardware else None
    profile.check_nodes()
    for warning in filter(None, (odd, profile.warning)):
        say(f"warning: {warning}")


def _silent(text: str) -> None:
    """Nobody need be told."""
