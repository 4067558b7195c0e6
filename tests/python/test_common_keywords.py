"""Keyword arguments of other libraries: the error names the argument to use instead."""

import importlib
import inspect
import pickle
import re
import typing
import warnings

import numpy as np
import pytest

import pagestream
from pagestream import Mixture, TokenLoader, open_tokens, write_tokens
from pagestream._common.keywords import ADVICE, advises


def function_of(name):
    """Returns the function of a row, or the class if the row names an `__init__`."""
    module, _, rest = f"pagestream.{name}".rpartition(".")
    if module.endswith(".Checkpoint"):
        return getattr(pagestream.Checkpoint, rest)
    return getattr(importlib.import_module(module), rest)


def told(call, *arguments, **options):
    with pytest.raises(TypeError) as caught:
        call(*arguments, **options)
    assert caught.value.__suppress_context__
    return str(caught.value)


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("block_size", "use sequence_length"),
        ("seq_len", "use sequence_length"),
        ("context_length", "use sequence_length"),
        ("shuffle", 'use order, for example order="shuffled" (the default) or order="sequential"'),
        ("infinite", "use epochs=None for a stream without end"),
        ("T", "use sequence_length"),
        ("bsz", "use batch_size"),
        ("batchsize", "use batch_size"),
        (
            "streaming",
            "leave it out: pagestream never loads whole files, and reads windows as they are needed",
        ),
        (
            "local_rank",
            "rank is the global rank, for example torch.distributed.get_rank(); use rank for that",
        ),
        ("consumed_samples", "call load_state_dict with the state of the loader that saved it"),
        ("num_workers", "no workers are needed, because native threads read ahead; leave it out"),
        ("generator", "use seed, an integer"),
        (
            "pin_memory",
            "leave it out: pagestream.torch.TokenLoader pins its buffers if its device is a GPU",
        ),
        ("map_location", "use device of pagestream.torch.TokenLoader"),
        ("device", "use device of pagestream.torch.TokenLoader"),
        (
            "framework",
            "pagestream.TokenLoader has NumPy arrays, and pagestream.torch.TokenLoader has tensors",
        ),
    ],
)
def test_a_loader_names_the_argument_for_a_foreign_keyword(word, advice):
    message = f"TokenLoader() got an unexpected keyword argument {word!r}: {advice}"
    assert told(TokenLoader, "tokens.bin", **{word: 4}) == message


# Keyword arguments of other libraries' loaders and datasets. pagestream names them differently or lacks them.
FOREIGN = {
    "nanoGPT": "data_dir block_size gradient_accumulation_steps max_iters",
    "llm.c": "filename_pattern B T process_rank num_processes",
    "torchtitan": "dataset_name dataset_path seq_len dp_rank dp_world_size infinite local_batch_size "
    "tokenizer",
    "Megatron": "data_path path_to_cache seq_length micro_batch_size global_batch_size consumed_samples "
    "data_parallel_rank data_parallel_size random_seed split mmap_bin_files blend train_iters "
    "reset_position_ids reset_attention_mask eod_mask_loss add_extra_token_to_sequence",
    "litgpt": "data_path max_seq_length max_steps num_workers",
    "transformers": "train_dataset per_device_train_batch_size num_train_epochs max_steps data_seed "
    "data_collator gradient_accumulation_steps dataloader_drop_last dataloader_num_workers "
    "dataloader_pin_memory dataloader_prefetch_factor dataloader_persistent_workers "
    "dataloader_multiprocessing_context",
    "streaming": "streams remote local split download_retry download_timeout validate_hash keep_zip "
    "epoch_size predownload cache_limit num_canonical_nodes shuffle shuffle_algo shuffle_seed "
    "shuffle_block_size sampling_method",
    "litdata": "input_dir cache_dir item_loader shuffle serializers max_cache_size subsample storage_options "
    "max_pre_download index_path transform",
    "grain": "data_source sampler operations worker_count worker_buffer_size shard_options num_epochs "
    "shard_index shard_count drop_remainder num_threads prefetch_buffer_size",
    "webdataset": "urls shardshuffle nodesplitter resampled",
    "torch": "dataset sampler batch_sampler num_workers collate_fn pin_memory worker_init_fn generator "
    "multiprocessing_context prefetch_factor persistent_workers pin_memory_device num_replicas",
}


@pytest.mark.parametrize("library", FOREIGN)
def test_a_loader_has_advice_for_the_words_of_other_loaders(library):
    assert [word for word in FOREIGN[library].split() if word not in ADVICE["TokenLoader"]] == []


@pytest.mark.frameworks
def test_every_keyword_of_the_table_gets_its_advice():
    """No word in the table is a parameter: the decorator would replace the function's own error by advice."""
    assert len(ADVICE) > 12
    for name, advice in ADVICE.items():
        function = function_of(name)
        for word, text in advice.items():
            assert told(function, **{word: None}).endswith(f"argument {word!r}: {text}"), (name, word)
        both = told(function, **dict.fromkeys([*advice][:2]))
        assert all(f"{word!r}: {advice[word]}" in both for word in [*advice][:2])


@pytest.mark.frameworks
def test_advice_names_existing_arguments_and_functions():
    named = 0
    for name, advice in ADVICE.items():
        for text in advice.values():
            for word, place in re.findall(r"\buse (\w+)(?: of ((?:pagestream|Checkpoint)\.[\w.]*\w))?", text):
                function = function_of(place.removeprefix("pagestream.") or name)
                if word != "TokenCorpus":
                    assert word in inspect.signature(function).parameters, (name, text)
                named += 1
            for place in re.findall(r"\bpagestream\.[\w.]*\w", text):
                assert place == "pagestream.torch" or function_of(place.removeprefix("pagestream.")), text
    assert named > 100


@pytest.mark.frameworks
def test_the_loader_of_torch_has_the_same_advice_and_a_device():
    torch_loader = pagestream.torch.TokenLoader
    assert told(torch_loader, "tokens.bin", device="cpu", block_size=4, n_ctx=4) == (
        "TokenLoader() got an unexpected keyword argument 'block_size': use sequence_length; "
        "and 'n_ctx': use sequence_length"
    )


def test_positional_arguments_get_their_keywords(token_file):
    assert told(TokenLoader, token_file, 1024, 8, seed=1) == (
        "TokenLoader() takes 1 positional argument (tokens), not 3; pass the others by keyword, for example "
        "TokenLoader(tokens, sequence_length=..., batch_size=...)"
    )
    assert told(open_tokens, token_file, "u2").endswith("for example open_tokens(path, dtype=...)")
    assert told(TokenLoader, token_file, 8, block_size=4).endswith("'block_size': use sequence_length")


@pytest.mark.frameworks
def test_positional_arguments_of_torch_get_their_keywords(token_file):
    message = told(pagestream.torch.TokenLoader, token_file, 1024, 8, device="cpu")
    assert message.endswith("for example TokenLoader(tokens, sequence_length=..., batch_size=...)")
    message = told(pagestream.torch.TokenDataset, token_file, 1024, 8)
    assert "takes 2 positional arguments (tokens, sequence_length), not 3;" in message


def test_other_type_errors_pass_unchanged(token_file):
    with pytest.raises(TypeError, match="'blocksize'"):
        TokenLoader(token_file, blocksize=4)
    with pytest.raises(TypeError, match="missing 2 required"):
        TokenLoader(token_file)
    with pytest.raises(TypeError, match=r"^sequence_length must be an integer, not '4'$") as caught:
        TokenLoader(token_file, sequence_length="4", batch_size=1)
    assert caught.value.__context__ is None

    failure = TypeError("from within")

    @advises("open_tokens")
    def fails(path, *, dtype=None):
        raise failure

    with pytest.raises(TypeError) as caught:
        fails("tokens.bin", dtype="u2")
    assert caught.value is failure


@pytest.mark.frameworks
def test_signatures_hints_help_and_pickles_are_those_of_the_function():
    for name in ADVICE:
        function = function_of(name)
        plain = inspect.unwrap(function.__init__ if inspect.isclass(function) else function)
        seen = function.__init__ if inspect.isclass(function) else function
        assert seen is not plain
        assert inspect.signature(seen) == inspect.signature(plain)
        assert typing.get_type_hints(seen) == typing.get_type_hints(plain)
        assert seen.__doc__ == plain.__doc__
        assert (seen.__name__, seen.__qualname__) == (plain.__name__, plain.__qualname__)
    assert "sequence_length" in inspect.signature(TokenLoader).parameters
    assert pickle.loads(pickle.dumps(write_tokens)) is write_tokens


@pytest.mark.frameworks
def test_the_loader_of_torch_describes_each_argument_with_its_default():
    text = " ".join(pagestream.torch.TokenLoader.__doc__.split())
    for name, parameter in inspect.signature(TokenLoader).parameters.items():
        if name == "tokens":
            continue
        line = text.partition(f" * `{name}`: ")[2].partition(" * `")[0].partition(" Raises: ")[0]
        default = parameter.default
        wanted = (
            "required"
            if default is parameter.empty
            else f'"{default}"'
            if isinstance(default, str)
            else default
        )
        assert str(wanted) in line, name


def test_warnings_show_the_line_of_the_caller(tmp_path):
    for name in ("train.bin", "val.bin"):
        np.arange(64, dtype="u2").tofile(tmp_path / name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokens = open_tokens(f"{tmp_path}/*.bin")
        Mixture([(tokens, 1e-12), (tokens, 1)])
    assert [warning.filename for warning in caught] == [__file__] * 2
