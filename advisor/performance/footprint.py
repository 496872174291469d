"""What a run keeps, and in which memory: every weight, cache, state and buffer as one item.

Pure: models and a setup in, bytes out. The rules are llama.cpp's (b11434, as its server allocates):

- weights lie where their layer lies; the input embedding stays on the host, and a tied head is stored twice when the
  output is on a GPU (not with Metal, which maps the file); MTP tensors are loaded for draft-mtp only;
- a cache has ``pad256(n_ctx)`` cells per slot, a windowed layer ``min(n_ctx, pad256(window + n_ubatch))``;
- recurrent state is float32, once per slot, times 1 + n_max where the method and architecture keep snapshots;
- a draft's cache is as long as the target's, in f16 whatever the target's cache type is (``-ctkd`` changes it).

The sizes of compute buffers are not given by a rule but by llama.cpp's graph allocator. :func:`activation_floats`
reproduces what it reserved for random-weight models of real shapes (llama, qwen3, gemma3, qwen3moe, gpt-oss,
deepseek2, qwen35 and its MTP block; CPU backend, build 11549): dense ones exactly, the others within 15 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from advisor.base import Provenance
from advisor.hardware.machine import Device, Placement, Setup
from advisor.models.description import Layer, ModelDescription, cache_element_bytes
from advisor.speculation.prediction import DeviceMemory, Method
from advisor.speculation.rounds import SNAPSHOT_ARCHITECTURES, SNAPSHOT_METHODS

GIB = 2**30
UBATCH = 512
"""Tokens of one physical batch (``-ub``), llama.cpp's default."""
CACHE_PAD = 256
"""A cache holds a multiple of so many positions."""
PIPELINE_COPIES = 4
"""Copies of the graph's inputs when layers are split over GPUs (GGML_SCHED_MAX_COPIES)."""
BACKEND_CONTEXT: dict[str, int] = {"cuda": 330 * 2**20, "rocm": 330 * 2**20, "vulkan": 150 * 2**20, "sycl": 200 * 2**20}
"""What a GPU backend takes for itself per device [bytes]: about 330 MiB for CUDA with cuBLAS (reported in
unslothai/unsloth pull 6718), the others assumed."""
DEQUANTISING: frozenset[str] = frozenset({"cuda", "rocm"})
"""Backends that expand a layer's quantised cache to f16 for a prompt (same source: 4 kB per position for 2048 wide)."""

_LOOKED_UP = frozenset({"embedding", "per_layer_embedding"})
_OF_MTP = frozenset({"mtp", "mtp_experts", "mtp_head"})
_OUTSIDE_LAYERS = _LOOKED_UP | _OF_MTP | {"head", "unused"}


class Item(NamedTuple):
    """One thing kept in memory ``where`` (index of a memory); ``group`` is the sum of the plan it belongs to."""

    what: str
    where: int
    nbytes: float
    kind: Provenance
    how: str
    group: str


class Bin(NamedTuple):
    """One memory: a device, its label, and what of it may be used [bytes], None = unknown."""

    device: Device
    label: str
    capacity: float | None


class Footprint:
    """One candidate run; lists what it keeps where."""

    def __init__(
        self,
        target: ModelDescription,
        draft: ModelDescription | None,
        method: Method,
        setup: Setup,
        context: int,
        draft_max: int,
        draft_cache: str = "f16",
    ) -> None:
        self.draft_cache = draft_cache
        self.target, self.draft, self.method, self.setup = target, draft, method, setup
        self.context, self.draft_max = context, draft_max
        self.bins, self.host, self.local = memories(setup)
        self._items: list[Item] | None = None

    def but(
        self,
        *,
        placement: Placement | None = None,
        context: int | None = None,
        cache: str | None = None,
        parallel: int | None = None,
        draft: bool = True,
    ) -> Footprint:
        """The same run with something changed."""
        setup = self.setup.model_copy(
            update={
                **({"placement": placement} if placement is not None else {}),
                **({"cache_type_k": cache, "cache_type_v": cache} if cache is not None else {}),
                **({"parallel": parallel} if parallel is not None else {}),
            }
        )
        return Footprint(
            self.target,
            self.draft if draft else None,
            self.method if draft else "none",
            setup,
            self.context if context is None else context,
            self.draft_max,
            self.draft_cache if cache is None else cache,
        )

    def items(self) -> list[Item]:
        """Everything that is kept; listed once."""
        if self._items is None:
            self._items = list(self._list())
        return self._items

    def verdict(self) -> tuple[tuple[DeviceMemory, ...], bool | None]:
        """Need and capacity per device. Between the sum of what is known and that plus the doubt: undecided."""
        devices = []
        for index, memory in enumerate(self.bins):
            mine = [x for x in self.items() if x.where == index]
            need = sum(x.nbytes for x in mine)
            doubt = sum(x.nbytes for x in mine if x.kind == "assumed")
            fits: bool | None = None
            if memory.capacity is not None and mine:
                if need + 0.3 * doubt <= memory.capacity:
                    fits = True
                elif need - 0.5 * doubt > memory.capacity:
                    fits = False
            if mine:
                devices.append(
                    DeviceMemory(
                        device=memory.label,
                        need=round(need),
                        capacity=None if memory.capacity is None else round(memory.capacity),
                        fits=fits,
                    )
                )
        if any(device.fits is False for device in devices):
            return tuple(devices), False
        known = [device for device in devices if device.capacity is not None]
        if not known or any(device.fits is None for device in known):
            return tuple(devices), None
        # A host of unknown size holds the embedding table and buffers; only large needs leave the question open.
        open_need = sum(device.need for device in devices if device.capacity is None)
        return tuple(devices), True if open_need < 4 * GIB else None

    def works(self) -> bool:
        """Whether every memory of known size surely holds its part; unknown ones are taken to be large enough."""
        return all(device.fits is True for device in self.verdict()[0] if device.capacity is not None)

    # --- what there is ---

    def _list(self) -> Iterator[Item]:
        yield from self._model(
            self.target, "target", self._homes(self.target), self.setup.cache_type_k, self.setup.cache_type_v
        )
        rows = self.setup.parallel * (1 + self.draft_max if self.method != "none" else 1)
        yield Item(
            "output rows",
            self.host,
            4.0 * rows * self.target.vocabulary_size,
            "published",
            f"{rows} rows x {self.target.vocabulary_size} x 4 bytes",
            "compute",
        )
        yield from self._compute(self.target, "target", self._used(self._homes(self.target)), rows)
        if self.method == "draft-mtp" and self.draft is None:
            yield from self._own_mtp()
        elif self.draft is not None:
            yield from self._draft_model(self.draft)
        elif self.method == "ngram-mod":
            yield Item("n-gram table", self.host, 16.0 * 2**20, "published", "4 Mi entries x 4 bytes", "compute")
        yield from self._checkpoints()
        context = BACKEND_CONTEXT.get(self.setup.backend, 0)
        for index in self._used(self._homes(self.target)):
            if context and index != self.host:
                yield Item(
                    f"{self.setup.backend} context",
                    index,
                    context,
                    "assumed",
                    "driver context and library workspace",
                    "compute",
                )

    def _model(self, model: ModelDescription, role: str, homes: Homes, type_k: str, type_v: str) -> Iterator[Item]:
        """Weights, cache and state of a whole model."""
        name = "weights" if role == "target" else "draft weights"
        weights: dict[int, float] = {}
        moved = 0.0
        for layer, home in zip(model.layers, homes.layers, strict=True):
            on_host = self._experts_on_host(layer, home) if role == "target" else 0.0
            moved += on_host
            for index, share in home:
                weights[index] = weights.get(index, 0.0) + (layer.bytes - on_host) * share
            if on_host:
                weights[self.host] = weights.get(self.host, 0.0) + on_host
        in_layers = sum(layer.bytes for layer in model.layers)
        other = sum(g.bytes for g in model.weights if g.role not in _OUTSIDE_LAYERS) - in_layers
        for index, share in homes.output:
            weights[index] = weights.get(index, 0.0) + (model.head_bytes + max(0.0, other)) * share
        if not model.layers and not model.weights:
            weights = dict.fromkeys((index for index, _ in homes.output), float(model.size_bytes))
        for index, nbytes in weights.items():
            how = "tensors of the layers placed here"
            if moved and index == self.host:
                how += f", with {moved / GIB:.1f} GB of routed experts"
            yield Item(name, index, nbytes, "published", how, f"{role}_weights")
        tables = float(sum(g.bytes for g in model.weights if g.role in _LOOKED_UP))
        if tables:
            yield Item(
                f"{name}: input tables",
                self.host,
                tables,
                "published",
                "looked up on the host, mapped from the file",
                f"{role}_weights",
            )
        on_gpu = any(index != self.host for index, _ in homes.output)
        if model.tied_head and (on_gpu or self._copies_to_gpu()) and self.setup.backend not in ("metal", "cpu"):
            yield Item(
                f"{name}: input copy of the tied head",
                self.host,
                float(model.head_bytes),
                "published",
                "one tensor, on the host for look-ups and on the device as the output matrix",
                f"{role}_weights",
            )
        yield from self._cache(model, role, homes, type_k, type_v)
        yield from self._state(model, role, homes)

    def _copies_to_gpu(self) -> bool:
        """Whether the GPU shares the host's memory but keeps copies of its own there."""
        return self.bins[self.local[0]].device.is_unified

    def _experts_on_host(self, layer: Layer, home: Home) -> float:
        placement = self.setup.placement
        if not layer.expert_count or all(index == self.host for index, _ in home):
            return 0.0
        return float(layer.expert_bytes) if placement.cpu_moe or layer.index < placement.cpu_moe_layers else 0.0

    def _cache(self, model: ModelDescription, role: str, homes: Homes, type_k: str, type_v: str) -> Iterator[Item]:
        if model.architecture.replace("_", "-") == "gemma4-assistant":
            return  # attends the target's cache
        sizes: dict[int, float] = {}
        key, value = cache_element_bytes(type_k), cache_element_bytes(type_v)
        widest = max((layer.value_width for layer in model.layers), default=0)
        for layer, home in zip(model.layers, homes.layers, strict=True):
            if not layer.key_width and not layer.value_width:
                continue
            # Without flash attention V is stored transposed, in rows as wide as the widest layer's.
            width = layer.value_width if self.setup.flash_attention or not layer.value_width else widest
            positions = cells(self.context, layer.window) * self.setup.parallel * model.loops
            for index, share in home:
                sizes[index] = sizes.get(index, 0.0) + positions * (layer.key_width * key + width * value) * share
        slots = f" x {self.setup.parallel} slots" if self.setup.parallel > 1 else ""
        for index, nbytes in sizes.items():
            yield Item(
                "cache" if role == "target" else "draft cache",
                index,
                nbytes,
                "published",
                f"{cells(self.context)} cells{slots}, K {type_k}, V {type_v}",
                f"{role}_kv",
            )

    def _state(self, model: ModelDescription, role: str, homes: Homes) -> Iterator[Item]:
        if not model.state_bytes:
            return
        copies = 1 + self._snapshots() if role == "target" else 1
        sizes: dict[int, float] = {}
        for layer, home in zip(model.layers, homes.layers, strict=True):
            for index, share in home:
                sizes[index] = sizes.get(index, 0.0) + 4.0 * layer.state_elements * share
        kept = f" x {copies} (snapshots to roll back to)" if copies > 1 else ""
        for index, nbytes in sizes.items():
            if nbytes:
                yield Item(
                    "recurrent state" if role == "target" else "draft recurrent state",
                    index,
                    nbytes * copies * self.setup.parallel,
                    "published",
                    f"float32, {self.setup.parallel} slot{'s' if self.setup.parallel > 1 else ''}{kept}",
                    "state",
                )

    def _snapshots(self) -> int:
        """Extra copies of the target's recurrent state (llama.cpp's n_rs_seq)."""
        known = self.target.architecture.replace("_", "-") in {a.replace("_", "-") for a in SNAPSHOT_ARCHITECTURES}
        return self.draft_max if known and self.method in SNAPSHOT_METHODS else 0

    def _checkpoints(self) -> Iterator[Item]:
        """A recurrent model without snapshots is saved through the host in every round."""
        saved = 0
        if self.target.is_recurrent and self.method != "none" and not self._snapshots():
            saved += self.target.state_bytes
        if self.draft is not None and self.draft.is_recurrent:
            saved += self.draft.state_bytes
        if saved:
            yield Item(
                "saved state",
                self.host,
                float(saved * self.setup.parallel),
                "published",
                "checkpoint of each round",
                "state",
            )

    def _own_mtp(self) -> Iterator[Item]:
        block = self.target.mtp
        if block is None:
            return
        where = self._homes(self.target).output
        weights = sum(g.bytes for g in self.target.weights if g.role in _OF_MTP)
        width = (block.key_width + block.value_width) * cache_element_bytes(self.draft_cache)
        cache = cells(self.context) * self.setup.parallel * width
        for index, share in where:
            yield Item("MTP weights", index, weights * share, "published", "loaded for draft-mtp only", "draft_weights")
            yield Item(
                "MTP cache",
                index,
                cache * share,
                "published",
                f"{cells(self.context)} cells, {self.draft_cache}",
                "draft_kv",
            )
        floats = mtp_floats(self.target)
        # One layer only: its mask is gone before the feed-forward starts.
        attention = 4.0 * 6.8 * self.target.embedding_length * self._batch() + self._mask(None)
        for index, _ in where:
            yield Item(
                "MTP compute",
                index,
                max(4.0 * floats * self._batch(), attention),
                "assumed",
                f"{floats:.0f} floats a token x {self._batch()}",
                "compute",
            )

    def _draft_model(self, draft: ModelDescription) -> Iterator[Item]:
        homes = self._homes(draft, draft=True)
        yield from self._model(draft, "draft", homes, self.draft_cache, self.draft_cache)
        rows = self.setup.parallel * (1 + self.draft_max if self.method in ("draft-dflash", "draft-dspark") else 1)
        vocabulary = draft.vocabulary_size or self.target.vocabulary_size
        yield Item(
            "draft output rows",
            self.host,
            4.0 * rows * vocabulary,
            "published",
            f"{rows} rows x {vocabulary} x 4 bytes",
            "compute",
        )
        yield from self._compute(draft, "draft", self._used(homes), rows)

    def _compute(self, model: ModelDescription, role: str, where: Iterable[int], rows: int) -> Iterator[Item]:
        floats = activation_floats(model)
        devices = list(where)
        gpus = [index for index in devices if index != self.host]
        copies = PIPELINE_COPIES if len(gpus) > 1 and self.setup.placement.split == "layer" else 1
        # At the end of the graph the logits of all output rows stand beside five hidden widths and the mask.
        logits = 4.0 * (rows * model.vocabulary_size + 5 * model.embedding_length * self._batch())
        logits += copies * self._mask(model)
        scratch = self._dequantised(model) if role == "target" else 0.0
        name = "compute" if role == "target" else "draft compute"
        for index in devices:
            nbytes = max(self._graph(floats, copies, model), logits)
            how = f"{floats:.0f} floats a token x {self._batch()}, and the mask"
            if copies > 1:
                how += f" x {copies} (pipeline)"
            if scratch and index != self.host:
                nbytes += scratch
                how += ", and one layer's cache in f16"
            yield Item(name, index, nbytes, "assumed", how, "compute")
        if gpus and self.host not in devices:
            nbytes = self._mask(model) + 8.0 * model.embedding_length * self._batch()
            yield Item(f"{name}: inputs", self.host, nbytes, "assumed", "embedded tokens and the mask", "compute")

    def _batch(self) -> int:
        return min(UBATCH, cells(self.context))

    def _graph(self, floats: float, copies: int, model: ModelDescription) -> float:
        """A compute buffer: the activations, or without flash attention the scores, and the attention mask."""
        tokens = 4.0 * self._batch()
        scores = 0.0
        if not self.setup.flash_attention:
            scores = tokens * (model.head_count * cells(self.context) + 6 * model.embedding_length)
        return max(tokens * floats, scores) + copies * self._mask(model)

    def _mask(self, model: ModelDescription | None) -> float:
        size = 2 if self.setup.flash_attention else 4
        windows = {layer.window for layer in model.layers if layer.key_width} if model is not None else {None}
        return float(sum(size * cells(self.context, window) * self._batch() for window in windows or {None}))

    def _dequantised(self, model: ModelDescription) -> float:
        if self.setup.backend not in DEQUANTISING:
            return 0.0
        keys = cache_element_bytes(self.setup.cache_type_k) < 2
        values = cache_element_bytes(self.setup.cache_type_v) < 2
        return max(
            (
                2.0 * cells(self.context, layer.window) * (keys * layer.key_width + values * layer.value_width)
                for layer in model.layers
            ),
            default=0.0,
        )

    # --- where it lies ---

    def _used(self, homes: Homes) -> list[int]:
        found = {index: None for home in homes.layers for index, _ in home}
        found.update({index: None for index, _ in homes.output})
        return list(found)

    def _homes(self, model: ModelDescription, *, draft: bool = False) -> Homes:
        placement, host = self.setup.placement, self.host
        count = len(model.layers)
        here = self.local[-len(self.setup.hardware.devices) :]  # without RPC devices
        if draft and placement.draft_device != "same":
            only: Home = ((host if placement.draft_device == "host" else here[min(1, len(here) - 1)], 1.0),)
            return Homes((only,) * count, only)
        first, offloaded = 0, count + 1
        if not draft and placement.gpu_layers is not None and host not in self.local:
            # The output counts as one more layer, and the last ones go first (llama-model.cpp, i_gpu_start).
            offloaded = min(placement.gpu_layers, count + 1)
            first = count + 1 - offloaded
        shares = self._shares()
        if draft and placement.rpc:  # drafts stay off the network (``-devd``)
            kept = [(index, share) for index, share in shares if index in here] or [(here[0], 1.0)]
            shares = [(index, share / sum(s for _, s in kept)) for index, share in kept]
        on_host: Home = ((host, 1.0),)
        if placement.split in ("row", "tensor") and len(shares) > 1:
            everywhere: Home = tuple(shares)
            homes = [on_host if i < first else everywhere for i in range(count)]
            return Homes(tuple(homes), everywhere if offloaded else on_host)
        if placement.split == "none":
            shares = shares[:1]
        if len(shares) == 1:
            # The usual case, without asking layer by layer: placing tries a dozen of these per candidate.
            on_device: Home = ((shares[0][0], 1.0),)
            below = min(first, count)
            return Homes((on_host,) * below + (on_device,) * (count - below), on_device if offloaded else on_host)
        edges: list[tuple[float, int]] = []
        edge = 0.0
        for index, share in shares:
            edge += share
            edges.append((edge, index))

        def home(i: int) -> Home:
            if i < first or not offloaded:
                return on_host
            position = (i - first) / offloaded
            return ((next((index for limit, index in edges if position < limit), edges[-1][1]), 1.0),)

        return Homes(tuple(home(i) for i in range(count)), home(count))

    def _shares(self) -> list[tuple[int, float]]:
        """Part of the layers each device takes: ``--tensor-split``, else in proportion to memory, else evenly."""
        told = self.setup.placement.tensor_split
        if told and sum(told) > 0:
            parts = [*told, *([0.0] * (len(self.local) - len(told)))][: len(self.local)]
        else:
            memory = [self.bins[index].device.memory for index in self.local]
            sizes = [figure.value for figure in memory if figure is not None]
            parts = sizes if len(sizes) == len(memory) else [1.0] * len(memory)
        return [(index, part / sum(parts)) for index, part in zip(self.local, parts, strict=True) if part > 0]


Home = tuple[tuple[int, float], ...]


class Homes(NamedTuple):
    """For every layer, and for the output: bins and shares."""

    layers: tuple[Home, ...]
    output: Home


def cells(context: int, window: int | None = None) -> int:
    """Positions that one slot's cache of a layer holds: a multiple of 256, and no more than the window needs.

    Source: llama-kv-cache-iswa.cpp (window + n_ubatch, padded), without ``--swa-full``.
    """
    full = -(-context // CACHE_PAD) * CACHE_PAD
    if window is None:
        return full
    return min(full, -(-(window + UBATCH) // CACHE_PAD) * CACHE_PAD)


def activation_floats(model: ModelDescription) -> float:
    """Floats per token that llama.cpp's allocator holds at once, without the attention mask.

    Five hidden widths, plus the widest of: three feed-forward widths (gate, up and their product); for experts the
    larger of three expert widths and two outputs per used expert (and one hidden width); for MLA the queries and
    outputs in latent width and three hidden widths.
    """
    width = float(model.embedding_length)
    return 5 * width + max(_ffn_floats(model), _expert_floats(model), _mla_floats(model))


def _ffn_floats(model: ModelDescription) -> float:
    """Weights of one dense feed-forward per hidden unit = three times its width (two matrices: two)."""
    dense = [layer for layer in model.layers if not layer.expert_count] or list(model.layers)
    weights = sum(g.parameters for g in model.weights if g.role == "ffn")
    return weights / len(dense) / model.embedding_length if dense and model.embedding_length else 0.0


def _expert_floats(model: ModelDescription) -> float:
    routed = [layer for layer in model.layers if layer.expert_count]
    width = float(model.embedding_length)
    if not routed or not width:
        return 0.0
    layer = max(routed, key=lambda x: x.expert_used * x.expert_parameters / x.expert_count)
    inner = layer.expert_parameters / layer.expert_count / width / 3
    return max(3 * inner * layer.expert_used, 2 * width * layer.expert_used + width)


def _mla_floats(model: ModelDescription) -> float:
    latent = max((layer.key_width for layer in model.layers if layer.mixer == "mla"), default=0)
    return 2.0 * model.head_count * latent + 3 * model.embedding_length if latent else 0.0


def mtp_floats(model: ModelDescription) -> float:
    """The same for the context that runs the MTP block: 2.8 hidden widths and the feed-forward or experts."""
    return 2.8 * model.embedding_length + max(_ffn_floats(model), _expert_floats(model)) if model.mtp else 0.0


# --- capacities ---------------------------------------------------------------------------------------------------


def memories(setup: Setup) -> tuple[list[Bin], int, list[int]]:
    """The memories of a setup, the index of the host's, and those that hold layers in the order they are filled."""
    hardware = setup.hardware
    devices = list(hardware.devices)
    names = [device.name for device in devices]
    bins: list[Bin] = []
    local: list[int] = []
    for remote in setup.placement.rpc:  # llama.cpp fills RPC devices first
        for device in remote.hardware.devices:
            local.append(len(bins))
            bins.append(Bin(device, f"{device.name} (RPC)", capacity(device)))
    for number, device in enumerate(devices):
        label = f"{device.name} #{number + 1}" if names.count(device.name) > 1 else device.name
        local.append(len(bins))
        bins.append(Bin(device, label, capacity(device)))
    first = len(bins) - len(devices)
    host = hardware.host
    if host is None:
        return bins, first, local  # one memory for everything
    for index in local[-len(devices) :]:
        if bins[index].device.is_unified and bins[index].device.slug == host.slug:
            return bins, index, local
    bins.append(Bin(host, f"{host.name} (host)", capacity(host)))
    return bins, len(bins) - 1, local


def capacity(device: Device) -> float | None:
    """Bytes of a device that a run may use; None = its memory is not known.

    A figure that somebody stated for this purpose, or that the driver allows, counts in full. Of a memory's nominal
    size are left out: 2 % of a graphics card (what drivers keep of 8 to 24 GB cards); of an Apple chip a third up to
    36 GB and a quarter above (macOS' default limit for the GPU); elsewhere 2 GB or 5 % for the system.
    """
    figure = device.memory
    if figure is None:
        return None
    size = figure.value * GIB
    allowed = ("--memory", "device list", "VRAM + GTT", "wired_limit", "control group")
    if device.device_class == "custom" or any(word in figure.source for word in allowed):
        return size
    if device.device_class == "apple-soc":
        return size * (0.75 if figure.value > 36 else 2 / 3)
    if device.is_unified or device.is_cpu:
        return size - max(2 * GIB if figure.value > 8 else 0.25 * size, 0.05 * size)
    return size if figure.kind == "measured" else 0.98 * size
