"""The demo's sections, in order. Each prints its results, which `results.json` also contains."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import tokenizers
import torch

import checkpoint
import compare_cold
import compare_memory
import compare_tokens
import compare_weights
import corpus
import measure
import model
import pagestream
import plot
import train
from files import DemoError, read_record, settings_key, write_json, write_record

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

PROMPT = "def "
SAMPLE_TOKENS = 160
LOGIT_WINDOWS = 4
ROUND_SECONDS = 0.1


class Sections:
    """Prints headings and records the duration of each section."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def section(self, name: str, title: str) -> Iterator[None]:
        """Runs one section of the output."""
        print(f"\n== {len(self.seconds) + 1}. {title}", flush=True)
        begin = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begin
        print(f"   {self.seconds[name]:.1f} s", flush=True)


def tell(options: argparse.Namespace) -> None:
    """Runs all sections.

    Args:
        options: The command line; see `__main__`.

    Raises:
        DemoError: A check failed.
    """
    output: Path = options.output
    for name in ("results.json", "demo.png"):
        (output / name).unlink(missing_ok=True)  # these are of an earlier run
    sections = Sections()
    shape = model.ModelSettings()
    with sections.section("corpus", "Source text of the standard library becomes token files"):
        text = corpus.prepare(
            output,
            vocabulary_tokens=shape.vocabulary_tokens,
            max_files=options.max_files,
            fresh=options.fresh,
        )
        _describe_corpus(text)
    with sections.section("train", "A small GPT learns from them"):
        trained = _trained(options, text, shape)
        _describe_training(trained, options.min_loss_drop)
    with sections.section("reopen", "Its weights are opened again, without a copy"):
        x, _ = train.validation_batch(text.validation_path, LOGIT_WINDOWS, shape.context_tokens)
        reopened = checkpoint.check_reopened(trained.network, trained.path, x.to(train.pick_device()))
        _describe_reopened(reopened, reused=trained.reused)
    with sections.section("sample", "The model writes"):
        sample = _sample(trained.network, text)
        print("\n".join(f"   | {line}" for line in sample.splitlines()))
    with sections.section("compare", f"Side by side: median (quartiles) of {options.rounds} rounds"):
        effort = {"rounds": options.rounds, "round_seconds": ROUND_SECONDS}
        groups = {
            "batches": compare_tokens.compare(text.train_path, **effort),
            "cold": compare_cold.compare(
                text.train_path, size_bytes=options.cold_mib * 2**20, rounds=options.rounds
            ),
            "weights": compare_weights.compare(trained.path, **effort),
            "memory": compare_memory.compare(text.train_path, trained.path),
        }
        print(measure.table([row for rows in groups.values() for row in rows]))
    with sections.section("plot", "A picture"):
        plot.draw(output / "demo.png", trained.curve, **groups)
        print("   demo.png")
    results = {
        "environment": _environment(),
        "corpus": text.facts(),
        "training": {"reused": trained.reused, "loss_drop": trained.curve.drop, **trained.facts},
        "reopened": reopened,
        "sample": sample,
        "comparisons": [row.as_facts() for rows in groups.values() for row in rows],
        "section_seconds": sections.seconds,
    }
    write_json(output / "results.json", results)
    print(f"\nAll checks held. Everything is in {output}: results.json, demo.png, {trained.path.name}, …")


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model, and facts about its training."""

    network: model.Gpt
    curve: train.LossCurve
    path: Path
    facts: dict[str, Any]
    reused: bool


def _trained(options: argparse.Namespace, text: corpus.Corpus, shape: model.ModelSettings) -> Trained:
    """Trains and saves the model, or loads a saved one."""
    settings = train.TrainSettings() if options.steps is None else train.TrainSettings(steps=options.steps)
    device = train.pick_device()
    path, record_path = options.output / "model.safetensors", options.output / "model.json"
    facts: dict[str, Any] = {"model": dataclasses.asdict(shape), "settings": dataclasses.asdict(settings)}
    facts["device"] = device.type
    key = settings_key({**facts, "corpus": text.key, "torch": torch.__version__})
    record = None if options.fresh else read_record(record_path, key)
    if record is not None:
        curve = train.LossCurve(**record["curve"])
        network = checkpoint.load_with_safetensors(path, shape, device)
        return Trained(network, curve, path, {**facts, "curve": record["curve"]}, reused=True)
    network, curve = train.train(text.train_path, text.validation_path, shape, settings, device)
    checkpoint.save(network, path)
    facts["curve"] = dataclasses.asdict(curve)
    write_record(record_path, key, [path], facts)
    return Trained(network, curve, path, facts, reused=False)


def _describe_corpus(text: corpus.Corpus) -> None:
    state = "found complete from an earlier run" if text.reused else "written"
    print(f"   {text.files} files, {text.text_bytes / 1e6:.1f} MB of Python; train.bin, val.bin: {state}")
    print(f"   {text.train_tokens:,} tokens to train on, {text.validation_tokens:,} to validate, uint16")


def _describe_training(trained: Trained, min_loss_drop: float) -> None:
    curve = trained.curve
    steps = trained.facts["settings"]["steps"]
    state = "found complete from an earlier run" if trained.reused else "trained"
    parameters = sum(parameter.numel() for parameter in trained.network.parameters())
    print(f"   {parameters / 1e6:.2f} M parameters, {state}: {steps} steps on {trained.facts['device']}")
    fall = f"validation loss {curve.validation[0]:.3f} -> {curve.validation[-1]:.3f} nats per token"
    print(f"   {fall}: it fell by {curve.drop:.3f}, at least {min_loss_drop} is asked")
    if not curve.drop >= min_loss_drop:
        message = f"{fall}: a fall of {curve.drop:.3f}, less than {min_loss_drop}"
        raise DemoError(message)


def _describe_reopened(facts: dict[str, Any], *, reused: bool) -> None:
    mode = facts["mmap_mode"] + (f" ({facts['mmap_mode_reason']})" if facts["mmap_mode_reason"] else "")
    print(f"   {facts['tensors']} tensors, {facts['file_bytes'] / 1e6:.1f} MB, mmap mode {mode}")
    if facts["arrays_inside_mapping"]:
        print("   every array of open_checkpoint and tensor of load_file lies inside a mapping of the file")
    else:
        print("   the file is read without a mapping: arrays are copies")
    reference = "the weights that safetensors reads" if reused else "the model that was just trained"
    print(f"   logits of a new model with either: the same, bit by bit, as those of {reference}")


def _sample(network: model.Gpt, text: corpus.Corpus) -> str:
    tokenizer = tokenizers.Tokenizer.from_file(str(text.tokenizer_path))
    tokens = model.generate(network, tokenizer.encode(PROMPT).ids, new_tokens=SAMPLE_TOKENS)
    sample: str = tokenizer.decode(tokens)
    return sample


def _environment() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "pagestream": pagestream.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
        "torch": torch.__version__,
    }
