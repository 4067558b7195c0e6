"""Advice about keyword arguments that other libraries have and pagestream lacks: a table, and `advises`.

A function with advice keeps its signature. A successful call does not use the table. A call with too many
positional arguments is told the keywords.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def _each(words: str, advice: str) -> dict[str, str]:
    return dict.fromkeys(words.split(), advice)


def _same(words: str, function: str) -> dict[str, str]:
    return {word: f"use {word} of {function}" for word in words.split()}


_WORKERS = (
    "num_workers persistent_workers worker_init_fn multiprocessing_context workers num_proc worker_count "
    "dataloader_num_workers dataloader_persistent_workers dataloader_multiprocessing_context"
)
_PATHS = "file files file_path filename filenames path_or_file pretrained_model_name_or_path"
_DATA = (
    f"path data data_path data_dir data_prefix data_file data_files data_source train_data train_data_path "
    f"train_file dataset_path dataset_name dataset_dir input_dir path_prefix filename_pattern pattern local "
    f"bin_path {_PATHS}"
)

_LENGTH = _each(
    "T block_size seq_len seqlen seq_length sequence_len context_length context_size context_window ctx_len "
    "n_ctx max_length max_seq_len max_seq_length max_sequence_length model_max_length window_size chunk_size",
    "use sequence_length",
)
_DOCUMENTS = {
    **_each(
        "eos_token eos_token_id eos_id eot_token eot_token_id eot_id eod eod_token eod_id separator_token",
        "use end_token",
    ),
    **_each("bos_token bos_token_id bos_id", "use begin_token"),
}
_VOCABULARY = _each("vocab_size n_vocab num_tokens", "use vocabulary")
_MODE = _each("mmap use_mmap mode backend mmap_bin_files no_mmap_bin_files", "use mmap_mode")
# Keywords of loaders that read from object stores.
_MOUNTED = {
    **_each("remote urls url", "pass a path on a mounted file system"),
    "streaming": "leave it out: pagestream never loads whole files, and reads windows as they are needed",
    **_each(
        "cache_dir cache_limit max_cache_size download_retry download_timeout keep_zip validate_hash "
        "storage_options max_pre_download",
        "leave it out: pagestream reads files where they are, and downloads nothing",
    ),
}
# Keywords of data sets that build an index, or whose items have their own format.
_NO_INDEX = {
    **_each("data_cache_path path_to_cache index_path", "leave it out: no index is built or cached"),
    **_each("item_loader serializers", "leave it out: an item is a window of tokens"),
    **_each("tokenizer", "leave it out: `pagestream tokenize` writes a text as token ids"),
    **_each(
        "pad_token pad_token_id pad_id padding truncation", "leave it out: windows are full, without padding"
    ),
}
_SPLIT = _each(
    "split splits", "pass open_tokens of the files of one split as the tokens, or a TokenCorpus.part"
)
_NO_WORKERS = _each(_WORKERS, "no workers are needed, because native threads read ahead; leave it out")
_TENSORS_ALONE = _each(
    "weights_only trust_remote_code pickle_module",
    "leave it out: a safetensors file holds tensors and no code",
)
_SNAPSHOT = _each(
    "revision subfolder variant",
    "pass the path of the folder or the file that you want",
)
_NO_DOWNLOAD = {
    **_each(
        "token use_auth_token force_download local_files_only",
        "leave it out: pagestream reads local files and downloads nothing",
    ),
    "cache_dir": "set HF_HUB_CACHE, or pass the path of the snapshot",
}
_OPEN_FIRST = {
    **_each("mmap use_mmap mode backend mmap_mode", "pass open_checkpoint(path, mmap_mode=...) as the path"),
    **_each("cache_root raw ahead", "pass open_checkpoint(path, ...), which has this option, as the path"),
}
_DTYPE = _each("torch_dtype", "use dtype")
_GROUP = _each("group pg", "use process_group")
_RENAME = _each("key_mapping name_mapping prefix", "use rename")
_BAR = _each("tqdm show_progress disable_tqdm verbose", "use progress")

_CHECKPOINT = {**_TENSORS_ALONE, **_SNAPSHOT, **_NO_DOWNLOAD, **_NO_WORKERS}

_SAFETENSORS = {
    **_each("path file file_path", "use filename"),
    **_each("mmap use_mmap mode", "use mmap_mode"),
    **_TENSORS_ALONE,
    **_NO_WORKERS,
    "plan": "use plan of pagestream.torch.load_state_dict, or get_tensor of safe_open for each tensor",
}

# Unknown keywords with their advice, for each function by its name below `pagestream`.
ADVICE: dict[str, dict[str, str]] = {
    # It also applies to `pagestream.torch.TokenLoader`, which passes its arguments on.
    "TokenLoader": {
        **_LENGTH,
        **_each(
            "B bs bsz batchsize "
            "micro_batch_size local_batch_size device_batch_size train_batch_size per_device_batch_size "
            "per_device_train_batch_size per_device_eval_batch_size",
            "use batch_size",
        ),
        **_each(
            "global_batch_size global_train_batch_size total_batch_size",
            "use batch_size, which counts the windows of one rank",
        ),
        **_each(
            "gradient_accumulation_steps grad_accum_steps num_microbatches",
            "leave it out: each batch of the loader is one micro-batch",
        ),
        **_each(
            "shuffle shuffle_algo sampling_method",
            'use order, for example order="shuffled" (the default) or order="sequential"',
        ),
        **_each(
            "shuffle_block_size shuffle_buffer shuffle_buffer_size shardshuffle",
            'leave it out: order="shuffled" is a permutation of all windows; for slow storage use '
            'mixing_radius with order="blocked"',
        ),
        **_each("sampler batch_sampler", "use order and seed: a loader draws its windows itself"),
        **_each("generator random_state random_seed rng shuffle_seed data_seed", "use seed, an integer"),
        **_NO_WORKERS,
        **_each(
            "prefetch prefetch_factor prefetch_batches prefetch_buffer_size dataloader_prefetch_factor "
            "predownload worker_buffer_size buffer_size",
            "use lookahead, or leave it out",
        ),
        **_each("num_threads max_workers", "use threads, or leave it out"),
        **_each(
            "pin_memory pin_memory_device dataloader_pin_memory non_blocking",
            "leave it out: pagestream.torch.TokenLoader pins its buffers if its device is a GPU",
        ),
        **_each("device map_location", "use device of pagestream.torch.TokenLoader"),
        "framework": "pagestream.TokenLoader has NumPy arrays, and pagestream.torch.TokenLoader has tensors",
        **_each(
            "collate_fn data_collator transform operations",
            "leave it out: a batch is one array, which the loop can change",
        ),
        **_each("drop_remainder dataloader_drop_last", "use drop_last"),
        **_each("num_epochs n_epochs nepochs max_epochs num_train_epochs", "use epochs"),
        **_each("infinite loop endless cycle repeat resampled", "use epochs=None for a stream without end"),
        **_each(
            "max_steps max_iters train_iters num_steps num_samples epoch_size",
            "use epochs=None, and end the loop after so many steps",
        ),
        **_each(
            "consumed_samples state state_dict resume resume_from start_step initial_step skip_batches",
            "call load_state_dict with the state of the loader that saved it",
        ),
        **_each(
            "global_rank shard_id shard_index process_index process_rank process_id dp_rank "
            "data_parallel_rank",
            "use rank",
        ),
        "local_rank": "rank is the global rank, for example torch.distributed.get_rank(); use rank for that",
        **_each(
            "num_replicas num_shards shard_count process_count num_processes num_ranks dp_world_size dp_size "
            "data_parallel_size",
            "use world_size",
        ),
        **_each(
            "process_group device_mesh shard_options nodesplitter",
            "use rank and world_size, counted over data-parallel ranks",
        ),
        "num_canonical_nodes": "leave it out: the order is the same for any number of ranks",
        **_each(
            "weights probabilities proportions streams datasets blend data_blend",
            "pass a pagestream.Mixture of corpora and weights as the tokens",
        ),
        **_each(f"dataset train_dataset {_DATA}", "use tokens"),
        **_each("overlap hop", "use stride"),
        **_each("add_extra_token_to_sequence return_labels shift_labels", "use target"),
        **_each(
            "reset_position_ids reset_attention_mask eod_mask_loss packing",
            'use documents, for example documents="boundaries"',
        ),
        **_each("token_dtype", "pass open_tokens(path, dtype=...) as the tokens"),
        **_each("subsample", "use TokenCorpus.part, and pass the part as the tokens"),
        **_SPLIT,
        **_MOUNTED,
        **_NO_INDEX,
        **_DOCUMENTS,
        **_VOCABULARY,
        **_MODE,
        "format": "pass open_tokens(path, format=...) as the tokens",
    },
    "torch.TokenDataset": {
        **_LENGTH,
        **_each("batch_size drop_last pin_memory prefetch_factor collate_fn", "pass it to the DataLoader"),
        **_each("bsz batchsize", "pass batch_size to the DataLoader"),
        **_each(_WORKERS, "pass it to the DataLoader"),
        **_each(
            "shuffle seed generator order rank world_size",
            "leave it out: the sampler decides, for example pagestream.torch.DistributedTokenSampler",
        ),
        **_each("device map_location", "use device of pagestream.torch.TokenLoader, or tensor.to(device)"),
        **_each("documents end_token begin_token", "use documents of pagestream.torch.TokenLoader"),
        **_each("transform", "leave it out: change the items in the collate_fn of the DataLoader"),
        **_each(f"dataset {_DATA}", "use tokens"),
        **_each("overlap hop", "use stride"),
        **_each("add_extra_token_to_sequence return_labels shift_labels", "use target"),
        **_SPLIT,
        **_MOUNTED,
        **_NO_INDEX,
        **_VOCABULARY,
        **_MODE,
        "format": "pass open_tokens(path, format=...) as the tokens",
    },
    "open_tokens": {
        **_each(f"paths {_DATA.removeprefix('path ')}", "use path"),
        **_each("token_dtype type data_type", "use dtype"),
        **dict.fromkeys(["sequence_length", *_LENGTH], "use sequence_length of pagestream.TokenLoader"),
        **_each("batch_size bsz batchsize", "use batch_size of pagestream.TokenLoader"),
        **_MOUNTED,
        **_MODE,
        **_each("offset header_bytes skip", "leave it out: open_tokens finds headers; TokenCorpus.part cuts"),
        "shape": "leave it out: tokens have one dimension; TokenLoader makes windows",
        **_each("split splits train", "open the files of one split, or use TokenCorpus.part"),
        **_each("vocabulary vocab_size n_vocab num_tokens", "use vocabulary of pagestream.TokenLoader"),
        **_each("device framework", "use device of pagestream.torch.TokenLoader"),
        **_NO_WORKERS,
    },
    "Mixture": {
        **_each(
            "weights probabilities probs ratios proportions blend",
            "pass pairs of a corpus and its weight: Mixture([(a, 0.7), (b, 0.3)])",
        ),
        **_each("datasets corpora tokens paths streams", "use sources"),
        **_each("stopping_strategy stop_on_exhausted iterate_over_all", "use exhausted"),
        **_each("seed generator random_state", "use seed of pagestream.TokenLoader"),
        **dict.fromkeys(["sequence_length", *_LENGTH], "use sequence_length of pagestream.TokenLoader"),
    },
    "write_tokens": {
        **_each("tokens data ids array input_ids", "use arrays"),
        **_each("file filename file_path output out", "use path"),
        **_each("token_dtype type", "use dtype"),
        **_each("overwrite exist_ok force mode", "leave it out: the new file takes the place of an old one"),
        "append": "write one more file: open_tokens reads a list of files as one corpus",
        **_each("shard_size max_tokens", "write several files: open_tokens reads them as one corpus"),
        **_each("eos_token eos_token_id end_token", "add the token at the end of each array"),
        **_each("vocab_size vocabulary", "choose a dtype that holds the largest token"),
        **_each("starts document_starts boundaries", "use documents"),
        **_BAR,
    },
    "open_checkpoint": {
        **_each("device map_location device_map", "use device of pagestream.torch.load_state_dict"),
        **_each("dtype torch_dtype", "use dtype of pagestream.torch.load_state_dict"),
        "framework": "open_checkpoint has NumPy arrays, and pagestream.torch.load_state_dict has tensors",
        **_each("keys names plan tensors", "use plan of Checkpoint.stream, or weights[name]"),
        "memory_bytes": "use memory_bytes of Checkpoint.stream",
        "verify": "call Checkpoint.verify",
        **_each("mmap use_mmap mode backend", "use mmap_mode"),
        **_each(_PATHS, "use path"),
        **_CHECKPOINT,
    },
    "Checkpoint.stream": {
        **_each("device map_location", "use device of pagestream.torch.stream_checkpoint"),
        **_each("dtype torch_dtype", "use dtype of pagestream.torch.stream_checkpoint"),
        **_each("keys names tensors", "use plan"),
        **_each("mmap_mode mmap backend", "use mmap_mode of pagestream.open_checkpoint"),
        **_same("process_group", "pagestream.torch.stream_checkpoint"),
        **_each("buffer_size prefetch chunk_size", "use memory_bytes"),
        **_each("workers num_workers max_workers", "use threads"),
        **_BAR,
    },
    "torch.load_state_dict": {
        **_each("map_location device_map", "use device"),
        **_each("mmap use_mmap mode backend", "use mmap_mode"),
        **_each("keys names tensors", "use plan"),
        **_same("strict assign rename", "pagestream.torch.load_into"),
        **_same("memory_bytes strategy progress", "pagestream.torch.stream_checkpoint"),
        **_each("framework", "leave it out: pagestream.torch has tensors of torch"),
        **_each("model module", "use module of pagestream.torch.load_into"),
        **_each(_PATHS, "use path"),
        **_DTYPE,
        **_GROUP,
        **_CHECKPOINT,
    },
    "torch.stream_checkpoint": {
        **_each("map_location device_map", "use device"),
        **_each("keys names tensors", "use plan"),
        "strict": "pass open_checkpoint(path, strict=...) as the path",
        **_each("framework", "leave it out: pagestream.torch has tensors of torch"),
        **_each("buffer_size prefetch chunk_size max_memory", "use memory_bytes"),
        "threads": "set PAGESTREAM_THREADS, or leave it out",
        **_each(_PATHS, "use path"),
        **_OPEN_FIRST,
        **_DTYPE,
        **_GROUP,
        **_BAR,
        **_CHECKPOINT,
    },
    "torch.load_into": {
        **_each("model", "use module"),
        **_each("state_dict checkpoint filename file", "use path"),
        **_each(
            "device map_location device_map",
            "leave it out: tensors go where the module has them, and those on meta to torch's default device",
        ),
        **_each("dtype torch_dtype", "leave it out: tensors get the types of the module"),
        **_each("keys names tensors", "use plan"),
        "memory_bytes": "set PAGESTREAM_MEMORY_BYTES, or leave it out",
        **_OPEN_FIRST,
        **_RENAME,
        **_GROUP,
        **_BAR,
        **_CHECKPOINT,
    },
    "safetensors.safe_open": {
        "map_location": "use device",
        "dtype": "use dtype of pagestream.torch.load_state_dict",
        **_SAFETENSORS,
    },
    "safetensors.torch.load_file": {
        "map_location": "use device",
        **_each("dtype torch_dtype", "use dtype of pagestream.torch.load_state_dict"),
        "framework": "leave it out: pagestream.safetensors.torch has tensors of torch",
        **_SAFETENSORS,
    },
    "safetensors.numpy.load_file": {
        **_each("device map_location", "use device of pagestream.safetensors.torch.load_file"),
        "framework": "leave it out: pagestream.safetensors.numpy has arrays of NumPy",
        **_SAFETENSORS,
    },
}


def advises(name: str) -> Callable[[Function], Function]:
    """Returns a decorator for a function or an ``__init__`` that has a row in `ADVICE`.

    A call with such a word is always a TypeError, and the decorator adds the advice to its message. So is a
    call with too many positional arguments, and the decorator names keywords for them. Any other TypeError
    passes unchanged. Parameters of the function have no advice.
    """

    def decorate(function: Function) -> Function:
        title = function.__qualname__.removesuffix(".__init__")
        code = function.__code__
        own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        advice = {word: text for word, text in ADVICE[name].items() if word not in own}

        @wraps(function)
        def call(*values: Any, **arguments: Any) -> Any:  # noqa: ANN401 - any signature
            try:
                return function(*values, **arguments)
            except TypeError:
                told = [f"{word!r}: {advice[word]}" for word in arguments if word in advice]
                if told:
                    message = f"{title}() got an unexpected keyword argument {'; and '.join(told)}"
                elif len(values) > code.co_argcount:
                    message = _surplus(title, inspect.signature(call), len(values), arguments)
                else:
                    raise
                raise TypeError(message) from None

        return call  # type: ignore[return-value]

    return decorate


def _surplus(title: str, signature: inspect.Signature, given: int, arguments: Collection[str]) -> str:
    """Returns the message for a call with too many positional arguments, which names keywords for them."""
    parameters = signature.parameters.values()
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    keywords = [each for each in parameters if each.kind is each.KEYWORD_ONLY and each.name not in arguments]
    # Required arguments come first.
    keywords.sort(key=lambda each: each.default is not each.empty)
    named = [f"{each.name}=..." for each in keywords[: given - len(positional)]]
    # `self` does not count.
    places = [name for name in positional if name != "self"]
    hidden = len(positional) - len(places)
    plural = "positional argument" if len(places) == 1 else "positional arguments"
    return (
        f"{title}() takes {len(places)} {plural} ({', '.join(places)}), not {given - hidden}; pass "
        f"the others by keyword, for example {title}({', '.join([*places, *named])})"
    )
