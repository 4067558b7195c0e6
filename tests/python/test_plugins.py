"""Plug-ins for vLLM, SGLang and TensorRT-LLM, loaded in the way of these programs."""

import shutil
from importlib.metadata import entry_points

import pytest

from support import plugin_hosts
from support.process import PROGRAMS, output_of, run_python
from support.slow_mounts import slow_mounts

pytestmark = pytest.mark.frameworks

IN_FORK = {"with_torch": True, "has_brief_end": True}
SERVING = PROGRAMS / "plugins/serving.py"
WAYS = ["vllm_loads", "sglang_loads", "sglang_loads_by_threads", "tensorrt_llm_loads"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    made = PROGRAMS / "safetensors_slow_clients/made.py"
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return folder, output_of(made, "llama", folder, **IN_FORK, **environment).splitlines()[-1]


@pytest.mark.parametrize("way", WAYS)
def test_a_host_loads_from_a_slow_mount(way, llama, tmp_path):
    folder, digest = llama
    with slow_mounts(folder, tmp_path) as (mounts, total_bytes):
        paths = [slow.path for slow in mounts]
        assert output_of(SERVING, way, *paths, **IN_FORK).splitlines()[-2:] == [digest] * 2
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 8
        assert total_bytes <= slow.counts["read_bytes"] <= 1.1 * total_bytes


@pytest.mark.parametrize("name", ["hosts_find_it", "vllm_options", "vllm_experts", "vllm_is_left_alone"])
def test_in_a_process_of_its_own(name, llama):
    assert output_of(PROGRAMS / f"plugins/{name}.py", llama[0], **IN_FORK) == "ok"


def test_nothing_is_imported_before_a_host_asks():
    code = """
    import sys
    import pagestream, pagestream.torch, pagestream.safetensors
    print([name for name in sys.modules if name.startswith("pagestream.plugins")])
    """
    assert output_of(code, **IN_FORK) == "[]"


@pytest.mark.parametrize("group", ["vllm.general_plugins", "sglang.srt.plugins"])
def test_the_entry_point_is_there_once(group):
    assert [each.value for each in entry_points(group=group, name="pagestream")] == [
        f"pagestream.plugins.{group.split('.')[0]}:register"
    ]


def test_without_its_host_a_plug_in_says_what_is_missing():
    done = run_python("import pagestream.plugins.tensorrt_llm")
    assert done.returncode == 1
    assert "No module named 'tensorrt_llm'" in done.stderr


@pytest.mark.parametrize(("package", "root"), plugin_hosts.roots())
def test_hosts_have_what_is_used_of_them(package, root):
    assert plugin_hosts.differences(package, root) == []


@pytest.mark.parametrize(
    ("package", "file", "before", "after", "told"),
    [
        ("vllm", "vllm/model_executor/model_loader/default_loader.py", "(self, source", "(self, src", "src"),
        (
            "vllm",
            "vllm/model_executor/model_loader/default_loader.py",
            "load_config)",
            "load_config, n)",
            "needs n",
        ),
        ("vllm", "vllm/config/load.py", "load_format:", "format:", "has no load_format"),
        ("sglang", "sglang/srt/plugins/hook_registry.py", "AROUND =", "ROUND =", "has no AROUND"),
        ("sglang", "sglang/srt/model_loader/weight_utils.py", "yield", "return", "yields nothing"),
        ("tensorrt_llm", "tensorrt_llm/_torch/models/modeling_utils.py", "register_", "add_", "has no"),
        (
            "tensorrt_llm",
            "tensorrt_llm/_torch/models/checkpoints/base_weight_loader.py",
            "mapping, **",
            "mapping, *, rank, **",
            "needs rank",
        ),
    ],
)
def test_a_host_that_differs_is_seen(tmp_path, package, file, before, after, told):
    shutil.copytree(plugin_hosts.STAND_INS, tmp_path, dirs_exist_ok=True)
    path = tmp_path / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after).replace("return from", "return"))
    assert told in " ".join(plugin_hosts.differences(package, tmp_path))
