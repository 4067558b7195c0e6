"""Folders and patterns that match files of several splits, for example training and validation."""

import re
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from pagestream import TokenLoader, open_tokens
from pagestream.cli._app import app

TOKENS = np.arange(10, dtype="u2")
SPLIT = [
    (["train.bin", "val.bin"], "training (1), validation (1)", ["*train*", "*val*"]),
    (
        ["fineweb_train_000001.bin", "fineweb_train_000002.bin", "fineweb_val_000000.bin"],
        "training (2), validation (1)",
        ["*train*", "*val*"],
    ),
    (["Train-0.npy", "TEST.npy", "dev.npy"], "training (1), validation (1), test (1)", ["*Train*", "*TEST*"]),
    (["train.bin", "eval.bin"], "training (1), validation (1)", ["*train*", "*eval*"]),
    (["train.bin", "holdout-1.bin"], "training (1), validation (1)", ["*train*", "*holdout*"]),
    (["validation.bin", "test.bin"], "validation (1), test (1)", ["*test*", "*validation*"]),
    # A word in all names marks no split.
    (["test_train.bin", "test_val.bin"], "training (1), validation (1)", ["*train*", "*val*"]),
    (["dev_corpus_train.bin", "dev_corpus_val.bin"], "training (1), validation (1)", ["*train*", "*val*"]),
    # Files without a split word are probably for training.
    (
        ["shard_000.bin", "shard_001.bin", "val.bin"],
        "validation (1), others (2)",
        ["*val*"],
    ),
    (["c4.bin", "c4_val.bin"], "validation (1), others (1)", ["*val*"]),
    (["c4_train.bin", "c4_train_val.bin"], "validation (1), others (1)", ["*val*"]),
    (["math.bin", "test-0.bin", "test-1.bin"], "test (2), others (1)", ["*test*"]),
]
ONE_SPLIT = [
    ["train-0.bin", "train-1.bin"],
    ["shard-0.bin", "train.bin"],
    ["test.bin"],
    ["test-0.bin", "test-1.bin"],
    ["my_test_corpus-0.npy", "TEST-1.npy"],
    ["valid-0.bin", "dev-1.bin"],
    ["latest.bin", "training.bin"],
    ["train_test_split.bin", "train_test_split_2.bin", "other.bin"],
    ["devices.bin", "tests.bin", "train.bin"],
]


def write_all(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name.endswith(".npy"):
            np.save(folder / name, TOKENS)
        else:
            TOKENS.tofile(folder / name)


@pytest.mark.parametrize(("names", "told", "patterns"), SPLIT)
def test_a_folder_of_several_splits_is_refused(tmp_path, names, told, patterns):
    # The name of the folder itself does not count.
    folder = tmp_path / "test"
    write_all(folder, names)
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        open_tokens(folder)
    for pattern in patterns:
        assert f"'{folder}/{pattern}'" in str(caught.value)
        with warnings.catch_warnings(action="error"):
            assert len(open_tokens(f"{folder}/{pattern}").shards) < len(names)
    # An explicit list means that the files belong together.
    with warnings.catch_warnings(action="error"):
        assert len(open_tokens([folder / name for name in names])) == 10 * len(names)


@pytest.mark.parametrize("names", ONE_SPLIT)
def test_other_folders_are_one_corpus(tmp_path, names):
    write_all(tmp_path, names)
    with warnings.catch_warnings(action="error"):
        assert len(open_tokens(tmp_path)) == 10 * len(names)


@pytest.mark.parametrize("names", [["train.bin", "val.bin"], ["train/a.bin", "val/a.bin", "val/b.bin"]])
def test_a_pattern_of_several_splits_gets_one_warning(tmp_path, names):
    for name in names:
        write_all((tmp_path / name).parent, [(tmp_path / name).name])
    with pytest.warns(UserWarning, match=r"training \(1\), validation \(\d\)") as caught:
        corpus = open_tokens(f"{tmp_path}/**/*.bin")
    assert [warning.filename for warning in caught] == [__file__]
    assert len(corpus) == 10 * len(names)


def test_a_pattern_of_a_held_out_file_and_others_gets_a_warning(tmp_path):
    write_all(tmp_path, ["c4.bin", "c4_val.bin"])
    with pytest.warns(UserWarning, match=r"validation \(1\), others \(1\)"):
        assert len(open_tokens(f"{tmp_path}/*.bin")) == 20


def test_loaders_refuse_a_folder_of_several_splits(tmp_path):
    write_all(tmp_path, ["train.bin", "val.bin"])
    with pytest.raises(ValueError, match="several splits"):
        TokenLoader(tmp_path, batch_size=1, sequence_length=4)


@pytest.mark.parametrize("command", ["info", "verify", "warm", "residency", "evict"])
def test_commands_take_a_folder_of_several_splits(tmp_path, command):
    write_all(tmp_path, ["train.bin", "val.bin"])
    ended = CliRunner().invoke(app, [command, str(tmp_path)])
    # `verify` has nothing to compare raw tokens with.
    assert ended.exit_code == (3 if command == "verify" else 0), ended.output
