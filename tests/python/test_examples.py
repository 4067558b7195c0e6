"""`examples/programs` and `examples/nanogpt`, run as users run them, with little input."""

import math
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from pagestream.safetensors.torch import save_file

from support.ranks import run_ranks
from support.torch_process import run_torch

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = EXAMPLES / "programs"


def output_of(folder, *command):
    """Returns the output of a Python program that runs in a folder."""
    program, *arguments = command
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = run_torch(folder / program, *arguments, cwd=folder, env=environment, has_brief_end=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_program_is_in_the_list_and_tested():
    listed = set(re.findall(r"\]\((\w+\.py)\)", (PROGRAMS / "README.md").read_text()))
    assert listed == {found.name for found in PROGRAMS.glob("*.py")}
    here = Path(__file__).read_text()
    assert [name for name in listed if f'PROGRAMS / "{name}"' not in here] == []


def test_training_goes_on_with_another_number_of_ranks(tmp_path):
    # One-byte tokens keep the model small.
    np.save(tmp_path / "tokens.npy", np.random.default_rng(0).integers(0, 256, 50_000, "u1"))
    program = PROGRAMS / "train_ranks.py"
    arguments = (tmp_path / "tokens.npy", "--steps", 5, "--checkpoint", tmp_path / "checkpoint")
    assert "2 ranks: samples 0 to 40" in run_ranks(2, program, *arguments)
    assert "3 ranks: samples 40 to 100" in run_ranks(3, program, *arguments)


def test_a_checkpoint_fills_a_module_without_memory(tmp_path):
    tensors = {"a.weight": torch.ones(3, 5), "a.b.bias": torch.zeros(7, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    printed = output_of(tmp_path, PROGRAMS / "meta_device.py", "model.safetensors")
    assert "22 parameters; missing [], unexpected []" in printed


def test_shards_load_by_distributed_checkpoint(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    weights = {
        "model.embed_tokens.weight": torch.arange(60.0).reshape(6, 10),
        "model.layers.0.norm.weight": torch.ones(4, dtype=torch.bfloat16),
        "position_ids": torch.arange(10)[None],
        "scale": torch.tensor(3.0),
    }
    save_file(weights, folder / "model.safetensors")
    printed = run_ranks(2, PROGRAMS / "dcp_load.py", folder)
    total = 1770 + 4 + 45
    # The first rank holds the only row of the last matrix, and no rank shares the scalar.
    for rank, held in enumerate((30 + 2 + 10, 30 + 2)):
        assert f"rank {rank} holds {held} elements; the sum of all is {total:.6g}" in printed


def test_transformers_loads_through_pagestream(tmp_path):
    printed = output_of(tmp_path, PROGRAMS / "transformers_install.py")
    assert "from_pretrained used pagestream" in printed
    assert "parameters are equal" in printed


def test_a_picture_of_the_page_cache(tmp_path):
    np.zeros(1 << 20, "u2").tofile(tmp_path / "tokens.bin")
    printed = output_of(tmp_path, PROGRAMS / "residency_picture.py", "tokens.bin", "picture.png")
    assert "100% of 512 pages" in printed
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


ALL = sorted(PROGRAMS.glob("*.py"))


def refusal_of(folder, *command):
    """Returns the standard error of a program that ends with exit code 2 for wrong use."""
    program, *arguments = command
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = run_torch(program, *arguments, cwd=folder, env=environment, has_brief_end=True)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_each_program_has_help(tmp_path, program):
    assert output_of(tmp_path, program, "--help").startswith(f"usage: {program.name}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("residency_picture.py",), "the following arguments are required: file, picture"),
        (("residency_picture.py", "nothing", "a.png"), "No such file or directory"),
        (("residency_picture.py", "tokens.bin", "a.nonsense"), "Format 'nonsense' is not supported"),
        (("meta_device.py", "nothing"), "no such file or folder"),
        (("meta_device.py", "tokens.bin"), "header"),
        (("dcp_load.py", "nothing"), "No such file or directory"),
        (("dcp_load.py", "."), ". has no .safetensors files"),
        (("train_ranks.py", "nothing"), "No such file or directory"),
        (("train_ranks.py", "tokens.bin"), "it runs on ranks: torchrun "),
        (("train_ranks.py", "wide.npy"), "the tokens are uint32: --vocabulary has to say"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_use_of_a_program_is_told_without_a_traceback(tmp_path, arguments, expected):
    np.zeros(1 << 12, "u2").tofile(tmp_path / "tokens.bin")
    np.save(tmp_path / "wide.npy", np.zeros(1 << 12, "u4"))
    program, *others = arguments
    assert expected in refusal_of(tmp_path, PROGRAMS / program, *others)


# --- nanoGPT --------------------------------------------------------------------------------------


@pytest.fixture
def nanogpt(tmp_path):
    """Makes a folder with nanoGPT's script and a text of letters, as written by its `prepare.py`."""
    shutil.copytree(EXAMPLES / "nanogpt", tmp_path / "nanogpt")
    data = tmp_path / "nanogpt/data/mine"
    data.mkdir(parents=True)
    text = (EXAMPLES / "nanogpt/LICENSE").read_text() * 5
    letters = sorted(set(text))
    tokens = np.array([letters.index(letter) for letter in text], "u2")
    tokens[:4000].tofile(data / "train.bin")
    tokens[4000:].tofile(data / "val.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(letters)}))
    return tmp_path / "nanogpt", len(letters)


def test_nanogpt_trains(nanogpt):
    folder, letters = nanogpt
    model = ("--n_layer=1", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4")
    steps = ("--max_iters=40", "--eval_interval=20", "--eval_iters=3", "--gradient_accumulation_steps=1")
    rates = ("--learning_rate=1e-2", "--decay_lr=False")
    machine = ("--dataset=mine", "--device=cpu", "--compile=False", "--dtype=float32")
    printed = output_of(folder, "train.py", *model, *steps, *rates, *machine)
    losses = [float(loss) for loss in re.findall(r"step \d+: train loss [\d.]+, val loss ([\d.]+)", printed)]
    assert len(losses) == 3
    assert abs(losses[0] - math.log(letters)) < 0.3
    assert losses[-1] < losses[0] - 0.5
    assert (folder / "out/ckpt.pt").exists()


def test_nanogpt_differs_by_the_lines_of_its_readme_alone():
    """The script differs from upstream's exactly by the lines that its README shows."""
    readme = (EXAMPLES / "nanogpt/README.md").read_text()
    difference = re.search(r"^```diff\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[1].splitlines()
    script = (EXAMPLES / "nanogpt/train.py").read_text().splitlines()
    added = [line[1:] for line in difference if line.startswith("+")]
    ours = [line for line in script if re.search(r"TokenLoader|loaders|train_loader", line)]
    assert ours == added
    assert [line for line in difference if line.startswith("-") and line[1:] in script] == []


def test_a_resumed_nanogpt_trains_on_the_batches_that_follow(nanogpt):
    """A run stops after its second evaluation, and resumes from the checkpoint written there."""
    folder, _ = nanogpt
    script = (folder / "train.py").read_text()
    # Prints the first tokens of each row that the script trains on.
    script, count = re.subn(
        r"( +)with ctx:\n +logits, loss = model\(X, Y\)\n +loss = loss /",
        lambda found: f"{found[1]}print('trained on', X[:, :8].tolist())\n{found[0]}",
        script,
    )
    assert count == 1
    (folder / "traced.py").write_text(script)
    model = ("--n_layer=1", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4")
    steps = ("--eval_interval=4", "--eval_iters=2", "--gradient_accumulation_steps=2")
    machine = ("--dataset=mine", "--device=cpu", "--compile=False", "--dtype=float32")

    def batches(*more):
        printed = output_of(folder, "traced.py", *model, *steps, *machine, *more)
        return re.findall(r"trained on .*", printed)

    whole = batches("--max_iters=7", "--out_dir=whole")
    assert len(set(whole)) == 16
    # The script writes the checkpoint at step 4, after 4 steps of two batches.
    assert batches("--max_iters=5", "--out_dir=cut") == whole[:12]
    assert batches("--max_iters=7", "--out_dir=cut", "--init_from=resume") == whole[8:]
