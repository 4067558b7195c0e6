"""The promises of docs/versions.md: saved states, the command's JSON, its exit codes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import pagestream
from pagestream.errors import StateMismatchError

ROOT = Path(__file__).parents[2]

# States as the first version wrote them after one batch, and the first tokens of the next windows.
LOADER = {
    "version": 1,
    "fingerprint": "bf5524ad47cf94c7",
    "order_version": 1,
    "mixing_radius": None,
    "seed": 1,
    "sequence_length": 16,
    "stride": 16,
    "target": "shift",
    "samples_consumed": 4,
    "epoch": 0,
}
STATES = {
    "shuffled": ({**LOADER, "order": "shuffled"}, [3152, 192, 2032, 304]),
    "random": ({**LOADER, "order": "random"}, [1182, 1713, 3754, 833]),
    "sequential": ({**LOADER, "order": "sequential"}, [64, 80, 96, 112]),
    "blocked": ({**LOADER, "order": "blocked", "mixing_radius": 2097152}, [3520, 1264, 3776, 2928]),
}
SOURCE = {"epoch": 0, "start_epoch": 0, "start_windows_consumed": 0}
MIXTURE = {
    **{name: value for name, value in LOADER.items() if name != "fingerprint"},
    "order": "shuffled",
    "epoch": None,
    "mixture": {
        "version": 2,
        "exhausted": "repeat",
        "start_samples": 0,
        "start_pass": 0,
        "sources": [
            {**SOURCE, "fingerprint": "bf5524ad47cf94c7", "weight": 1, "number": 0, "windows_consumed": 1},
            {**SOURCE, "fingerprint": "a9bcde68c944d90a", "weight": 3, "number": 1, "windows_consumed": 3},
        ],
    },
}
AFTER_MIXTURE = [1968, 3184, 592, 432]


@pytest.fixture
def path(tmp_path):
    np.arange(4096, dtype="u2").tofile(tmp_path / "tokens.bin")
    return tmp_path / "tokens.bin"


def loader_of(source, **options):
    options = {"sequence_length": 16, "batch_size": 4, "seed": 1, "epochs": None, **options}
    return pagestream.TokenLoader(source, **options)


def first_tokens(loader, state):
    """Loads a state that went through JSON, as in a checkpoint. Returns where the next windows begin."""
    loader.load_state_dict(json.loads(json.dumps(state)))
    return next(loader)[0][:, 0].tolist()


@pytest.mark.parametrize("order", STATES)
def test_a_state_of_the_first_version_goes_on_with_the_same_windows(path, order):
    state, expected = STATES[order]
    with loader_of(path, order=order) as loader:
        assert first_tokens(loader, state) == expected


def test_a_state_of_the_first_mixture_goes_on_with_the_same_windows(path):
    tokens = pagestream.open_tokens(path)
    with loader_of(pagestream.Mixture([(tokens, 1), (tokens.part(0.0, 0.5), 3)])) as loader:
        assert first_tokens(loader, MIXTURE) == AFTER_MIXTURE


@pytest.mark.parametrize(
    ("name", "message"), [("version", "version 2"), ("order_version", "order_version is 2")]
)
def test_a_state_of_a_newer_version_is_refused(path, name, message):
    state, _ = STATES["shuffled"]
    with loader_of(path) as loader, pytest.raises(StateMismatchError, match=message):
        loader.load_state_dict({**state, name: 2})


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pagestream", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_the_json_of_info_has_its_keys(path):
    weights = path.parent / "model.safetensors"
    safetensors.numpy.save_file({"w": np.ones(3, "f4")}, weights)
    tokens = json.loads(command("info", "--json", path)[1])
    assert {"kind", "format", "dtype", "tokens", "documents", "nbytes", "shards", "warnings"} <= set(tokens)
    found = json.loads(command("info", "--json", weights)[1])
    assert {"kind", "files", "tensors", "nbytes", "metadata", "warnings", "problem"} <= set(found)
    assert {"name", "dtype", "shape", "nbytes", "path", "offset"} <= set(found["tensors"][0])


def test_exit_codes_stay(path):
    (path.parent / "bad.safetensors").write_bytes(bytes(7))
    codes = [
        command("info", path.parent / name)[0] for name in ("tokens.bin", "bad.safetensors", "missing.bin")
    ]
    assert codes == [0, 1, 2]


def test_the_page_names_the_variables_and_versions_that_exist():
    text = (ROOT / "docs/versions.md").read_text()
    for name in set(re.findall(r"`([A-Z]+_VERSION)`", text)):
        assert hasattr(pagestream._native, name)
