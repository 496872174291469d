"""Profiles: every figure is sourced and consistent, and names are understood as people write them."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.base import Figure
from advisor.errors import InputError, UnknownHardwareError
from advisor.hardware import profiles
from advisor.hardware.machine import Device
from advisor.hardware.profiles import UNITS, candidates, closest, devices, find, machine, recognise
from advisor.resources import resource

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
SLUGS = sorted(devices())
# Named in measurements, without figures of their own: a name for two cards, and chips with two bandwidths.
WITHOUT_BANDWIDTH = {"2x-mi50-32gb", "apple-m3-max", "apple-m4-max"}


def figures(device: Device) -> dict[str, Figure]:
    return {name: figure for name in UNITS if (figure := getattr(device, name)) is not None}


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of the user's own profiles beside the shipped ones."""
    monkeypatch.setattr(profiles, "profile_folders", lambda: (resource("hardware_profiles"), tmp_path))
    devices.cache_clear()
    profiles._index.cache_clear()
    profiles._by_key.cache_clear()
    profiles._literal.cache_clear()
    yield tmp_path
    devices.cache_clear()
    profiles._index.cache_clear()
    profiles._by_key.cache_clear()
    profiles._literal.cache_clear()


def test_there_are_enough() -> None:
    assert len(SLUGS) >= 225
    vendors = {devices()[slug].vendor for slug in SLUGS}
    assert {"NVIDIA", "AMD", "Intel", "Apple", "Qualcomm", "Broadcom", "generic"} <= vendors


def test_tables_parsed_one_by_one_are_those_of_the_whole_file() -> None:
    quick = devices().names()
    for path in sorted(resource("hardware_profiles").glob("*.toml")):
        whole = tomllib.loads(path.read_text(encoding="utf-8"))
        mine = [slug for slug in SLUGS if devices().file(slug) == path]
        assert sorted(whole["devices"]) == sorted(mine), path.name
        for slug, table in whole["devices"].items():
            device = devices()[slug]
            assert device.name == table["name"]
            assert {k: v["value"] for k, v in table.items() if k in UNITS} == {
                k: f.value for k, f in figures(device).items()
            }
            # The quick look at names must see what the full parse sees.
            assert quick[slug] == (slug, device.name, *device.aliases)


def test_figures_have_kind_unit_and_a_source_that_says_something() -> None:
    for slug, device in devices().items():
        assert (device.bandwidth is None) == (slug in WITHOUT_BANDWIDTH), slug
        for name, figure in figures(device).items():
            assert figure.unit == UNITS[name], slug
            assert figure.value > 0, slug
            assert figure.kind in ("published", "assumed"), slug
            assert len(figure.source) >= 6, slug
            assert not re.match(r"(techpowerup|vendor|arithmetic|tensor-table|llm-tracker):", figure.source), slug


def test_stated_arithmetic_gives_the_value() -> None:
    checked = 0
    for slug, device in devices().items():
        for figure in figures(device).values():
            if shaders := re.search(r"2 x (\d+) shading units x ([\d.]+) MHz", figure.source):
                expected = 2 * int(shaders[1]) * float(shaders[2]) / 1e6
            elif channels := re.search(r"(?<![\d.])(\d+) x (\d+) MT/s", figure.source):
                expected = int(channels[1]) * int(channels[2]) * 8 / 1000
            else:
                continue
            assert figure.value == pytest.approx(expected, rel=0.005), slug
            checked += 1
    assert checked > 150


def test_sold_sizes_end_with_the_largest() -> None:
    for slug in SLUGS:
        device = devices()[slug]
        if device.memory_options:
            assert list(device.memory_options) == sorted(device.memory_options)
            assert device.memory is not None
            assert device.memory.value in device.memory_options


def test_what_other_tables_need_is_here() -> None:
    strix = devices()["ryzen-ai-max-395"]
    assert (strix.bandwidth.value, strix.memory.value) == (256, 128)  # type: ignore[union-attr]
    assert strix.device_class == "unified-apu"
    for table in ("decode.csv", "batch.csv", "speculation.csv"):
        path = resource("data", table)
        if not path.is_file():
            continue
        with path.open(encoding="utf-8", newline="") as file:
            names = {row["hardware"] for row in csv.DictReader(file)} - {""}
        for name in sorted(names):
            assert find(name).device.bandwidth is not None, name


def test_a_lookup_parses_few_tables() -> None:
    devices.cache_clear()
    profiles._index.cache_clear()
    profiles._by_key.cache_clear()
    profiles._literal.cache_clear()
    find("395")
    assert len(devices()._parsed) <= 3


@pytest.mark.parametrize(
    ("name", "slugs", "host"),
    [
        ("RTX 3090", ["rtx-3090"], "cpu-ddr5-5600-2ch"),
        ("3090", ["rtx-3090"], "cpu-ddr5-5600-2ch"),
        ("rtx3090", ["rtx-3090"], "cpu-ddr5-5600-2ch"),
        ("NVIDIA GeForce RTX 3090", ["rtx-3090"], "cpu-ddr5-5600-2ch"),
        ("3080", ["rtx-3080"], "cpu-ddr5-5600-2ch"),
        ("RTX 3080 12 GB", ["rtx-3080-12gb"], "cpu-ddr5-5600-2ch"),
        ("4060ti", ["rtx-4060-ti"], "cpu-ddr5-5600-2ch"),
        ("7900xtx", ["rx-7900-xtx"], "cpu-ddr5-5600-2ch"),
        ("395", ["ryzen-ai-max-395"], None),
        ("Strix Halo", ["ryzen-ai-max-395"], None),
        ("Ryzen AI Max+ 395", ["ryzen-ai-max-395"], None),
        ("M4 Max", ["apple-m4-max-40c"], None),
        ("m4max", ["apple-m4-max-40c"], None),
        ("M1", ["apple-m1-8c"], None),
        ("dgx spark", ["dgx-spark-gb10"], None),
        ("GB10", ["dgx-spark-gb10"], None),
        ("Pi 5", ["raspberry-pi-5"], None),
        ("2x RTX 3090", ["rtx-3090", "rtx-3090"], "cpu-ddr5-5600-2ch"),
        ("2x3090", ["rtx-3090", "rtx-3090"], "cpu-ddr5-5600-2ch"),
        ("RTX 3090 x2", ["rtx-3090", "rtx-3090"], "cpu-ddr5-5600-2ch"),
        ("2x-mi50-32gb", ["mi50-32gb", "mi50-32gb"], "cpu-ddr5-5600-2ch"),
        ("RTX 5080 + RTX 3090", ["rtx-5080", "rtx-3090"], "cpu-ddr5-5600-2ch"),
        ("rtx-5080+rtx-3090", ["rtx-5080", "rtx-3090"], "cpu-ddr5-5600-2ch"),
        ("RTX 4090 + DDR5-6000 dual channel", ["rtx-4090"], "cpu-ddr5-6000-2ch"),
        ("4x 3090, EPYC Genoa", ["rtx-3090"] * 4, "epyc-genoa-12ch-ddr5-4800"),
        ("Ryzen AI Max+ 395 + RTX 3090", ["ryzen-ai-max-395", "rtx-3090"], "ryzen-ai-max-395"),
        ("2x EPYC Genoa 12ch DDR5-4800", ["2x-epyc-genoa-12ch-ddr5-4800"], None),
        ("i7-8700", ["cpu-ddr4-2400-2ch"], None),
    ],
)  # fmt: skip
def test_names_are_understood(name: str, slugs: list[str], host: str | None) -> None:
    hardware = find(name)
    assert [device.slug for device in hardware.devices] == slugs
    assert (hardware.host.slug if hardware.host else None) == host
    assert (hardware.link is not None) == (host is not None)


def test_every_device_is_found_by_slug_name_and_alias() -> None:
    families = devices().families
    for slug, device in devices().items():
        if slug == "2x-mi50-32gb":
            continue  # two cards, see above
        family = next((f for name, f in families.items() if device.name.startswith(f"{name} (core")), ())
        for name in (slug, device.name, *device.aliases):
            assert find(name).device.slug in {slug, *family}, name


@given(st.sampled_from(SLUGS), st.randoms(use_true_random=False))
def test_case_and_spaces_do_not_matter(slug: str, random) -> None:
    name = devices()[slug].name
    mixed = "".join(c.upper() if random.random() < 0.5 else c.lower() for c in name)
    assert find(f"  {mixed.replace(' ', '  ')} ").device.slug == find(name).device.slug


@given(st.text(max_size=60))
def test_any_text_is_a_machine_or_an_error_with_one_sentence(text: str) -> None:
    sentence = ""
    try:
        assert find(text).devices
    except UnknownHardwareError as error:
        sentence = error.message
    assert "\n" not in sentence
    assert len(sentence) < 600


def test_what_a_name_leaves_open_is_said() -> None:
    said = " ".join(find("M4 Max").assumptions)
    assert "546" in said
    assert "410" in said
    assert find("M4 Max 36GB").device.slug == "apple-m4-max-32c"  # only the smaller chip is sold so
    strix = find("395")
    assert any("128 GB is assumed" in sentence for sentence in strix.assumptions)
    assert find("395 64GB").device.memory.value == 64  # type: ignore[union-attr]
    assert not find("395 64GB").assumptions
    assert not any("is sold with" in sentence for sentence in find("MI50 32GB").assumptions)
    card = find("RTX 3090")
    assert any("DDR5-5600 is assumed" in sentence for sentence in card.assumptions)
    assert card.link is not None
    assert card.link.kind == "assumed"


def test_ambiguous_and_unknown_names_list_what_is_meant() -> None:
    with pytest.raises(UnknownHardwareError) as several:
        find("RX 7900")
    assert all(name in several.value.message for name in ("RX 7900 XT", "RX 7900 XTX", "RX 7900 GRE"))
    with pytest.raises(UnknownHardwareError) as unknown:
        find("RTX 3095")
    assert "RTX 3090" in str(unknown.value)
    assert closest("rtx 4080 supper")[0].startswith("RTX 4080")
    with pytest.raises(UnknownHardwareError):
        find("RTX 3090 + nonsense")
    with pytest.raises(UnknownHardwareError):
        find("   ")


def test_memory_is_a_machine_too() -> None:
    quad = find("DDR5-7200 quad channel 256GB")
    assert quad.backend == "cpu"
    assert quad.device.bandwidth == Figure(
        value=230.4, unit="GB/s", kind="published", source="4 x 7200 MT/s x 8 bytes, as named"
    )
    assert quad.device.memory is not None
    assert quad.device.memory.value == 256
    assumed = find("DDR4-2933").device.bandwidth
    assert assumed is not None
    assert (assumed.value, assumed.kind) == (46.9, "assumed")
    wide = find("LPDDR5X-8533 256 bit").device.bandwidth
    assert wide is not None
    assert wide.value == pytest.approx(273.1)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("RTX 3090", "cuda"), ("RX 7900 XTX", "vulkan"), ("395", "vulkan"), ("MI300X", "rocm"), ("Arc B580", "vulkan"),
        ("Max 1100", "sycl"), ("M2 Ultra", "metal"), ("DDR5-6000 dual channel", "cpu"), ("Thor", "cuda"),
        ("X Elite", "cpu"), ("RTX 3090 + RX 7900 XTX", "vulkan"),
    ],
)  # fmt: skip
def test_backend(name: str, backend: str) -> None:
    assert find(name).backend == backend


@pytest.mark.parametrize(
    ("description", "memory", "slug"),
    [
        ("NVIDIA GeForce RTX 4070 Laptop GPU", 8, "rtx-4070-laptop"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "a100-80gb-sxm"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-40gb-sxm"),
        ("NVIDIA H100 80GB HBM3", 79.6, "h100-sxm"),
        ("Tesla V100-SXM2-32GB", 31.7, "tesla-v100-sxm2-32gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 95.6, "rtx-pro-6000-blackwell-max-q"),
        ("NVIDIA GeForce RTX 3080", 12, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 3080", 10, "rtx-3080"),
        ("NVIDIA RTX 6000 Ada Generation", 48, "rtx-6000-ada"),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 24, "rx-7900-xtx"),
        ("AMD Radeon Graphics (RADV GFX1151)", 96, "ryzen-ai-max-395"),
        ("Radeon 8060S Graphics (RADV STRIX_HALO)", 120, "ryzen-ai-max-395"),
        ("Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M", 24, "rx-7900-xtx"),
        ("Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M", 20, "rx-7900-xt"),
        ("Intel(R) Arc(TM) A770 Graphics (DG2)", 15.9, "arc-a770-16gb"),
        ("Intel(R) Arc(tm) B580 Graphics (BMG G21)", 11.9, "arc-b580"),
        ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", None, "ryzen-ai-max-395"),
        ("llvmpipe (LLVM 19.1.1, 256 bits)", None, None),
        ("AMD Radeon Graphics", 0.5, None),
    ],
)  # fmt: skip
def test_driver_names_are_recognised(description: str, memory: float | None, slug: str | None) -> None:
    device = recognise(description, memory)
    assert (device.slug if device else None) == slug


def test_a_shared_name_gives_all_candidates() -> None:
    assert [device.slug for device in candidates("Radeon 8050S")] == ["ryzen-ai-max-390", "ryzen-ai-max-385"]


def test_a_profile_of_ones_own_is_read_and_may_correct_a_shipped_one(own_folder: Path) -> None:
    (own_folder / "mine.toml").write_text(
        'vendor = "ACME"\n[devices.rocket-9000]\nname = "Rocket 9000"\nclass = "consumer-gpu"\n'
        'bandwidth = { value = 5000, kind = "published", source = "its box" }\n'
        '[devices.rtx-3090]\nname = "RTX 3090"\nvendor = "NVIDIA"\nclass = "consumer-gpu"\n'
        'bandwidth = { value = 900, kind = "assumed", source = "underclocked" }\n'
    )
    assert find("rocket").device.bandwidth.value == 5000  # type: ignore[union-attr]
    assert find("rocket").backend == "vulkan"
    assert find("3090").device.bandwidth.value == 900  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[devices.x]\nname = ", "not valid TOML"),
        ('[devices.x]\nname = "X"\nclass = "toaster"\n', "device_class"),
        ('[devices.x]\nname = "X"\nvendor = "V"\nclass = "igpu"\nbandwidth = 12\n', "value, a kind and a source"),
        ('[devices.x]\nname = "X"\nvendor = "V"\nclass = "igpu"\nbandwith = 3\n', "bandwith"),
    ],
)
def test_a_faulty_profile_is_named(own_folder: Path, text: str, word: str) -> None:
    (own_folder / "broken.toml").write_text(text)
    with pytest.raises(InputError) as error:
        find("X")
    assert "broken.toml" in error.value.message
    assert word in error.value.message


def test_machine_takes_a_given_host() -> None:
    host = devices()["cpu-ddr4-3200-2ch"]
    assert machine([devices()["rtx-3060"]], host=host).host is host
