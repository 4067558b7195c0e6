"""The command ``pagestream``: its output and its exit codes."""

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import pagestream
from pagestream import MappedFile, open_checkpoint, write_tokens
from pagestream.cli import _app
from pagestream.cli._output import percent
from pagestream.cli.residency import _bar, _parts
from pagestream.cli.warm import _parsed

from support import real
from support.checkpoints import INDEX, index_of, write_index
from support.cli import BAD, COMMANDS, GOOD, NOT_VERIFIED, WRONG_USE, facts, in_one_line, pagestream_command
from support.page_cache import seen_once
from support.process import PROGRAMS, run_python, thread_names, until

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


@pytest.fixture
def weights(tmp_path):
    tensors = {f"layers.{number}": np.full((64, 1024), number, "f4") for number in range(12)}
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    return path


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "train.bin"
    np.arange(50_000, dtype="u2").tofile(path)
    return path


def program(*arguments, **options):
    command = [sys.executable, "-m", "pagestream", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class TestInfo:
    def test_the_largest_id_of_each_file(self, tmp_path, weights):
        np.save(tmp_path / "a.npy", np.array([3, 50_256, 2], "<i4"))
        np.save(tmp_path / "b.npy", np.array([3, -1], "<i4"))
        np.save(tmp_path / "c.npy", np.array([], "<i4"))
        found = facts("info", tmp_path, "--format", "npy", "--largest")
        assert found["ids"] == [
            {"smallest": 2, "largest": 50_256},
            {"smallest": -1, "largest": 3},
            None,
        ]
        told = pagestream_command("info", tmp_path, "--format", "npy", "--largest").stdout
        for words in ("largest id", "50256", "3, smallest -1", "no tokens"):
            assert words in told
        assert "ids" not in facts("info", tmp_path / "a.npy")
        assert "--largest is for token files" in pagestream_command("info", weights, "--largest").output

    def test_weights(self, weights):
        found = facts("info", weights)
        assert found["kind"] == "safetensors"
        assert found["metadata"] == {"format": "pt"}
        assert found["nbytes"] == 12 * 64 * 1024 * 4
        assert found["tensors"][0]["shape"] == [64, 1024]
        assert found["tensors"][0]["offset"] == weights.stat().st_size - found["nbytes"]
        told = pagestream_command("info", weights).stdout
        assert "12 tensors, 3 MiB, in 1 file" in told
        assert "format = pt" in told
        assert "… and 2 smaller tensors" in told
        assert "layers.9" not in told
        assert "layers.9" in pagestream_command("info", "--all", weights).stdout

    def test_a_folder_of_shards(self, weights):
        weights.rename(weights.with_name("model-00001-of-00002.safetensors"))
        safetensors.numpy.save_file(
            {"more": np.zeros(8)}, weights.with_name("model-00002-of-00002.safetensors")
        )
        found = facts("info", weights.parent)
        assert len(found["files"]) == 2
        assert len(found["tensors"]) == 13

    def test_weights_without_their_suffix(self, weights):
        assert facts("info", weights.rename(weights.with_name("blob")))["kind"] == "safetensors"

    def test_raw_tokens(self, tokens):
        found = facts("info", tokens)
        assert (found["kind"], found["format"], found["dtype"]) == ("tokens", "raw", "uint16")
        assert found["tokens"] == 50_000
        assert found["first_tokens"] == list(range(16))
        assert facts("info", tokens, "--dtype", "int16")["dtype"] == "int16"

    def test_documents(self, tmp_path):
        write_tokens(
            tmp_path / "corpus", [np.arange(10), np.arange(30), np.arange(20)], dtype="u2", format="megatron"
        )
        assert facts("info", tmp_path / "corpus")["documents"] == 3
        assert (
            "3 documents: 10 to 30 tokens, median 20"
            in pagestream_command("info", tmp_path / "corpus").stdout
        )

    def test_markup_in_names_is_text(self, tmp_path):
        safetensors.numpy.save_file({"[bold]x[/bold]": np.zeros(4)}, tmp_path / "model.safetensors")
        assert "[bold]x[/bold]" in pagestream_command("info", tmp_path / "model.safetensors").stdout


class TestFolders:
    @pytest.fixture
    def folder(self, weights, tmp_path):
        """A folder with an index that names one of two copies, and with a link to another folder."""
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "1.safetensors").symlink_to(weights)
        safetensors.numpy.save_file(
            {"layers.0": np.ones(4, "f4"), "b": np.zeros(4, "f4")}, folder / "2.safetensors"
        )
        write_index(folder, {"layers.0": "1.safetensors", "b": "2.safetensors"})
        return folder

    @pytest.mark.parametrize("command", COMMANDS)
    @pytest.mark.parametrize("by", ["folder", "index"])
    def test_links_and_second_copies_are_no_error(self, command, folder, by):
        found = pagestream_command(command, folder if by == "folder" else folder / INDEX)
        assert found.exit_code == GOOD, found.output

    def test_tensors_of_linked_files_have_rows(self, folder):
        found = facts("residency", "--tensors", folder)
        assert {row["name"] for row in found} == {"layers.0", "b"}

    @pytest.mark.parametrize("command", ["info", "check"])
    def test_the_files_found_are_shown_above_the_problem(self, command, folder):
        found = {"b": "2.safetensors", "lost": "2.safetensors", "gone": "3.safetensors"}
        write_index(folder, found)
        told = pagestream_command(command, folder)
        assert told.exit_code == BAD
        above, last = in_one_line(told.stdout).split("problem: ")
        assert "1 file" in above
        assert last.startswith("the checkpoint is not whole: 1 file is missing: ")
        assert '"lost"' in last
        as_json = pagestream_command(command, folder, "--json")
        assert as_json.exit_code == BAD
        assert json.loads(as_json.stdout)["problem"] == last

    @pytest.mark.parametrize("command", ["info", "check"])
    def test_a_whole_checkpoint_has_no_problem(self, command, folder):
        assert facts(command, folder)["problem"] is None

    @pytest.mark.parametrize("command", COMMANDS)
    def test_nothing_but_problems_is_an_error(self, command, folder):
        write_index(folder, {"gone": "3.safetensors"})
        found = pagestream_command(command, folder)
        assert found.exit_code == BAD
        assert "1 file is missing" in found.output

    @pytest.mark.parametrize("command", ["residency", "residency --tensors", "warm", "evict"])
    def test_the_problem_of_one_path_is_on_standard_error(self, command, folder, weights):
        write_index(folder, {"b": "2.safetensors", "lost": "2.safetensors"})
        found = pagestream_command(*command.split(), folder, weights)
        assert found.exit_code == BAD
        assert found.stdout
        [line] = found.stderr.splitlines()
        told = f"pagestream: {folder}: the checkpoint is not whole: 1 tensor is not in the file that "
        assert line.startswith(told)
        assert "open_checkpoint" not in line
        as_json = pagestream_command(*command.split(), folder, weights, "--json")
        assert (as_json.exit_code, as_json.stderr) == (BAD, found.stderr)

    def test_existing_files_are_evicted_warmed_and_shown(self, folder, weights):
        write_index(folder, {"b": "2.safetensors", "gone": "3.safetensors"})
        there = folder / "2.safetensors"
        evicted = facts("evict", folder, weights, exit_code=BAD)
        assert [row["path"] for row in evicted] == [str(there), str(weights)]
        assert facts("warm", folder, exit_code=BAD)["warmed_bytes"] == there.stat().st_size
        shown = facts("residency", "--tensors", folder, exit_code=BAD)
        assert [row["name"] for row in shown] == ["b"]

    @pytest.mark.parametrize("command", ["residency", "warm", "evict", "verify"])
    def test_a_missing_tensor_is_a_problem(self, command, folder):
        write_index(folder, {"b": "2.safetensors", "lost": "2.safetensors"})
        found = pagestream_command(command, folder)
        assert found.exit_code == BAD
        assert "1 tensor is not in the file that the index names for it" in in_one_line(found.output)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_a_name_twice_in_the_index_is_a_problem(self, command, folder):
        names = [("layers.0", "1.safetensors"), ("b", "1.safetensors"), ("b", "2.safetensors")]
        write_index(folder, index_of(names))
        found = pagestream_command(command, folder)
        assert found.exit_code == BAD
        assert found.stdout
        assert '1 tensor is twice in the index: "b"' in found.output
        assert "strict=False" not in found.output

    @pytest.mark.parametrize("command", COMMANDS)
    def test_a_descriptor_is_a_file(self, command, weights):
        with open(weights, "rb") as file:
            found = pagestream_command(command, f"/proc/self/fd/{file.fileno()}")
        assert found.exit_code == GOOD, found.output


class TestCodes:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_a_missing_path_is_wrong_use(self, command, tmp_path):
        found = pagestream_command(command, tmp_path / "nothing")
        assert found.exit_code == WRONG_USE
        assert os.strerror(errno.ENOENT) in found.stderr
        assert found.stdout == ""

    @pytest.mark.parametrize("command", COMMANDS)
    def test_a_fifo_is_wrong_use(self, command, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        assert pagestream_command(command, tmp_path / "fifo").exit_code == WRONG_USE

    @pytest.mark.parametrize("command", COMMANDS)
    def test_an_empty_folder_is_wrong_use(self, command, tmp_path):
        found = pagestream_command(command, tmp_path)
        assert found.exit_code == WRONG_USE
        told = in_one_line(found.output)
        assert "no .safetensors files, and no token files" in told
        assert told.endswith("; or name a file")

    @pytest.mark.parametrize("command", ["info", "verify"])
    def test_a_bad_file(self, command, tmp_path):
        (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
        found = pagestream_command(command, tmp_path / "model.safetensors")
        assert found.exit_code == BAD
        assert "header too large" in found.output

    @pytest.mark.parametrize("command", ["info", "check", "residency", "warm", "evict"])
    def test_errors_are_json_too(self, command, tmp_path):
        found = pagestream_command(command, tmp_path / "nothing", "--json")
        assert found.exit_code == WRONG_USE
        error = json.loads(found.stdout)["error"]
        assert error["type"] == "FileNotFoundError"
        assert error["path"] == str(tmp_path / "nothing")
        assert found.stderr == f"pagestream: {error['message']}\n"
        assert error["message"].startswith(f"{tmp_path}/nothing: ")

    def test_a_bad_file_is_json_too(self, tmp_path):
        (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
        found = pagestream_command("info", tmp_path / "model.safetensors", "--json")
        assert found.exit_code == BAD
        assert json.loads(found.stdout)["error"]["type"] == "SafetensorError"

    def test_options_of_other_files(self, weights, tokens):
        found = pagestream_command("info", weights, "--dtype", "uint32")
        assert found.exit_code == WRONG_USE
        assert "--dtype is for raw tokens" in found.stderr
        found = pagestream_command("info", tokens, "--dtype", "foo")
        assert found.exit_code == WRONG_USE
        assert "--dtype is 'foo'" in found.stderr
        found = pagestream_command("info", tokens, "--format", "llmc")
        assert found.exit_code == BAD
        assert "20240520" in found.stderr
        assert facts("info", weights, "--format", "raw")["kind"] == "tokens"

    def test_hints_are_flags(self, tmp_path):
        """A hint of `format="raw"` becomes `--format raw`."""
        path = tmp_path / "train.bin"
        path.write_text("Words, and no tokens.\n" * 500)
        for command in ("info", "verify"):
            told = pagestream_command(command, path).output
            assert "info and verify read it with --format raw" in in_one_line(told)
            assert pagestream_command(command, path, "--format", "raw", "--dtype", "uint8").exit_code != BAD
        np.arange(50_000, dtype="<u4").tofile(path)
        told = pagestream_command("info", path, "--dtype", "uint16").output
        assert (
            "pass --dtype uint32; if the tokens are uint16 all the same, pass --format raw --dtype uint16"
            in (in_one_line(told))
        )

    def test_problems_that_need_an_action_share_one_colour(self, tmp_path, weights):
        """Bad, unverified and missing files, and warnings."""
        (tmp_path / "bad.safetensors").write_bytes(b"bad")
        (tmp_path / "x.bin").write_bytes(bytes(64))
        with weights.open("r+b") as file:
            file.truncate(MIB)
            file.truncate(weights.stat().st_size)
        paths = (tmp_path / "bad.safetensors", tmp_path / "x.bin", weights)
        code = f"""
            import sys
            from pagestream.cli import main
            sys.stdout.isatty = lambda: True
            sys.argv[1:] = ["verify", *{list(map(str, paths))}]
            main()
        """
        found = run_python(code, FORCE_COLOR="1", TERM="xterm-256color", COLUMNS="300").stdout
        assert set(re.findall(r"\x1b\[([0-9;]*)m", found)) == {"33", "0"}
        assert found.count("\x1b[33m") == 5

    @pytest.mark.parametrize("command", ["info", "verify", "residency"])
    def test_a_model_of_the_hugging_face_cache(self, command, tmp_path):
        (tmp_path / "models--m/snapshots/abc123").mkdir(parents=True)
        found = pagestream_command(command, tmp_path / "models--m")
        assert found.exit_code == WRONG_USE
        assert "snapshots/: name one of abc123" in found.output

    def test_a_token_file_with_half_a_token(self, tmp_path):
        (tmp_path / "train.bin").write_bytes(b"\0" * 7)
        assert pagestream_command("info", tmp_path / "train.bin").exit_code == BAD

    def test_an_unknown_option(self):
        assert pagestream_command("info", "--nope", "x").exit_code == WRONG_USE

    @pytest.mark.parametrize("command", _app.COMMANDS)
    def test_help_begins_as_in_the_list_and_has_an_example(self, command):
        found = pagestream_command(command, "--help")
        assert found.exit_code == GOOD
        told = " ".join(found.stdout.split())
        assert f" {_app.COMMANDS[command]} " in told
        assert f"Example: pagestream {command} " in told

    def test_the_list_of_commands(self):
        listed = " ".join(pagestream_command("--help").stdout.split())
        for command, told in _app.COMMANDS.items():
            assert f" {command} {told}" in listed
        assert set(COMMANDS) < set(_app.COMMANDS)
        misspelt = pagestream_command("verfy")
        assert misspelt.exit_code == WRONG_USE
        assert "No such command 'verfy'. Did you mean 'verify'?" in misspelt.stderr

    def test_the_version(self):
        assert pagestream_command("--version").stdout.strip() == pagestream.__version__

    def test_version_and_help_import_no_large_package(self):
        """Only typer itself imports pydantic, and it does so once the command is known."""
        code = """
            import contextlib, sys
            from pagestream.cli import main
            for arguments in ("--version", "--help", "run --help"):
                sys.argv[1:] = arguments.split()
                with contextlib.suppress(SystemExit):
                    main()
                large = {"numpy", "rich", "torch", "typer", "pydantic", "safetensors", "json", "sysconfig"}
                print(f"{arguments}:", *sorted(large & set(sys.modules)))
        """
        found = run_python(code).stdout
        assert "\n--version:\n" in found
        assert "\n--help: typer\n" in found
        assert re.search(r"\nrun --help: (json )?(pydantic )?sysconfig typer\n", found)


class TestPageCache:
    @pytest.mark.parametrize("kind", ["weights", "tokens"])
    def test_evict_warm_residency(self, request, kind):
        path = request.getfixturevalue(kind)
        with MappedFile(path) as file:
            file.evict()
            assert file.residency().fraction == 0
        assert [row["fraction"] for row in facts("residency", path)] == [0.0]

        def all_is_cached():
            found = facts("warm", path)
            assert found.pop("seconds") > 0
            cached_bytes = found.pop("cached_bytes")
            assert found == {
                "nbytes": path.stat().st_size,
                "warmed_bytes": path.stat().st_size,
                "memory_is_full": False,
                "interrupted": False,
            }
            [shown], [evicted] = facts("residency", path), facts("evict", path)
            assert evicted["after"] == 0.0
            return (cached_bytes, shown["fraction"], evicted["before"]) == (path.stat().st_size, 1.0, 1.0)

        assert seen_once(all_is_cached)

    def test_warming_a_mount_that_keeps_no_pages(self, tokens, tmp_path):
        mount = tmp_path / "mount"
        with real.bindfs(tokens.parent, mount, "direct_io"):
            found = pagestream_command("warm", mount / tokens.name)
            assert found.exit_code == GOOD
            assert "only 0 bytes are in the page cache now" in in_one_line(found.stdout)
            assert facts("warm", mount / tokens.name)["cached_bytes"] == 0

    @pytest.mark.slow
    def test_ctrl_c_reports_how_much_is_warm(self, tmp_path):
        source = tmp_path / "source"
        source.mkdir()
        # The storage takes half a minute for the whole file, and two seconds for the blocks in flight.
        with open(source / "train.bin", "wb") as file:
            file.truncate(2048 * MIB)
        with real.slow_fuse(source, tmp_path / "mount", bandwidth_bytes=64 * MIB) as slow:
            command = [sys.executable, "-m", "pagestream", "warm", "--json", slow.path / "train.bin"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert until(lambda: len(thread_names(process.pid)) > 16)  # all readers run
                process.send_signal(signal.SIGINT)
                found = json.loads(process.communicate()[0])
                assert process.returncode == 130
        assert found["interrupted"]
        assert found["warmed_bytes"] < found["nbytes"]

    @pytest.mark.parametrize("name", ["corpus", "corpus.idx", "corpus.bin", "corp*.bin", "."])
    def test_both_files_of_a_megatron_pair(self, name, tmp_path):
        write_tokens(tmp_path / "corpus", [np.arange(3000)], dtype="u2", format="megatron")
        rows = facts("residency", tmp_path / name)
        # Paths near the current directory are shown relative to it.
        found = [os.path.abspath(row["name"]) for row in rows]
        assert found == [str(tmp_path / f"corpus{suffix}") for suffix in (".idx", ".bin")]

    def test_warm_has_a_limit(self, tmp_path):
        paths = [tmp_path / f"{number}.bin" for number in range(4)]
        for path in paths:
            path.write_bytes(bytes(8 * MIB))
            with MappedFile(path) as file:
                file.evict()
        assert facts("warm", *paths, "--limit", "12MiB")["warmed_bytes"] == 12 * MIB
        fractions = [row["fraction"] for row in facts("residency", *paths)]
        # Meanwhile the kernel may reclaim some pages or read ahead to the end of a file.
        assert fractions[0] >= 0.9
        assert fractions[1] >= 0.4
        assert fractions[2:] == [0.0, 0.0]

    def test_a_row_for_each_tensor(self, weights):
        with MappedFile(weights) as file:
            file.evict()
            file.read(file.size - 4096)
        rows = facts("residency", "--tensors", weights)
        assert [row["name"] for row in rows] == [f"layers.{number}" for number in sorted(range(12), key=str)]
        assert rows[-1]["fraction"] > 0

    def test_the_picture(self, weights, tmp_path):
        assert pagestream_command("residency", weights, "--png", tmp_path / "picture.png").exit_code == GOOD
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")

    def test_shares(self):
        assert [percent(share) for share in (0, 1e-9, 0.5, 0.9999, 1)] == ["0%", "1%", "50%", "99%", "100%"]

    def test_bars(self):
        pages = np.array([False] * 10 + [True, False] * 5 + [True] * 10)
        assert _parts(pages, 3).tolist() == [0, 0.5, 1]
        assert _bar(np.array([0, 0.001, 0.5, 0.999, 1])) == "▕ ░▒▓█▏"
        assert _parts(np.zeros(0, bool), 3).tolist() == []

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("4096", 4096),
            ("1KiB", 1024),
            ("1.5 GiB", 3 << 29),
            ("2MB", 2_000_000),
            ("3g", 3 << 30),
            ("7B", 7),
        ],
    )
    def test_limits(self, text, expected):
        assert _parsed(text) == expected

    @pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "1 XB", "nan", "inf", "1e400"])
    def test_invalid_limits(self, text):
        with pytest.raises(ValueError, match="--limit"):
            _parsed(text)


class TestVerify:
    def test_without_checksums(self, weights, tokens):
        found = pagestream_command("verify", weights, tokens)
        assert found.exit_code == NOT_VERIFIED
        assert pagestream_command("verify", weights).exit_code == GOOD
        told = in_one_line(found.stdout)
        assert f"{weights}: good. 1 file of safetensors" in told
        assert "no checksums to compare bytes with" in told
        assert f"{tokens}: not verified. raw tokens have neither header nor checksum" in told
        write_tokens(tokens.with_name("corpus"), [np.arange(9)], dtype="u2", format="megatron")
        corpus = pagestream_command("verify", tokens.with_name("corpus"))
        assert "good. 1 file of tokens" in in_one_line(corpus.stdout)

    def test_unverified_files_can_be_allowed(self, weights, tokens):
        """Errors and bad files take precedence. --require-checksums demands checksums for every file."""
        allowed = pagestream_command("verify", tokens, "--allow-unverified")
        assert (allowed.exit_code, "not verified" in in_one_line(allowed.stdout)) == (GOOD, True)
        bad = weights.with_name("bad.safetensors")
        bad.write_bytes(b"bad")
        assert pagestream_command("verify", tokens, bad).exit_code == BAD
        bad.unlink()
        for other in ("--allow-unverified", "--write"):
            found = pagestream_command("verify", weights, "--require-checksums", other)
            assert found.exit_code == WRONG_USE
            assert f"--require-checksums and {other} exclude each other" in found.stderr
        assert facts("verify", weights, "--require-checksums", exit_code=NOT_VERIFIED)[0]["checked"] == 0
        with open_checkpoint(weights) as checkpoint:
            checkpoint.write_checksums()
        assert facts("verify", weights, "--require-checksums")[0]["note"] is None
        weights.rename(weights.with_name("a.safetensors"))
        os.rename(f"{weights}.xxh3.json", weights.with_name("a.safetensors.xxh3.json"))
        shutil.copy(weights.with_name("a.safetensors"), weights.with_name("b.safetensors"))
        write_index(weights.parent, {"layers.0": "a.safetensors", "layers.1": "b.safetensors"})
        paths = (weights.parent, tokens)
        first, second = facts("verify", *paths, "--require-checksums", exit_code=NOT_VERIFIED)
        assert (first["checked"], first["note"].split("; ")[0]) == (
            1,
            "1 of 2 files without a checksum, such as b.safetensors",
        )
        assert second["note"] == "token files have no checksums"
        arguments = ("--require-checksums", "--vocabulary", 50_000)
        assert facts("verify", tokens, *arguments, exit_code=NOT_VERIFIED)[0]["vocabulary"] == 50_000

    def test_ids_are_compared_with_a_vocabulary(self, tokens):
        good = pagestream_command("verify", tokens, "--vocabulary", 50_000)
        assert good.exit_code == GOOD
        assert "every id is below 50000" in in_one_line(good.stdout)
        (found,) = facts("verify", tokens, "--vocabulary", 40_000, exit_code=BAD)
        assert found["bad"] == [
            f"{tokens}: token 40000 is 40000, but a vocabulary of 40000 has the ids 0 to 39999"
        ]

    def test_negative_ids_of_several_files_are_named(self, tmp_path):
        for name, place in (("a.npy", 3), ("b.npy", 5)):
            ids = np.zeros(9, "<i4")
            ids[place] = -7
            np.save(tmp_path / name, ids)
        (found,) = facts("verify", tmp_path, "--vocabulary", 10, exit_code=BAD)
        assert [line.split(", ")[0] for line in found["bad"]] == [
            f"{tmp_path / 'a.npy'}: token 3 is -7",
            f"{tmp_path / 'b.npy'}: token 5 is -7",
        ]

    def test_the_dtype_of_raw_tokens_can_be_given(self, tmp_path):
        np.array([70_000, 1], "<u4").tofile(tmp_path / "t.bin")
        found = facts("verify", tmp_path / "t.bin", "--dtype", "uint32", "--vocabulary", 70_001)
        assert found[0]["vocabulary"] == 70_001

    def test_only_tokens_take_a_vocabulary(self, weights):
        found = pagestream_command("verify", weights, "--vocabulary", 10)
        assert found.exit_code == WRONG_USE
        assert "--vocabulary is for token files" in found.output

    def test_checksums_are_written(self, weights, tokens):
        first, second = facts("verify", "--write", weights, tokens, exit_code=NOT_VERIFIED)
        assert first["written"] == [f"{weights}.xxh3.json"]
        assert second["written"] == []
        assert facts("verify", weights)[0]["checked"] == 1

    def test_an_unreadable_path_does_not_stop_the_others(self, weights, tokens):
        os.mkfifo(weights.with_name("fifo"))
        found = pagestream_command("verify", weights, weights.with_name("fifo"), tokens, "--json")
        assert found.exit_code == WRONG_USE
        assert [bool(each["error"]) for each in json.loads(found.stdout)] == [False, True, False]

    def test_with_checksums(self, weights):
        with open_checkpoint(weights) as checkpoint:
            checkpoint.write_checksums()
        [verdict] = facts("verify", weights)
        assert (verdict["files"], verdict["checked"], verdict["bad"]) == (1, 1, [])

    def test_a_flipped_byte(self, weights, tokens):
        with open_checkpoint(weights) as checkpoint:
            checkpoint.write_checksums()
        with weights.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x7f")
        found = pagestream_command("verify", weights, tokens)
        assert found.exit_code == BAD
        assert '"layers.9"' in found.stdout
        assert f"{tokens}: not verified" in in_one_line(found.stdout)

    def test_a_flipped_byte_beside_a_missing_file(self, weights, tmp_path):
        """An incomplete checkpoint is bad, but its present files are verified all the same."""
        with open_checkpoint(weights) as checkpoint:
            checkpoint.write_checksums()
        write_index(tmp_path, {"layers.9": weights.name, "lost": "lost.safetensors"})
        [verdict] = facts("verify", tmp_path, exit_code=BAD)
        assert (verdict["files"], verdict["checked"], len(verdict["bad"])) == (1, 1, 1)
        assert "lost.safetensors" in verdict["bad"][0]
        with weights.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x7f")
        [verdict] = facts("verify", tmp_path, exit_code=BAD)
        assert ["layers.9" in each for each in verdict["bad"]] == [True, False]
        assert pagestream_command("verify", "--write", tmp_path).exit_code == BAD

    def test_several_paths_are_checked_in_their_order(self, weights, tokens, tmp_path):
        bad = tmp_path / "bad.safetensors"
        bad.write_bytes(b"bad")
        with open_checkpoint(weights) as checkpoint:
            checkpoint.write_checksums()
        paths = [bad, weights, tokens, weights.parent / "again.safetensors"]
        shutil.copy(weights, paths[-1])
        for threads in ([], ["--threads", 1], ["--threads", 8]):
            found = json.loads(pagestream_command("verify", *paths, *threads, "--json").stdout)
            assert [each["path"] for each in found] == list(map(str, paths))
            assert [bool(each["bad"]) for each in found] == [True, False, False, False]
            assert [each["checked"] for each in found] == [0, 1, 0, 0]

    def test_a_snapshot_of_the_hugging_face_cache(self, weights, tmp_path):
        """The name of a blob is the SHA-256 of its content."""
        content = weights.read_bytes()
        blob = tmp_path / "models--m" / "blobs" / hashlib.sha256(content).hexdigest()
        snapshot = tmp_path / "models--m" / "snapshots" / "1"
        for folder in (blob.parent, snapshot):
            folder.mkdir(parents=True)
        blob.write_bytes(content)
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/{blob.name}")
        [verdict] = facts("verify", snapshot)
        assert (verdict["files"], verdict["checked"], verdict["bad"]) == (1, 1, [])
        with blob.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x7f")
        found = pagestream_command("verify", snapshot)
        assert found.exit_code == BAD
        assert "as the Hugging Face cache calls it" in in_one_line(found.stdout)

    @pytest.fixture
    def endless(self, tmp_path):
        """Returns files with checksums, which take more than ten minutes to read."""
        source, mount = tmp_path / "source", tmp_path / "mount"
        source.mkdir()
        for number in range(2):
            path = source / f"{number}.safetensors"
            safetensors.numpy.save_file({"t": np.zeros(64 * MIB, "u1")}, path)
            with open_checkpoint(path) as checkpoint:
                checkpoint.write_checksums()
        with real.slow_fuse(source, mount, bandwidth_bytes=MIB // 8) as slow:
            yield sorted(slow.path.glob("*.safetensors"))

    def test_ctrl_c_ends_all_paths(self, endless):
        command = [sys.executable, "-m", "pagestream", "verify", *endless]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            assert until(lambda: any(name.startswith("pagestream") for name in thread_names(process.pid)))
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130

    def test_ctrl_c_between_two_paths_ends_both(self, endless):
        assert run_python(PROGRAMS / "cli/verify_interrupted_between_paths.py", *endless).returncode == 130

    def test_a_missing_path_waits_for_no_others(self, endless, tmp_path):
        found = program("verify", *endless, tmp_path / "none")
        assert found.returncode == WRONG_USE
        assert str(tmp_path / "none") in found.stderr


class TestCheck:
    def test_facts(self, weights):
        found = facts("check", weights)
        assert found["modes"] == dict.fromkeys(("shared", "private", "read"), "works")
        assert (found["mode"], found["reason"]) == ("shared", None)
        assert found["stream"].startswith('stream(strategy="auto") takes')
        assert found["advice"] == []

    def test_a_slow_mount(self, tmp_path):
        source, slow = tmp_path / "source", tmp_path / "slow"
        source.mkdir()
        (source / "train.bin").write_bytes(bytes(16 * MIB))
        with real.slow_fuse(source, slow, delay_ms=2, gather=16) as mount:
            found = facts("check", slow)
        trial = found["trial"]
        assert trial["alone_seconds"] >= 0.002
        assert trial["together_rate"] > 0
        assert mount.counts["most_in_flight"] >= trial["together"] == 16
        assert found["file_system"]["type"].startswith("fuse")
        assert any("read_ahead_kb" in line for line in found["advice"])
        assert any("max_background" in line for line in found["advice"])

    def test_lines_in_a_pipe_have_80_columns_and_no_trailing_blanks(self, tmp_path, weights, monkeypatch):
        """Mounts with many options and long advice stay within 80 columns. Only a path may be longer."""
        source, slow = tmp_path / "source", tmp_path / "slow"
        source.mkdir()
        monkeypatch.chdir(tmp_path)
        (source / "train.bin").write_bytes(bytes(16 * MIB))
        with real.slow_fuse(source, slow, delay_ms=2):
            told = [pagestream_command(command, "slow").stdout for command in ("check", "warm", "verify")]
        told += [pagestream_command(*command).stdout for command in (["check", "."], ["verify", "."])]
        told.append(pagestream_command("residency", "source").stdout)
        lines = "".join(told).splitlines()
        assert len(lines) > 30
        assert [line for line in lines if line != line.rstrip()] == []
        assert [line for line in lines if len(line) > 80 and str(tmp_path) not in line] == []
        assert any(line.startswith("  ") for line in told[0].split("* ", 1)[1].splitlines())

    def test_direct_io(self, tmp_path):
        source, mount = tmp_path / "source", tmp_path / "mount"
        source.mkdir()
        (source / "train.bin").write_bytes(bytes(MIB))
        with real.bindfs(source, mount, "direct_io"):
            found = facts("check", mount / "train.bin")
            told = pagestream_command("check", mount / "train.bin").stdout
        assert found["mode"] == "private"
        assert found["modes"]["shared"].startswith("ENODEV: ")
        assert os.strerror(errno.ENODEV) in found["modes"]["shared"]
        assert any("direct_io" in line for line in found["advice"])
        assert "<- in use" in told

    def test_a_chosen_mode_is_not_blamed_on_the_mount(self, tmp_path, monkeypatch):
        source, mount = tmp_path / "source", tmp_path / "mount"
        source.mkdir()
        (source / "train.bin").write_bytes(bytes(MIB))
        monkeypatch.setenv("PAGESTREAM_MMAP_MODE", "read")
        with real.bindfs(source, mount):
            found = facts("check", mount / "train.bin")
        assert (found["mode"], found["reason"]) == ("read", None)
        assert not any("direct_io" in line for line in found["advice"])


class TestRun:
    def test_a_script_gets_ours_and_its_arguments(self, weights, tmp_path):
        script = tmp_path / "load.py"
        script.write_text(
            "import sys, helper, safetensors\n"
            "with safetensors.safe_open(sys.argv[1], 'np') as file:\n"
            "    print(type(file).__module__, sys.argv[1:], len(file.keys()), __name__)\n"
        )
        (tmp_path / "helper.py").touch()
        found = program("run", script, weights, "--json", "-m")
        assert found.returncode == GOOD, found.stderr
        assert found.stdout.split()[0].startswith("pagestream.")
        assert found.stdout.endswith(f"[{str(weights)!r}, '--json', '-m'] 12 __main__\n")

    def test_a_module(self, tmp_path):
        (tmp_path / "loads.py").write_text(
            "import sys, safetensors\nprint(safetensors.__name__, sys.argv[1:])\n"
        )
        found = program("run", "-m", "loads", "--flag", cwd=tmp_path)
        assert (found.returncode, found.stdout) == (GOOD, "pagestream.safetensors ['--flag']\n"), found.stderr

    def test_the_code_of_the_program(self, tmp_path):
        (tmp_path / "ends.py").write_text("raise SystemExit(7)\n")
        assert program("run", tmp_path / "ends.py").returncode == 7
        assert program("run", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM

    @pytest.mark.parametrize("arguments", [["missing.py", "-m"], ["missing"], ["./missing", "--help"]])
    def test_a_missing_command(self, arguments, tmp_path):
        found = program("run", *arguments, cwd=tmp_path)
        assert (found.returncode, found.stdout, found.stderr.count("\n")) == (WRONG_USE, "", 1)
        told = (
            f"pagestream: no such command: {arguments[0]}; expected a file, or a program in a folder of PATH"
        )
        assert found.stderr.startswith(told)

    def test_a_script_beside_python_is_named_if_path_lacks_its_folder(self, tmp_path):
        scripts = sysconfig.get_path("scripts")
        name = next(name for name in os.listdir(scripts) if os.access(os.path.join(scripts, name), os.X_OK))
        found = program("run", name, env={**os.environ, "PATH": str(tmp_path)})
        assert found.returncode == WRONG_USE
        assert f"{scripts}/{name} exists: name it, or activate its environment\n" in found.stderr

    def test_a_file_that_is_not_a_program(self, tmp_path):
        (tmp_path / "text").write_text("neither a binary nor a script\n")
        (tmp_path / "text").chmod(0o755)
        found = program("run", tmp_path / "text")
        told = (
            f"pagestream: {tmp_path}/text: {os.strerror(errno.ENOEXEC)}; a script needs a first line such as"
        )
        assert found.returncode == WRONG_USE
        assert found.stderr.startswith(told)

    def test_a_file_without_a_suffix_is_run_by_python_unless_there_is_a_program(self, tmp_path):
        (tmp_path / "noext").write_text("print('by Python')\n")
        for name in ("noext", "./noext"):
            assert program("run", name, cwd=tmp_path).stdout == "by Python\n"
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "noext").write_text("#!/bin/sh\necho by PATH\n")
        (folder / "noext").chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        assert program("run", "noext", cwd=tmp_path, env=environment).stdout == "by PATH\n"
        assert program("run", "./noext", cwd=tmp_path, env=environment).stdout == "by Python\n"

    LOADS = "import sys, safetensors\nprint(safetensors.__name__, sys.argv[1:], flush=True)\n"

    @pytest.fixture
    def commands(self, tmp_path):
        """Runs commands from a folder on PATH, where the current directory has a folder with a command's
        name."""
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "serve").write_text(f"#!{sys.executable}\n{self.LOADS}")
        (folder / "launch").write_text(f'#!/bin/sh\nserve below\nexec {sys.executable} -m loads "$@"\n')
        for path in folder.iterdir():
            path.chmod(0o755)
        (tmp_path / "loads.py").write_text(self.LOADS)
        (tmp_path / "serve").mkdir()
        (tmp_path / "script").write_text(self.LOADS)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

        def printed(*arguments):
            found = program("run", *arguments, cwd=tmp_path, env=environment)
            assert (found.returncode, found.stderr) == (GOOD, ""), found.stderr
            return found.stdout

        return printed

    def test_any_command(self, commands, tmp_path):
        """Runs a script on PATH, a script that starts programs, Python, and a script without a suffix."""
        assert commands("serve", "/m", "-m") == "pagestream.safetensors ['/m', '-m']\n"
        below = "pagestream.safetensors ['below']\npagestream.safetensors ['--json']\n"
        assert commands("launch", "--json") == below
        assert commands(sys.executable, "-m", "loads", "-h") == "pagestream.safetensors ['-h']\n"
        assert commands("./script") == "pagestream.safetensors []\n"

    def test_signals_are_ignored_as_without_pagestream(self):
        command = ["grep", "Sig[IB]", "/proc/self/status"]
        assert program("run", *command).stdout == subprocess.check_output(command, text=True)

    @pytest.mark.parametrize("line", ["signal.raise_signal(signal.SIGINT)", "1 / 0"])
    def test_tracebacks_and_codes_are_those_without_pagestream(self, line, tmp_path):
        (tmp_path / "ends.py").write_text(f"import signal\n{line}\n")
        found = program("run", tmp_path / "ends.py")
        alone = run_python(tmp_path / "ends.py")
        assert alone.stderr.startswith("Traceback")
        assert (found.returncode, found.stderr) == (alone.returncode, alone.stderr)

    def test_ctrl_c_reaches_the_program(self, tmp_path):
        (tmp_path / "waits.py").write_text("import signal\nprint('waits', flush=True)\nsignal.pause()\n")
        command = [sys.executable, "-m", "pagestream", "run", tmp_path / "waits.py"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout.readline() == "waits\n"
            process.send_signal(signal.SIGINT)
            errors = process.stderr.read()
            assert process.wait() == -signal.SIGINT
        where = r'  File ".*/waits.py", line [23], in <module>'
        assert re.fullmatch(rf"Traceback .*\n{where}\n(    .*\n)+KeyboardInterrupt\n", errors)

    def test_a_python_without_pagestream_says_so(self, tmp_path):
        """A Python that cannot import pagestream runs the program with its own safetensors."""
        (tmp_path / "safetensors.py").touch()
        (tmp_path / "loads.py").write_text("import sys\nsys.modules['pagestream'] = None\n" + self.LOADS)
        found = program("run", tmp_path / "loads.py")
        assert (found.returncode, found.stdout) == (GOOD, "safetensors []\n")
        assert found.stderr.startswith(f"pagestream run: {sys.executable} cannot import pagestream (")
        assert found.stderr.endswith("): it uses safetensors as it is\n")

    @pytest.mark.frameworks
    def test_processes_that_the_program_starts(self, tmp_path):
        """Spawned processes and new Pythons use pagestream too, and keep their own `sitecustomize`."""
        (tmp_path / "sitecustomize.py").write_text("import sys; sys.was_customized = True\n")
        (tmp_path / "starts.py").write_text(
            "import multiprocessing, subprocess, sys\n"
            "CODE = 'import sys, safetensors.torch as s; print(s.load_file.__module__, sys.was_customized)'\n"
            "def show():\n"
            "    exec(CODE)\n"
            "if __name__ == '__main__':\n"
            "    child = multiprocessing.get_context('spawn').Process(target=show)\n"
            "    child.start()\n"
            "    child.join()\n"
            "    subprocess.run([sys.executable, '-c', CODE], check=True)\n"
        )
        found = program("run", tmp_path / "starts.py", env={**os.environ, "PYTHONPATH": str(tmp_path)})
        assert found.stdout == "pagestream.safetensors.torch True\n" * 2, found.stderr


ON_USE = (
    "PAGESTREAM_MMAP_MODE",
    "PAGESTREAM_THREADS",
    "PAGESTREAM_MEMORY_BYTES",
    "PAGESTREAM_AHEAD",
    "PAGESTREAM_COPY",
    "PAGESTREAM_SGLANG",
)
ON_IMPORT = ("PAGESTREAM_FAULT_GUARD", "PAGESTREAM_SHARE", "PAGESTREAM_LOG")


class TestEnvironment:
    """A bad variable is wrong use. One line says so, whether or not the command reads the variable."""

    def told(self, variable):
        return rf"pagestream: {variable} (must be .+, not 'bogus'|is 'bogus'; it must be .+)\n"

    def test_no_variable_is_forgotten(self):
        table = re.findall(r"^\| `(PAGESTREAM_\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
        assert sorted(table) == sorted(ON_USE + ON_IMPORT)

    @pytest.mark.parametrize("variable", ON_USE)
    @pytest.mark.parametrize("command", [*COMMANDS, "tokenize", "bench"])
    def test_of_a_command(self, command, variable, tokens, monkeypatch):
        monkeypatch.setenv(variable, "bogus")
        paths = {"tokenize": [tokens, tokens, "--tokenizer", tokens], "bench": []}.get(command, [tokens])
        found = pagestream_command(command, *paths)
        assert (found.exit_code, found.stdout) == (WRONG_USE, "")
        assert re.fullmatch(self.told(variable), found.stderr)

    def test_of_a_command_as_json(self, tokens, monkeypatch):
        monkeypatch.setenv("PAGESTREAM_THREADS", "bogus")
        found = pagestream_command("info", tokens, "--json")
        assert found.exit_code == WRONG_USE
        assert json.loads(found.stdout)["error"]["message"] in found.stderr

    @pytest.mark.parametrize("variable", ON_USE + ON_IMPORT)
    def test_of_a_program(self, variable, tmp_path):
        (tmp_path / "program.py").write_text("print('runs')\n")
        found = program("run", tmp_path / "program.py", env={**os.environ, variable: "bogus"})
        assert (found.returncode, found.stdout) == (WRONG_USE, "")
        assert re.fullmatch(self.told(variable), found.stderr)

    @pytest.mark.parametrize("variable", ON_IMPORT)
    def test_of_the_installed_script(self, variable, tmp_path):
        script = tmp_path / "pagestream"
        script.write_text("import sys\nfrom pagestream.cli import main\nsys.exit(main())\n")
        command, environment = [sys.executable, script, "--version"], {**os.environ, variable: "bogus"}
        found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert (found.returncode, found.stdout) == (WRONG_USE, "")
        assert re.fullmatch(self.told(variable), found.stderr)


def test_a_pipe_gets_plain_lines(weights):
    found = program("info", weights, env={**os.environ, "FORCE_COLOR": ""})
    assert found.returncode == GOOD
    assert "\x1b" not in found.stdout


def test_a_reader_that_goes_away(weights):
    command = f"{sys.executable} -m pagestream info --json {weights} | head -1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout == "{\n"
    assert "Traceback" not in found.stderr


def test_a_missing_reader(weights):
    """A closed pipe or a closed output causes no traceback, and does not give the exit code of a bad file."""
    command = f"{sys.executable} -m pagestream info {weights}"
    for redirected, code in ((f"({command}; echo $? >&2) | true", 141), (f"{command} >&-; echo $? >&2", 0)):
        found = subprocess.run(["bash", "-c", redirected], capture_output=True, text=True, check=True)
        assert found.stderr == f"{code}\n"


def test_without_the_extra_a_line_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; import pagestream.cli; pagestream.cli.main()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == WRONG_USE
    assert found.stderr == "pagestream: the command needs typer: pip install 'pagestream[cli]'\n"


HOSTILE = "a\x1b]0;title\x07\x1b[31mred\x9b2J"


@pytest.fixture
def hostile(tmp_path):
    """Writes files whose names and texts contain terminal escapes. One of them has a wrong shape."""

    def written(name, shape):
        tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}
        header = json.dumps({HOSTILE: tensor, "__metadata__": {HOSTILE: HOSTILE}}).encode()
        (tmp_path / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))

    written("good.safetensors", [1])
    written("\x1b[31mbad.safetensors", [2])
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", "good.safetensors"),
        ("info", "--json", "good.safetensors"),
        ("verify", "good.safetensors"),
        ("residency", "good.safetensors"),
        ("info", "\x1b[31mbad.safetensors"),
        ("verify", "\x1b[31mbad.safetensors"),
        ("info", "\x1b[31mmissing.safetensors"),
    ],
)
def test_a_terminal_gets_no_control_characters_of_a_file(hostile, arguments):
    command = [sys.executable, "-m", "pagestream", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=hostile)
    shown = done.stdout + done.stderr
    assert len(shown) > 20
    assert re.findall(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]", shown) == []
    if "--json" in arguments:
        assert json.loads(done.stdout)["tensors"][0]["name"] == HOSTILE
