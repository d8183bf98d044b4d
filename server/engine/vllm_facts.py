"""What the gateway must know of a model that vLLM has loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.engine.base import ModelFacts
from server.images import ImageRule


def model_facts(llm: Any, answer_bounds: Mapping[str, int], image_rule: ImageRule | None) -> ModelFacts:
    """Of the `AsyncLLM` that has loaded it. `answer_bounds`: as in `ModelFacts`, from the profile."""
    model, config = llm.model_config, llm.vllm_config
    end = model.try_get_generation_config().get("eos_token_id", [])
    end_token_ids = [llm.renderer.get_eos_token_id(), *(end if isinstance(end, list) else [end])]
    defaults = {name: value for name, value in model.get_diff_sampling_param().items() if name != "max_tokens"}
    return ModelFacts(
        context_length=model.max_model_len,
        seats=config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size,
        end_token_ids=tuple(dict.fromkeys(token_id for token_id in end_token_ids if token_id is not None)),
        image_rule=image_rule,
        default_sampling=defaults,
        answer_bounds=answer_bounds,
    )
