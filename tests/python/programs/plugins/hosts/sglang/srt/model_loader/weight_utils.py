from concurrent.futures import ThreadPoolExecutor

import safetensors
import safetensors.torch


def safetensors_weights_iterator(
    hf_weights_files,
    disable_mmap=False,
    prefetch=False,
    prefetch_num_threads=4,
    drop_cache_after_load=False,
):
    for path in hf_weights_files:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():
                yield name, file.get_tensor(name)


def buffered_multi_thread_safetensors_weights_iterator(
    hf_weights_files,
    max_workers,
    disable_mmap=False,
    prefetch=False,
    prefetch_num_threads=4,
    drop_cache_after_load=False,
):
    def load(path):
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}

    with ThreadPoolExecutor(max_workers) as pool:
        for tensors in pool.map(load, hf_weights_files):
            yield from tensors.items()
