"""Memory: what llama.cpp really reserves, what lies where, and advice that is true when followed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.hardware.machine import Placement, RpcHost, Setup
from advisor.hardware.profiles import find
from advisor.hardware.resolve import resolve
from advisor.models.description import Layer, ModelDescription, MtpBlock, WeightGroup
from advisor.performance.footprint import activation_floats, capacity, cells
from advisor.performance.memory import memory_plan, place
from advisor.speculation.prediction import MemoryPlan, Method

MIB, GIB = 2**20, 2**30
CPU = find("DDR5-6000 dual channel 128GB")


def model(
    layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    head: int = 128,
    ffn: int = 14336,
    vocabulary: int = 128256,
    *,
    architecture: str = "llama",
    bits: float = 4.5,
    tied: bool = False,
    experts: int = 0,
    used: int = 0,
    expert_width: int = 0,
    window: int | None = None,
    period: int = 6,
    state: int = 0,
    mtp: bool = False,
    latent: int = 0,
) -> ModelDescription:
    """A model of the given shape with every weight in ``bits`` bits; ``state`` makes three of four layers recurrent."""

    def size(parameters: float) -> int:
        return round(parameters * bits / 8)

    attention = width * head * (2 * heads + 2 * kv_heads)
    dense = 0 if experts else 3 * width * ffn
    routed = 3 * width * expert_width * experts
    blocks = []
    for i in range(layers):
        recurrent = bool(state) and (i + 1) % 4 != 0
        keys = 0 if recurrent else latent or kv_heads * head
        blocks.append(
            Layer(
                index=i,
                mixer="recurrent" if recurrent else "mla" if latent else "full",
                bytes=size(attention + dense + routed),
                parameters=attention + dense + routed,
                expert_bytes=size(routed),
                expert_parameters=routed,
                expert_count=experts,
                expert_used=used,
                key_width=keys,
                value_width=0 if latent or recurrent else kv_heads * head,
                window=window if window and (i + 1) % period else None,
                state_elements=state if recurrent else 0,
            )
        )
    table = vocabulary * width
    groups = [("head", table), ("attention", attention * layers), ("ffn", dense * layers), ("experts", routed * layers)]
    if not tied:
        groups.append(("embedding", table))
    block = None
    if mtp:
        groups.append(("mtp", attention + dense + 2 * width * width))
        block = MtpBlock(
            layers=1,
            bytes=size(attention + dense + 2 * width * width),
            parameters=attention + dense + 2 * width * width,
            key_width=kv_heads * head,
            value_width=kv_heads * head,
        )
    weights = tuple(
        WeightGroup(role=role, quant="Q4_K", parameters=count, bytes=size(count))  # type: ignore[arg-type]
        for role, count in groups
        if count
    )
    return ModelDescription(
        name=f"{architecture} {layers}x{width}",
        reference="test",
        source="catalogue",
        architecture=architecture,
        quant="Q4_K_M",
        size_bytes=sum(group.bytes for group in weights),
        embedding_length=width,
        head_count=heads,
        vocabulary_size=vocabulary,
        tied_head=tied,
        weights=weights,
        layers=tuple(blocks),
        mtp=block,
    )


def plan(
    target: ModelDescription,
    setup: Setup,
    draft: ModelDescription | None = None,
    method: Method = "none",
    context: int = 4096,
    draft_max: int = 3,
    **more: object,
) -> MemoryPlan:
    return memory_plan(target, draft, method, setup, context=context, draft_max=draft_max, **more)  # type: ignore[arg-type]


def setup_of(name: str = "", **options: object) -> Setup:
    if not name:
        return Setup(hardware=CPU, backend="cpu", **options)  # type: ignore[arg-type]
    return resolve(name, **options)  # type: ignore[arg-type]


def item(found: MemoryPlan, what: str) -> int:
    return sum(x.bytes for x in found.items if x.what == what)


# --- against the engine -------------------------------------------------------------------------------------------

QWEN3_8B = {"width": 4096, "ffn": 12288, "vocabulary": 151936}
GEMMA = {"width": 5376, "kv_heads": 16, "ffn": 21504, "vocabulary": 262144, "window": 1024, "architecture": "gemma3"}
MOE = {"width": 2048, "kv_heads": 4, "vocabulary": 151936, "experts": 128, "architecture": "qwen3moe"}
QWEN35 = {"width": 5120, "heads": 24, "kv_heads": 4, "head": 256, "ffn": 17408, "vocabulary": 248320,
          "state": 48 * 128 * 128 + 3 * (6144 + 4096), "architecture": "qwen35"}  # fmt: skip
OSS = {"width": 2880, "heads": 64, "head": 64, "experts": 128, "used": 4, "expert_width": 2880, "vocabulary": 201088,
       "window": 128, "period": 2, "architecture": "gpt-oss"}  # fmt: skip
DEEPSEEK = {"width": 7168, "heads": 128, "latent": 576, "experts": 8, "used": 8, "expert_width": 2048,
            "architecture": "deepseek2"}  # fmt: skip

# Compute buffers [MiB] that llama.cpp (build 11549, CPU) reserved for files of these shapes with random weights.
RESERVED = [
    ({}, 4096, 128.02), ({}, 32768, 156.02), ({"ffn": 28672}, 4096, 212.02), ({"width": 2048}, 4096, 108.02),
    (QWEN3_8B, 4096, 116.02), (QWEN3_8B | {"width": 5120, "ffn": 25600}, 4096, 204.02),
    (QWEN3_8B | {"width": 1024, "ffn": 3072}, 4096, 32.02), (GEMMA, 4096, 184.03), (GEMMA, 32768, 212.03),
    (QWEN35, 4096, 156.02), (QWEN35, 65536, 216.02), (QWEN35 | {"ffn": 34816}, 4096, 258.02),
    (MOE | {"used": 8, "expert_width": 768}, 4096, 92.02), (MOE | {"used": 4, "expert_width": 768}, 4096, 58.02),
    (MOE | {"used": 8, "expert_width": 1536}, 4096, 96.02),
    (MOE | {"used": 8, "expert_width": 3072, "experts": 32}, 4096, 168.02),
    (MOE | {"used": 8, "expert_width": 1536, "width": 4096}, 4096, 180.02),
    (OSS, 4096, 100.4), (OSS, 32768, 128.4), (DEEPSEEK, 4096, 410.01), (DEEPSEEK, 16384, 422.01),
    (DEEPSEEK | {"heads": 64}, 4096, 282.01),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "context", "reserved"), RESERVED)
def test_compute_buffers_are_what_the_engine_reserves(shape: dict[str, int], context: int, reserved: float) -> None:
    found = item(plan(model(layers=6, **shape), setup_of(), context=context), "compute") / MIB  # type: ignore[arg-type]
    exact = shape.get("architecture", "llama") in ("llama", "gemma3", "qwen35")
    assert found == pytest.approx(reserved, rel=0.01 if exact else 0.15)


@pytest.mark.parametrize(("context", "reserved"), [(4096, 316.01), (32768, 2164.01)])
def test_without_flash_attention_the_scores_are_kept(context: int, reserved: float) -> None:
    found = plan(model(layers=2), setup_of(flash_attention=False), context=context)
    assert item(found, "compute") / MIB == pytest.approx(reserved, rel=0.02)


@pytest.mark.parametrize(("context", "reserved"), [(4096, 126.02), (8192, 130.02), (32768, 130.02), (131072, 196.02)])
def test_the_mtp_context_is_what_the_engine_reserves(context: int, reserved: float) -> None:
    found = plan(model(layers=4, mtp=True, **QWEN35), setup_of(), method="draft-mtp", context=context)  # type: ignore[arg-type]
    assert item(found, "MTP compute") / MIB == pytest.approx(reserved, rel=0.04)
    assert item(found, "MTP cache") == context * 2048 * 2
    # Four layers, three of them recurrent: 9.35 MiB per copy; draft_max 3 keeps four copies.
    assert item(found, "recurrent state") / MIB == pytest.approx(37.41, rel=0.001)


def test_slots_share_the_mask_but_not_the_cache() -> None:
    one, four = (plan(model(layers=2), setup_of(parallel=slots), context=1024) for slots in (1, 4))
    assert item(one, "compute") / MIB == pytest.approx(125.02, rel=0.001)
    assert item(four, "compute") == item(one, "compute")
    assert four.target_kv == 4 * one.target_kv


_SERVER = """
import sys, xllamacpp as x
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.verbosity, p.warmup = sys.argv[1], 4096, 2, 4, False
p.cache_type_k = x.ggml_type.GGML_TYPE_Q8_0
p.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
s = x.Server(p)
"""


def log_of_a_start(path: Path) -> str:
    """What the embedded server logs until its slots exist."""
    lines = []
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            for line in server.stdout:
                lines.append(line)
                if "n_slots =" in line:
                    break
        finally:
            server.kill()
    return "".join(lines)


@pytest.mark.engine
def test_a_real_model_in_the_real_engine(smollm2: Path) -> None:
    pytest.importorskip("xllamacpp")
    from advisor.models.describe import describe_header
    from advisor.models.gguf import read_header

    log = log_of_a_start(smollm2)

    def reported(words: str) -> float:
        values = [float(value) for value in re.findall(words + r" buffer size =\s*([\d.]+) MiB", log)]
        assert values, f"{words} in {log[-2000:]}"
        return max(values)

    # An n-gram draft has 48 tokens unless told otherwise, so 2 x 49 rows of logits are kept.
    target = describe_header(read_header(smollm2))
    found = plan(target, setup_of(parallel=2, cache_type_k="q8_0"), None, "ngram-simple", 2048, 48)
    assert found.target_weights / MIB == pytest.approx(reported("model"), rel=0.002)
    assert found.target_kv / MIB == pytest.approx(reported("KV"), rel=0.001)
    assert item(found, "compute") / MIB == pytest.approx(reported("compute"), rel=0.02)
    # llama.cpp starts with one row per slot and grows to this when the first draft is verified.
    assert item(found, "output rows") / MIB >= reported("output")


# --- what lies where ----------------------------------------------------------------------------------------------


def test_cells() -> None:
    assert [cells(n) for n in (1, 256, 257, 4000)] == [256, 256, 512, 4096]
    assert cells(32768, 1024) == 1536
    assert cells(512, 1024) == 512


def test_weights_of_a_card_and_its_host() -> None:
    dense = model()
    found = plan(dense, setup_of("RTX 3090"))
    table = round(128256 * 4096 * 4.5 / 8)
    host = next(x for x in found.devices if x.device.endswith("(host)"))
    assert item(found, "weights: input tables") == table
    assert host.need >= table
    assert found.target_weights == dense.size_bytes


def test_a_tied_head_is_stored_twice_on_a_card_and_once_elsewhere() -> None:
    tied = model(tied=True)
    head = tied.head_bytes
    assert plan(tied, setup_of("RTX 3090")).target_weights == tied.size_bytes + head
    assert plan(tied, setup_of()).target_weights == tied.size_bytes
    assert plan(tied, setup_of("M2 Ultra")).target_weights == tied.size_bytes
    assert plan(tied, setup_of("395")).target_weights == tied.size_bytes + head


def test_mtp_is_loaded_only_to_draft_with() -> None:
    hybrid = model(mtp=True, **QWEN35)  # type: ignore[arg-type]
    plain = plan(hybrid, setup_of("RTX 3090"))
    drafting = plan(hybrid, setup_of("RTX 3090"), method="draft-mtp")
    assert hybrid.mtp is not None
    assert plain.target_weights == hybrid.size_bytes - hybrid.mtp.bytes
    assert plain.draft_weights == 0
    assert drafting.draft_weights == hybrid.mtp.bytes


@pytest.mark.parametrize(
    ("architecture", "method", "copies", "saved"),
    [
        ("qwen35", "none", 1, 0), ("qwen35", "draft-mtp", 4, 0), ("qwen35", "draft-simple", 1, 1),
        ("qwen35", "ngram-mod", 1, 1), ("qwen3next", "draft-mtp", 1, 1), ("nemotron_h", "draft-eagle3", 4, 0),
    ],
)  # fmt: skip
def test_recurrent_state_by_method_and_architecture(architecture: str, method: Method, copies: int, saved: int) -> None:
    hybrid = model(mtp=True, **QWEN35 | {"architecture": architecture})  # type: ignore[arg-type]
    draft = model(layers=4, width=1024) if method in ("draft-simple", "draft-eagle3") else None
    found = plan(hybrid, setup_of(parallel=2), draft, method)
    assert item(found, "recurrent state") == 2 * copies * hybrid.state_bytes
    assert item(found, "saved state") == 2 * saved * hybrid.state_bytes


def test_a_draft_brings_weights_a_cache_of_its_own_and_buffers() -> None:
    target, draft = model(), model(layers=8, width=1024, heads=8, ffn=4096)
    found = plan(target, setup_of("RTX 3090", cache_type_k="q8_0", cache_type_v="q8_0"), draft, "draft-simple", 8192)
    assert found.draft_weights == draft.size_bytes
    assert found.draft_kv == draft.kv_bytes(8192)  # f16, although the target's is q8_0
    assert found.target_kv == pytest.approx(target.kv_bytes(8192, "q8_0", "q8_0"), abs=1)
    quantised = plan(target, setup_of("RTX 3090"), draft, "draft-simple", 8192, draft_cache_type="q8_0")
    assert quantised.draft_kv == pytest.approx(found.draft_kv * 17 / 32, abs=1)
    ignored = plan(target, setup_of("RTX 3090"), draft, "none", 8192)
    assert (ignored.draft_weights, ignored.draft_kv) == (0, 0)


def test_output_rows_grow_with_draft_length_and_slots() -> None:
    found = plan(model(), setup_of(parallel=4), method="ngram-mod", draft_max=64)
    assert item(found, "output rows") == 4 * 65 * 128256 * 4


def test_without_flash_attention_rows_of_v_are_as_wide_as_the_widest() -> None:
    narrow = model(layers=6, **GEMMA)  # type: ignore[arg-type]
    wide = narrow.layers[5].model_copy(update={"value_width": 4096})
    mixed = narrow.model_copy(update={"layers": (*narrow.layers[:5], wide)})
    with_fa, without = (plan(mixed, setup_of(flash_attention=on)).target_kv for on in (True, False))
    assert without - with_fa == 5 * cells(4096, 1024) * (4096 - 2048) * 2


def test_a_quantised_cache_is_expanded_where_the_backend_does_so() -> None:
    sizes = {
        backend: item(plan(model(), resolve("RTX 3090", backend=backend, cache_type_k="q8_0")), "compute")
        for backend in ("cuda", "vulkan")
    }
    assert sizes["cuda"] - sizes["vulkan"] == 4096 * 1024 * 2


def test_layers_on_the_host() -> None:
    dense = model()
    start = resolve("RTX 3090 + DDR5-6000 64GB")
    per_layer = dense.layers[0].bytes
    for count in (0, 1, 5, 33, 99):
        part = start.model_copy(update={"placement": Placement(gpu_layers=count)})
        found = plan(dense, part)
        host = sum(x.bytes for x in found.items if x.what == "weights" and x.device.endswith("(host)"))
        on_gpu = max(0, min(count, 33) - 1)
        assert host == per_layer * (32 - on_gpu) + (dense.head_bytes if count == 0 else 0)
        assert found.target_kv == dense.kv_bytes(4096)


def test_experts_on_the_host() -> None:
    sparse = model(**MOE, used=8, expert_width=768)  # type: ignore[arg-type]
    start = resolve("RTX 3060 + DDR5-6000 64GB")

    def on_host(placement: Placement) -> int:
        found = plan(sparse, start.model_copy(update={"placement": placement}))
        assert found.target_weights == sparse.size_bytes
        return sum(x.bytes for x in found.items if x.what == "weights" and x.device.endswith("(host)"))

    assert on_host(Placement()) == 0
    assert on_host(Placement(cpu_moe_layers=5)) == 5 * sparse.layers[0].expert_bytes
    assert on_host(Placement(cpu_moe=True)) == 32 * sparse.layers[0].expert_bytes


def test_several_devices() -> None:
    dense = model(layers=31)
    even = plan(dense, resolve("2x RTX 3090"))
    first, second, host = even.devices
    assert (first.device, second.device) == ("RTX 3090 #1", "RTX 3090 #2")
    # 16 layers on the first, 15 and the output on the second.
    layer = dense.layers[0].bytes + 4096 * 2048 * 2
    assert second.need - first.need == pytest.approx(dense.head_bytes - layer, rel=0.01)
    split = plan(dense, resolve("2x RTX 3090", placement=Placement(tensor_split=(3, 1))))
    weights = [x.bytes for x in split.items if x.what == "weights"]
    assert weights[0] == 24 * dense.layers[0].bytes
    alone = plan(dense, resolve("2x RTX 3090", placement=Placement(split="none")))
    assert [x.device for x in alone.devices] == ["RTX 3090 #1", host.device]
    rows = plan(dense, resolve("2x RTX 3090", placement=Placement(split="row")))
    assert rows.devices[0].need == pytest.approx(rows.devices[1].need, rel=0.01)
    # Pipelined layers keep four copies of the mask on each device.
    assert item(even, "compute") - 2 * 5 * 4096 * 512 * 4 > 2 * 4 * 4096 * 512 * 2


def test_the_draft_elsewhere() -> None:
    target, draft = model(), model(layers=8, width=1024, heads=8, ffn=4096)
    for where, label in (("second", "RTX 3060"), ("host", "(host)")):
        setup = resolve("RTX 3090 + RTX 3060 + DDR5-6000 64GB", placement=Placement(draft_device=where))  # type: ignore[arg-type]
        found = plan(target, setup, draft, "draft-simple")
        assert all(label in x.device for x in found.items if x.what in ("draft weights", "draft cache"))


def test_hosts_over_rpc_are_filled_first() -> None:
    far = find("RTX 3090")
    setup = resolve("RTX 3090")
    assert far.link is not None
    placement = Placement(rpc=(RpcHost(hardware=far, bandwidth=far.link, latency=far.link),))
    found = plan(model(), setup.model_copy(update={"placement": placement}))
    assert [x.device for x in found.devices][:2] == ["RTX 3090 (RPC)", "RTX 3090"]
    assert found.target_weights == model().size_bytes


def test_one_memory_holds_everything() -> None:
    for setup in (resolve("395"), resolve(bandwidth=256, memory=128), setup_of()):
        found = plan(model(), setup)
        assert len(found.devices) == 1
        assert found.devices[0].need == pytest.approx(found.total, abs=9)


# --- does it fit --------------------------------------------------------------------------------------------------


def test_capacities() -> None:
    def usable(name: str) -> float:
        size = capacity(find(name).device)
        assert size is not None
        return round(size / GIB, 1)

    assert usable("RTX 3090") == 23.5
    assert usable("M4 Max 128GB") == 96.0
    assert usable("M1 Pro 16GB") == 10.7
    assert usable("395") == 121.6
    assert usable("DDR5-6000 64GB") == 60.8
    assert capacity(find("DDR5-6000").device) is None
    assert capacity(resolve("395", memory=100).hardware.device) == 100 * GIB
    assert capacity(resolve(bandwidth=100, memory=10).hardware.device) == 10 * GIB


def test_fits_or_not_or_unknown() -> None:
    assert plan(model(), setup_of("RTX 3090")).fits is True
    assert plan(model(layers=320), setup_of("RTX 3090")).fits is False
    assert plan(model(), resolve("DDR5-6000")).fits is None
    assert plan(model(), resolve(bandwidth=256)).fits is None
    need = plan(model(), setup_of("395")).total / GIB
    close = plan(model(), resolve("395", memory=round(need, 3)))
    assert close.fits is None
    assert any("too close to call" in sentence for sentence in close.advice)


BIG = model(layers=64, width=5120, ffn=25600, vocabulary=151936)
BIG_MOE = model(layers=48, **MOE | {"width": 4096}, used=8, expert_width=1536)  # type: ignore[arg-type]
SMALL = model(layers=28, width=1024, heads=16, ffn=3072, vocabulary=151936, bits=8.5)


def number(sentence: str, pattern: str) -> int:
    match = re.search(pattern, sentence)
    assert match, sentence
    return int(match[1])


@pytest.mark.parametrize(
    ("target", "machine", "context"),
    [
        (BIG, "RTX 3090 + DDR5-6000 64GB", 65536),
        (BIG_MOE, "RTX 3090 + DDR5-6000 128GB", 32768),
        (BIG, "RTX 3060", 8192),
    ],
)
def test_advice_is_true_when_followed(target: ModelDescription, machine: str, context: int) -> None:
    setup = resolve(machine)
    found = plan(target, setup, SMALL, "draft-simple", context, advise=True)
    assert found.fits is False
    assert "needs" in found.advice[0]
    followed = 0

    def fits(changed: Setup, size: int = context, draft_cache: str = "f16") -> bool:
        verdict = plan(target, changed, SMALL, "draft-simple", size, draft_cache_type=draft_cache)
        return all(x.fits is True for x in verdict.devices if x.capacity is not None)

    def moved(**place: object) -> Setup:
        return setup.model_copy(update={"placement": Placement(**place)})  # type: ignore[arg-type]

    for sentence in found.advice:
        if "A context of" in sentence:
            size = number(sentence, r"context of (\d+)")
            assert fits(setup, size)
            assert not fits(setup, size + 256)
        elif "--n-cpu-moe" in sentence:
            count = number(sentence, r"--n-cpu-moe (\d+)")
            assert fits(moved(cpu_moe_layers=count))
            assert not fits(moved(cpu_moe_layers=count - 1))
        elif "-ngl" in sentence:
            count = number(sentence, r"-ngl (\d+)")
            assert fits(moved(gpu_layers=count))
            assert not fits(moved(gpu_layers=count + 1))
        elif "cache (-ctk" in sentence:
            kind = sentence.split("-ctk ")[1].split()[0]
            assert fits(setup.model_copy(update={"cache_type_k": kind, "cache_type_v": kind}), draft_cache=kind)
        else:
            continue
        followed += 1
    assert followed


def test_advice_on_slots_drafts_and_quantisation() -> None:
    slots = plan(model(), setup_of("RTX 3060", parallel=8), context=16384)
    assert any("-np 1" in sentence for sentence in slots.advice)
    assert any(re.search(r"-c \d+ for 8 slots", sentence) for sentence in slots.advice)
    tight = plan(model(layers=48), setup_of("M1 Pro 16GB"), SMALL, "draft-simple", 16384)
    text = " ".join(tight.advice)
    assert tight.fits is not True
    assert "Without speculation it fits" in text
    heavy = plan(model(bits=8.5), setup_of("M1 8GB"))
    assert any("smaller file of the target" in sentence for sentence in heavy.advice)
    hopeless = plan(model(layers=400), setup_of("M1 8GB"))
    assert any("smaller model or more memory" in sentence for sentence in hopeless.advice)


def test_a_smaller_quantisation_that_is_advised_really_fits() -> None:
    heavy = plan(model(bits=8.5), setup_of("M1 8GB"))
    bits = next(
        float(re.search(r"([\d.]+) bits a weight", sentence)[1])  # type: ignore[index]
        for sentence in heavy.advice
        if "smaller file" in sentence
    )
    assert plan(model(bits=bits), setup_of("M1 8GB")).fits is True


def test_known_limits_are_mentioned_although_it_fits() -> None:
    large = model(layers=80, width=8192, heads=64, ffn=28672, bits=8.5)
    assert any("ttm.pages_limit" in sentence for sentence in plan(large, setup_of("395")).advice)
    assert any("wired_limit" in sentence for sentence in plan(large, setup_of("M4 Max 128GB"), context=32768).advice)
    assert plan(model(), setup_of("395")).advice == ()


# --- the best placement -------------------------------------------------------------------------------------------


def test_nothing_is_moved_without_need() -> None:
    assert place(model(), None, "none", setup_of("RTX 3090"), context=4096, draft_max=3) == Placement()
    assert place(BIG, None, "none", setup_of("M1 8GB"), context=4096, draft_max=3) == Placement()


def test_as_few_experts_as_needed_go_to_the_host() -> None:
    setup = resolve("RTX 3090 + DDR5-6000 128GB")
    chosen = place(BIG_MOE, None, "none", setup, context=8192, draft_max=3)
    assert chosen.cpu_moe_layers > 0
    assert chosen.gpu_layers is None
    assert plan(BIG_MOE, setup.model_copy(update={"placement": chosen}), context=8192).fits is True
    fewer = chosen.model_copy(update={"cpu_moe_layers": chosen.cpu_moe_layers - 1})
    assert plan(BIG_MOE, setup.model_copy(update={"placement": fewer}), context=8192).fits is not True


def test_as_many_layers_as_possible_stay_on_the_card() -> None:
    setup = resolve("RTX 3060 + DDR5-6000 128GB")
    chosen = place(BIG, SMALL, "draft-simple", setup, context=8192, draft_max=3)
    assert chosen.gpu_layers is not None
    more = chosen.model_copy(update={"gpu_layers": chosen.gpu_layers + 1})
    for placement, fits in ((chosen, True), (more, False)):
        found = plan(BIG, setup.model_copy(update={"placement": placement}), SMALL, "draft-simple", 8192)
        assert (found.fits is True) == fits


def test_a_draft_does_not_push_layers_off_when_another_card_can_hold_it() -> None:
    target = model(layers=50, width=6144, ffn=24576)
    alone = resolve("RTX 5090 + RTX 3060", placement=Placement(tensor_split=(1, 0)))
    context = 16384
    assert plan(target, alone, SMALL, "draft-simple", context).fits is not False
    crowded = 65536
    assert plan(target, alone, SMALL, "draft-simple", crowded).fits is False
    chosen = place(target, SMALL, "draft-simple", alone, context=crowded, draft_max=3)
    assert chosen.draft_device == "second" or chosen.gpu_layers is not None


# --- properties ---------------------------------------------------------------------------------------------------

shapes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 40),
        "width": st.sampled_from([256, 1024, 4096]),
        "kv_heads": st.sampled_from([1, 4, 8]),
        "ffn": st.sampled_from([1024, 14336]),
        "tied": st.booleans(),
        "window": st.sampled_from([None, 512, 4096]),
        "bits": st.sampled_from([2.0, 4.5, 16.0]),
    }
)
machines = st.sampled_from(["RTX 3090", "2x RTX 3060", "395", "M4 Max", "DDR5-6000 64GB", "RTX 4090 + DDR5-6000 32GB"])
placements = st.builds(
    Placement,
    gpu_layers=st.sampled_from([None, 0, 1, 7, 999]),
    cpu_moe_layers=st.integers(0, 3),
    split=st.sampled_from(["layer", "row", "none"]),
    draft_device=st.sampled_from(["same", "host"]),
)


@settings(max_examples=60)
@given(
    shapes, machines, placements, st.integers(1, 40000), st.integers(1, 4), st.sampled_from(["none", "draft-simple"])
)
def test_items_add_up_and_more_context_never_needs_less(
    shape: dict[str, int], machine: str, placement: Placement, context: int, slots: int, method: Method
) -> None:
    target, setup = model(**shape), resolve(machine, placement=placement, parallel=slots)  # type: ignore[arg-type]
    found = plan(target, setup, SMALL, method, context, advise=False)
    sums = found.target_weights + found.draft_weights + found.target_kv + found.draft_kv + found.state + found.compute
    assert found.total == sums == sum(x.bytes for x in found.items)
    assert sum(x.need for x in found.devices) == pytest.approx(found.total, abs=len(found.items) + 1)
    assert found.target_weights >= target.size_bytes - len(found.items)
    assert plan(target, setup, SMALL, method, context + 1000, advise=False).total >= found.total
    assert activation_floats(target) > 0


@settings(max_examples=25)
@given(shapes, st.sampled_from(["RTX 3060 + DDR5-6000 128GB", "2x RTX 3060", "395"]), st.integers(256, 60000))
def test_what_is_placed_fits_if_anything_does(shape: dict[str, int], machine: str, context: int) -> None:
    target, setup = model(**shape), resolve(machine)  # type: ignore[arg-type]
    chosen = place(target, SMALL, "draft-simple", setup, context=context, draft_max=3)
    placed = plan(target, setup.model_copy(update={"placement": chosen}), SMALL, "draft-simple", context, advise=False)
    if chosen != setup.placement:
        assert all(x.fits is True for x in placed.devices if x.capacity is not None)
