"""Checkpoints with several files, and the layout of the Hugging Face cache."""

from __future__ import annotations

import json
import os

import numpy as np
import safetensors.numpy

INDEX = "model.safetensors.index.json"


def shard_name(number, count):
    return f"model-{number:05}-of-{count:05}.safetensors"


def write_shards(folder, shards):
    """Writes the files of a mapping ``{file: {tensor: array}}``."""
    os.makedirs(folder, exist_ok=True)
    for file, tensors in shards.items():
        path = os.path.join(folder, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        safetensors.numpy.save_file(tensors, path, {"format": "np"})
    return str(folder)


def write_index(folder, weight_map, name=INDEX, **others):
    """Writes an index. `weight_map` is a mapping, or the text of the index."""
    path = os.path.join(folder, name)
    text = weight_map if isinstance(weight_map, str) else json.dumps({"weight_map": weight_map, **others})
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def index_of(pairs):
    """Returns an index that maps tensors to files in this order. Names may repeat."""
    entries = ", ".join(f"{json.dumps(name)}: {json.dumps(file)}" for name, file in pairs)
    return f'{{"weight_map": {{{entries}}}}}'


def sharded(folder, shards=12, tensors=4):
    """Writes a checkpoint and its index. Tensor ``layer.{s}.{t}`` contains s * 1000 + t."""
    files = {
        shard_name(s + 1, shards): {
            f"layer.{s}.{t}": np.full((2, 3), s * 1000 + t, "f4") for t in range(tensors)
        }
        for s in range(shards)
    }
    write_shards(folder, files)
    weight_map = {name: file for file, held in files.items() for name in held}
    write_index(folder, dict(sorted(weight_map.items())), metadata={"total_size": shards * tensors * 24})
    return str(folder)


def values(weights):
    return {name: array.tolist() for name, array in weights.items()}


def hub_cache(cache, files, *, revision="5f3c", repository="models--org--name", shared=False, keys=None):
    """Adds files to a cache, as `huggingface_hub` does, and returns the snapshot.

    `files` is ``{name in the snapshot: content}``. With `shared`, the blobs are links to the cache's shared
    blobs. `keys` are the names of the blobs.
    """
    root = os.path.join(cache, repository)
    snapshot = os.path.join(root, "snapshots", revision)
    for folder in ("blobs", "refs", os.path.join("snapshots", revision)):
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    with open(os.path.join(root, "refs", "main"), "w", encoding="utf-8") as file:
        file.write(revision)
    for number, (name, content) in enumerate(files.items()):
        key = f"{number:064x}" if keys is None else keys[number]
        blob = os.path.join(root, "blobs", key)
        target = blob
        if shared:
            target = os.path.join(cache, "blobs", key[:2], key)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(
                os.path.join(cache, "blobs", ".huggingface-shared-blobs"), "w", encoding="utf-8"
            ) as file:
                file.write("1\n")
            os.symlink(os.path.relpath(target, os.path.dirname(blob)), blob)
        with open(target, "wb") as file:
            file.write(content)
        link = os.path.join(snapshot, name)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(os.path.relpath(blob, os.path.dirname(link)), link)
    return snapshot


def contents(folder):
    """Returns the content of every file below a folder."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found
