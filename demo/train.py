"""Trains the demo model's adapter: `python -m demo.train --out DIR`, on a CPU, in about an hour on two cores.

Writes to the folder: `base/`, the base model as a checkpoint; `distilled.json`, its own answers; `adapter.safetensors`. Progress
goes to standard output. Data, order and start are decided by the seed and by `distilled.json`; rounding depends on the machine.
"""

from __future__ import annotations

import argparse
import math
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors.torch import save_file

from demo.batch import batch
from demo.distill import distilled
from demo.model import AdaptedLlama
from demo.rows import Rows
from server.demo_model.build import BASE_NAME, build
from server.demo_model.tokenizer import CONTROL_TOKENS
from server.vocabulary.load import load


@dataclass(slots=True, frozen=True)
class Recipe:
    """All that decides the result besides the data. `learning_rate` is the peak; `rows` and `row_tokens` are of one step."""

    steps: int = 300
    seed: int = 7
    rows: int = 2
    row_tokens: int = 640
    rank: int = 8
    scale: float = 2.0
    learning_rate: float = 2e-3
    warmup_steps: int = 8
    threads: int = 2


def start_rows(model: AdaptedLlama, newline: int, heading: int) -> None:
    """Puts the control tokens near base tokens of like meaning.

    open is like im_start; close is like im_end but stronger, for an exact tie would always be lost to the lower id; sep is like a
    line break; end_of_msg must not resemble close, or the model closes for ever. The others stay the mean of all tokens.
    """
    base = model.embedding.float()
    with torch.no_grad():
        model.rows[0], model.rows[1] = base[1], 1.02 * base[2]
        model.rows[2] = 0.8 * base[newline] + 0.6 * base[heading]
        model.rows[3] = base[0]


def rate_at(step: int, recipe: Recipe) -> float:
    """Learning rate of `step`, from 1: a linear start, then half a cosine down to a hundredth."""
    if step <= recipe.warmup_steps:
        return recipe.learning_rate * step / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return recipe.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def save(model: AdaptedLlama, path: Path, recipe: Recipe, step: int) -> None:
    """Writes the adapter; its metadata says how it was made."""
    metadata = {key: str(value) for key, value in asdict(recipe).items()}
    metadata |= {"format": "pt", "base": BASE_NAME, "base_vocab": str(model.embedding.shape[0]), "steps_done": str(step)}
    save_file(model.adapter(), path.with_suffix(".part"), metadata=metadata)
    path.with_suffix(".part").replace(path)


def train(out: Path, recipe: Recipe) -> None:
    """The whole run."""
    out.mkdir(parents=True, exist_ok=True)
    base = out / "base"
    if not base.exists():
        build(base, print, adapter=None)
    vocabulary = load(base)
    # In a process of its own: the engine binds threads and memory to cores, which would slow the training down.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        answers = pool.submit(distilled, base, out / "distilled.json").result()
    print(f"{len(answers.short)} short and {len(answers.long)} long answers of the base model", flush=True)
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    model = AdaptedLlama(base, len(CONTROL_TOKENS), recipe.rank, recipe.scale)
    start_rows(model, newline=vocabulary.encode("\n")[0], heading=5)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    rows = Rows(vocabulary, answers, recipe.seed, recipe.row_tokens)
    started, num_tokens, mean = time.monotonic(), 0, math.nan
    for step in range(1, recipe.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, recipe)
        part = batch([rows.row() for _ in range(recipe.rows)])
        loss = model.loss(part)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        num_tokens += len(part.token_ids)
        mean = loss.item() if math.isnan(mean) else 0.9 * mean + 0.1 * loss.item()
        if step <= 3 or step % 5 == 0:
            passed = time.monotonic() - started
            speed = f"{passed:.0f} s, {num_tokens / passed:.0f} tokens/s"
            print(f"step {step}/{recipe.steps}: loss {loss.item():.3f}, mean {mean:.3f}, {speed}", flush=True)
        if step % 50 == 0 or step == recipe.steps:
            save(model, out / "adapter.safetensors", recipe, step)
    size = (out / "adapter.safetensors").stat().st_size
    print(f"{out / 'adapter.safetensors'}: {size / 1e6:.2f} MB after {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for everything that the run writes")
    for name, default in asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = vars(parser.parse_args())
    train(options.pop("out"), Recipe(**options))


if __name__ == "__main__":
    main()
