"""Calibrating this machine: what llama.cpp really charges here for each kind of work.

Everything is measured through the server alone, on small models with random weights that are written for it and
deleted afterwards, so any engine on any backend can be calibrated in three to four minutes. Real models may be added:
they tell how far their architecture departs from the sum of its parts.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from advisor.base import Figure
from advisor.errors import AdvisorError, CancelledError, EngineError
from advisor.hardware.machine import Backend, Device, Hardware, Setup
from advisor.llamacpp.confirm import Progress, Report, forced_rates
from advisor.llamacpp.contention import ContentionMeter
from advisor.llamacpp.find import Engine, find_engine, list_devices
from advisor.llamacpp.probe import (
    MATCH,
    MOST_VERIFIED,
    PassTimings,
    RatioTiming,
    RoundTiming,
    merged,
    time_passes,
    time_ratio,
    time_rounds,
    time_verifications,
)
from advisor.llamacpp.server import Cancel, NgramShape, Server, ServerOptions
from advisor.llamacpp.synthetic import KNOWN, Recipe, write_synthetic
from advisor.models.description import ModelDescription
from advisor.performance.measured import (
    BUSY,
    PROCEDURE,
    Calibration,
    Check,
    Correction,
    Curve,
    DraftCost,
    ExpertCost,
    Family,
    MatrixCost,
    MeasuredCosts,
    family_of_architecture,
    this_machine,
)
from advisor.speculation.prediction import Method

T = TypeVar("T")
COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32)
"""Passes that are timed: all draft lengths up to 8 exactly, the longer ones by interpolation."""
VISITS = 2
"""How often every type is looked at, with all others in between."""
_AGAIN = COLUMNS[:-1]
"""Passes that are timed on later visits: the longest takes a third of the time."""
_STREAM_BUDGET = 0.6
"""Time to look at one type with rows of one length on one visit [s]."""
_TURNS = 4
"""How often times per layer and per byte are separated from each other; they change by per mille after that."""
_FEW = (1, 2, 3, 4, 5, 8, 9, 16)
TYPES = (
    "Q8_0", "F16", "F32", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K", "Q3_K", "Q2_K", "IQ4_NL", "IQ4_XS",
    "MXFP4",
)  # fmt: skip
"""Each has kernels of its own somewhere: even Q4_0 and Q4_1 differ by a factor of two on some processors."""
EXPERT_TYPES = ("Q8_0", "Q4_K", "MXFP4", "F16")
_SMALL, _LARGE = 512, 32768
"""Vocabularies of the overhead probes."""
_BYTES = 96 << 20
"""Least weight bytes of a streaming probe: well beyond the last-level cache of ordinary processors."""
_MOST_BYTES = 1 << 30
_PASS = 4e-3
"""A streaming pass should take at least this long, or launches would hide the memory [s]."""
_BACKENDS: tuple[tuple[str, Backend], ...] = (
    ("CUDA", "cuda"), ("ROCM", "rocm"), ("HIP", "rocm"), ("VULKAN", "vulkan"), ("MTL", "metal"), ("METAL", "metal"),
    ("SYCL", "sycl"), ("GPUOPENCL", "opencl"), ("OPENCL", "opencl"),
)  # fmt: skip
_STAIR = 1.3
"""Largest ratio of a pass to the next longer one that is taken for real: where kernels take 4 columns at once, 3 were
seen to cost up to a sixth more than 4."""


def backend_of(engine: Engine) -> Backend:
    """The backend an engine would compute on here, by the names of its devices."""
    for device in list_devices(engine):
        for prefix, backend in _BACKENDS:
            if device.name.upper().startswith(prefix):
                return backend
    return "cpu"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards, even if this process is killed."""
    folder = Path(tempfile.mkdtemp(prefix="draft-advisor-"))
    guard = Path(__file__).with_name("guard.py")
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(guard), "--remove", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait()


def calibrate(
    models: Sequence[Path | str] = (),
    *,
    engine: str | Engine = "auto",
    threads: int | None = None,
    gpu_layers: int | None = None,
    patience: float = 1.0,
    folder: Path | None = None,
    progress: Report | None = None,
    cancel: Cancel | None = None,
) -> Calibration:
    """Measure this machine with this engine.

    Args:
        models: GGUF files of the user; each corrects predictions for its architecture.
        engine: ``auto``, ``embedded``, a path, or an :class:`Engine`.
        threads: CPU threads; None = the engine's choice.
        gpu_layers: ``-ngl``; None = the engine's choice.
        patience: how long to measure, relative to the usual three to four minutes on two cores.
        folder: where the probe models go; None = a temporary folder that is removed.
        progress: told about every step.
        cancel: asked before every step.

    Raises:
        EngineError: no engine, one without n-gram drafts, or it fails.
        CancelledError: ``cancel`` said so.
    """
    engine = engine if isinstance(engine, Engine) else find_engine(engine)
    if folder is not None:
        return _Calibrator(engine, folder, threads, gpu_layers, patience, progress, cancel).run(models)
    with temporary_folder() as temporary:
        return _Calibrator(engine, temporary, threads, gpu_layers, patience, progress, cancel).run(models)


def _thin(family: Family, **changes: object) -> Recipe:
    """Many narrow blocks: nearly all of their time is what does not depend on weights."""
    base: dict[str, object] = {
        "architecture": "llama", "layers": 24, "width": 128, "heads": 2, "kv_heads": 1, "head_size": 64, "ffn": 256,
        "vocabulary": _SMALL, "quant": "Q8_0",
    }  # fmt: skip
    special: dict[Family, dict[str, object]] = {
        "dense": {},
        "sandwich": {"architecture": "gemma3"},
        "experts": {"architecture": "qwen3moe", "experts": 8, "experts_used": 2, "expert_width": 64},
        "delta": {"architecture": "qwen35", "layers": 16, "mtp": True},
        "convolution": {"architecture": "lfm2"},
        "latent": {
            "architecture": "deepseek2",
            "layers": 16,
            "experts": 8,
            "experts_used": 2,
            "expert_width": 64,
            "shared_experts": 1,
        },
    }
    return Recipe.model_validate(base | special[family] | {"name": f"thin-{family}"} | changes)


_WIDE, _NARROW_ROWS = 2048, 512
"""Row lengths of the streaming probes: as in models of billions of weights, and as in the smallest drafts."""


def _streaming(quant: str, nbytes: float, width: int) -> Recipe:
    """Blocks of one type, ``nbytes`` in all: nearly all of their time is streaming and multiplying."""
    from advisor.performance.fitted import bits_of

    weights = (2 + 2 / 4 + 3 * 4) * width**2
    return Recipe(
        architecture="llama", name=f"rows{width}-{quant}",
        layers=max(1, round(nbytes / (weights * bits_of(quant) / 8))),
        width=width, heads=width // 64, kv_heads=width // 256, ffn=4 * width, quant=quant, vocabulary=_SMALL,
    )  # fmt: skip


def _wide_experts(quant: str, nbytes: float) -> Recipe:
    from advisor.performance.fitted import bits_of

    weights = 16 * 3 * 1024 * 512
    return Recipe(
        architecture="qwen3moe", name=f"experts-{quant}", layers=max(2, round(nbytes / (weights * bits_of(quant) / 8))),
        width=1024, heads=4, kv_heads=2, experts=16, experts_used=4, expert_width=512, quant="Q8_0", expert_quant=quant,
        vocabulary=_SMALL,
    )  # fmt: skip


_HEAVY = _thin("delta", layers=8, state=128, key_heads=4, value_heads=16)
"""A hybrid with much recurrent state."""
_NARROW = _thin("dense", layers=4)
"""Target and draft of the overhead probes: hardly anything but overhead."""


_ORDINARY = Recipe(
    architecture="llama", name="ordinary", layers=8, width=768, heads=12, kv_heads=4, ffn=3072, quant="Q8_0",
    vocabulary=16384,
)  # fmt: skip
"""A model of ordinary proportions, larger than a processor's cache."""
_REPEATS, _REPEATS_OF_ONE = 12, 2
"""How often measurements are repeated because other programs were busy: in all, and a single one."""
_NEVER = 1e-9
"""Forced acceptance of zero: the engine wants a positive one."""
_IN_ROUNDS = (0.8, 1.5)
"""Bounds of the factor found with it; anything beyond is a disturbed measurement."""


class _Streamed(NamedTuple):
    """A model that streams matrices of one type: bytes and rows of them, blocks, and its passes."""

    nbytes: int
    rows: int
    layers: int
    timed: PassTimings


class _Pair(NamedTuple):
    """Matrices of one type in short rows, in long rows right beside, and in long rows over all visits."""

    beside: _Streamed
    short: _Streamed
    long: _Streamed


class _Calibrator:
    """One calibration while it goes on."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        threads: int | None,
        gpu_layers: int | None,
        patience: float,
        progress: Report | None,
        cancel: Cancel | None,
    ) -> None:
        self.engine, self.folder, self.patience = engine, folder, patience
        self.threads, self.gpu_layers = threads, gpu_layers
        self.progress, self.cancel = progress, cancel
        self.meter = ContentionMeter()
        self.repeats = _REPEATS
        self.began = time.monotonic()
        self.done, self.total = 0, 60
        self._files: dict[Recipe, Path] = {}
        self._descriptions: dict[Path, ModelDescription] = {}

    # ---- running

    def options(self, path: Path, **changes: object) -> ServerOptions:
        base = ServerOptions(
            model=str(path), threads=self.threads, gpu_layers=self.gpu_layers, context=2048, context_checkpoints=0
        )
        return base.model_copy(update=changes)

    def say(self, message: str) -> None:
        if self.cancel is not None and self.cancel():
            raise CancelledError("The calibration was stopped; nothing was stored.")
        if self.progress is not None:
            passed = time.monotonic() - self.began
            left = passed / self.done * (self.total - self.done) if self.done else None
            self.progress(Progress(done=self.done, total=self.total, message=message, remaining=left))
        self.done = min(self.done + 1, self.total)

    def quietly(self, measure: Callable[[ContentionMeter], T]) -> T:
        """Measure again if other programs were busy meanwhile; what was disturbed least counts."""
        tries: list[tuple[float, ContentionMeter, T]] = []
        while True:
            meter = ContentionMeter()
            found = measure(meter)
            share = meter.share or 0.0
            tries.append((share, meter, found))
            if share <= BUSY or self.repeats <= 0 or len(tries) > _REPEATS_OF_ONE:
                break
            self.repeats -= 1
        _, meter, found = min(tries, key=lambda t: t[0])
        self.meter.absorb(meter)
        return found

    def file(self, recipe: Recipe) -> Path:
        if recipe not in self._files:
            path = self.folder / f"{recipe.name}-{len(self._files)}.gguf"
            self._files[recipe] = write_synthetic(recipe, path)
        return self._files[recipe]

    def drop(self, recipe: Recipe) -> None:
        """Delete a probe model that is not needed any more: disk space is not ours to fill."""
        if recipe in self._files:
            self._files.pop(recipe).unlink(missing_ok=True)

    def describe(self, path: Path) -> ModelDescription:
        from advisor.models.reference import describe

        if path not in self._descriptions:
            self._descriptions[path] = describe(str(path))
        return self._descriptions[path]

    def prompts(self, path: Path, columns: Sequence[int], vocabulary: int, budget: float, message: str) -> PassTimings:
        """T(n) by prompts: recurrent models, whose rounds hold checkpoints, and models of the user."""
        self.say(message)
        with Server(self.engine, self.options(path), cancel=self.cancel) as server:
            time_passes(server, columns, vocabulary, budget=0, least=1, most=1)
            return self.quietly(
                lambda meter: time_passes(server, columns, vocabulary, budget=budget * self.patience, meter=meter)
            )

    def passes(self, path: Path, columns: Sequence[int], budget: float, message: str, depth: int = 0) -> PassTimings:
        """T(n) by verifications, of a chain model with a small vocabulary."""
        return self.together([(path, columns)], budget, message, depth)[0]

    def together(
        self, models: Sequence[tuple[Path, Sequence[int]]], budget: float, message: str, depth: int = 0
    ) -> list[PassTimings]:
        """The same for several models, in turn."""
        self.say(message)
        shape = {"method": "ngram-simple", "draft_max": MOST_VERIFIED - 1, "ngram": NgramShape(match=MATCH)}
        with ExitStack() as stack:
            servers = []
            for path, columns in models:
                server = Server(self.engine, self.options(path, **shape), cancel=self.cancel)
                servers.append((stack.enter_context(server), columns))
            warm = [(server, (2,)) for server, _ in servers]
            time_verifications(warm, _SMALL, budget=0, least=1, most=1)
            seconds = budget * self.patience * len(servers)
            return self.quietly(
                lambda meter: time_verifications(servers, _SMALL, budget=seconds, least=2, depth=depth, meter=meter)
            )

    def drafting(self, target: Recipe, method: Method, k: int, draft: Recipe | None) -> ServerOptions:
        """A server that drafts ``k`` tokens, all of which will be right."""
        return self.options(
            self.file(target),
            draft=str(self.file(draft)) if draft else None,
            method=method,
            draft_max=k,
            ngram=NgramShape(match=min(k, MATCH)) if method == "ngram-simple" else NgramShape(),
            synth_rates=forced_rates(1.0, k) if draft is not None and draft.is_drafter else (),
        )

    def rounds(
        self, target: Recipe, method: Method, k: int, message: str, draft: Recipe | None = None, replays: bool = False
    ) -> RoundTiming:
        self.say(f"{message}, draft length {k}")
        options = self.drafting(target, method, k, draft)
        many = max(3, round(6 * self.patience))
        with Server(self.engine, options, cancel=self.cancel) as server:
            return self.quietly(
                lambda meter: time_rounds(
                    server, target.vocabulary, k, rounds=16, repetitions=many, replays=replays, meter=meter
                )
            )

    def ratio(self, target: Recipe, method: Method, k: int, message: str, draft: Recipe | None = None) -> RatioTiming:
        """Rounds in decode steps of a second, plain server."""
        self.say(f"{message}, draft length {k}")
        plain, options = self.options(self.file(target)), self.drafting(target, method, k, draft)
        with (
            Server(self.engine, plain, cancel=self.cancel) as one,
            Server(self.engine, options, cancel=self.cancel) as other,
        ):
            many = max(3, round(4 * self.patience))
            return self.quietly(
                lambda meter: time_ratio(one, other, target.vocabulary, k, repetitions=many, meter=meter)
            )

    # ---- the plan

    def run(self, models: Sequence[Path | str]) -> Calibration:
        """Everything in order: each step may use what the steps before found."""
        if not self.engine.capabilities.supports("ngram-simple"):
            raise EngineError(
                f"{self.engine.label} cannot be calibrated: it has no ngram-simple, by which passes are timed.",
                "Use a llama.cpp build of 2026, or --engine embedded.",
            )
        self.total = 42 + VISITS * len(TYPES) + len(EXPERT_TYPES) + 2 * len(models)
        began = time.monotonic()
        backend = backend_of(self.engine)
        # A first look, to size the probes for this machine.
        look = _streaming("Q8_0", _BYTES, _WIDE)
        first = self.passes(self.file(look), (1,), 0.3, "first look")
        self.drop(look)
        if (share := self.meter.share) is not None and share > BUSY:
            self.say(f"careful: other programs use {share:.0%} of the processors")
        nbytes = min(_MOST_BYTES, _BYTES * max(1.0, _PASS / first.step.seconds))

        thin, thick = self.file(_thin("dense", layers=2)), self.file(_thin("dense"))
        read = [self.prompts(f, (1,), _SMALL, 0.4, "time to read a prompt") for f in (thin, thick)]
        self.prompt_constant, self.prompt_per_layer = _line(
            *((n, t.passes[1].seconds - t.step.seconds) for n, t in zip((2, 24), read, strict=True))
        )
        short = self.passes(thin, _FEW, 1.5, "time per step")
        long = self.passes(thick, _FEW, 2.5, "time per layer")
        # Blocks of 2 and 24 layers share everything but their number: the intercept is the step itself.
        step, _ = _line((2, short.step.seconds), (24, long.step.seconds))
        self.step = max(step, 0.0)
        # A first guess that takes the thin blocks' own matrices for overhead; corrected below.
        raw = {n: t.seconds / 24 for n, t in long.passes.items()}
        dense_layer, self.rebuild = through_first(max(long.step.seconds - self.step, 0.0) / 24, raw)
        probes = self._stream(nbytes)
        matrices, rows = self._matrix_costs(probes, dense_layer)
        self.calibration = Calibration(
            procedure=PROCEDURE,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            machine=this_machine().model_copy(
                update={"devices": tuple(d.description for d in list_devices(self.engine))}
            ),
            backend=backend,
            engine=self.engine.label,
            build=self.engine.build,
            threads=self.threads,
            seconds=0.0,
            matrices=matrices,
            rows=rows,
            layers={"dense": dense_layer},
            step=self.step,
            cache=Curve(columns=(1,), values=(matrices[0].seconds_per_byte.at(1),)),
        )
        # What thin blocks spend on their matrices is not time per layer, and what the others spend on their layers is
        # not matrices: a few turns separate the two.
        for _ in range(_TURNS):
            dense_layer = self._layer_curve(_thin("dense"), long)
            matrices, rows = self._matrix_costs(probes, dense_layer)
            self.update(layers={"dense": dense_layer}, matrices=matrices, rows=rows)
        self._cache()
        self._families()
        self._state()
        self._experts(nbytes)
        self._ngram()
        self._vocabulary()
        self._in_rounds()
        self._drafting()
        self._rollback()
        self._check()
        for model in models:
            self._real(Path(model))
        return self.calibration.model_copy(
            update={"seconds": round(time.monotonic() - began, 1), "contention": self.meter.share}
        )

    def update(self, **changes: object) -> None:
        self.calibration = Calibration.model_validate(self.calibration.model_dump() | changes)

    # ---- what each measurement means

    def corrected(self, timed: PassTimings, layers: int) -> dict[int, float]:
        """T(n) without what the instrument costs on top of decoding [s]; T(1) is the decode step itself."""
        # A round alone builds its graph anew; in a running answer the graph of the round before is used again.
        extra = self.rebuild * layers if timed.verified else self.prompt_constant + self.prompt_per_layer * layers
        values = {n: max(t.seconds - extra, 1e-7) for n, t in timed.passes.items()}
        values[1] = timed.step.seconds
        return without_spikes(values)

    def _stream(self, nbytes: float) -> dict[str, _Pair]:
        """Passes over ``nbytes`` of matrices of every type, in long rows and in short ones.

        Every type is seen several times, with all others in between, because memory bandwidth drifts over minutes.
        Short rows are seen once, next to long ones: only the difference counts.
        """
        seen: dict[tuple[str, int], list[PassTimings]] = {}
        sizes: dict[tuple[str, int], tuple[int, int, int]] = {}
        for visit in range(VISITS):
            looks = ((_WIDE, COLUMNS), (_NARROW_ROWS, _FEW)) if not visit else ((_WIDE, _AGAIN),)
            for quant in TYPES:
                recipes = [_streaming(quant, nbytes, width) for width, _ in looks]
                for recipe in recipes:
                    groups = [g for g in self.describe(self.file(recipe)).weights if g.quant == quant]
                    read = [g for g in groups if g.role not in ("embedding", "head")]
                    sizes[quant, recipe.width] = sum(g.bytes for g in read), sum(g.rows for g in read), recipe.layers
                models = [(self.file(r), columns) for r, (_, columns) in zip(recipes, looks, strict=True)]
                message = f"matrices of type {quant}" + (" again" if visit else "")
                for recipe, timed in zip(recipes, self.together(models, _STREAM_BUDGET, message), strict=True):
                    seen.setdefault((quant, recipe.width), []).append(timed)
                    self.drop(recipe)
        return {
            quant: _Pair(
                beside=_Streamed(*sizes[quant, _WIDE], seen[quant, _WIDE][0]),
                short=_Streamed(*sizes[quant, _NARROW_ROWS], seen[quant, _NARROW_ROWS][0]),
                long=_Streamed(*sizes[quant, _WIDE], merged(seen[quant, _WIDE])),
            )
            for quant in TYPES
        }

    def _matrix_costs(self, probes: dict[str, _Pair], layer: Curve) -> tuple[tuple[MatrixCost, ...], Curve]:
        """Seconds per byte and per row: what streaming models spend beyond their step and ``layer``s."""

        def bare(probe: _Streamed) -> dict[int, float]:
            values = self.corrected(probe.timed, probe.layers)
            return {n: max(v - self.step - probe.layers * layer.at(n), 0.1 * v) for n, v in values.items()}

        rows = pooled_rows(
            [
                per_row(bare(p.beside), bare(p.short), (p.long.nbytes, p.long.rows), (p.short.nbytes, p.short.rows))
                for p in probes.values()
            ]
        )
        found = []
        for quant, pair in probes.items():
            # Long rows tell the cost per byte: most weights of most models lie in such.
            long, wide = pair.long, bare(pair.long)
            columns = tuple(sorted(wide))
            values = tuple(max(wide[n] - long.rows * rows.at(n), 0.3 * wide[n]) / long.nbytes for n in columns)
            curve = Curve(columns=columns, values=values, spread=_spread(long.timed))
            found.append(MatrixCost(quant=quant, seconds_per_byte=curve))
        return tuple(found), rows

    def _cache(self) -> None:
        """Attention over a long context against a short one."""
        recipe = Recipe(
            architecture="llama", name="attention", layers=8, width=256, heads=16, kv_heads=4, ffn=512, quant="Q8_0"
        )
        path, depth, columns = self.file(recipe), 1024, (1, 2, 4, 8, 16)
        near = self.passes(path, columns, 0.8, "attention, short context")
        far = self.passes(path, columns, 1.5, "attention, long context", depth=depth)
        nbytes = self.describe(path).kv_bytes(depth)
        shared = [n for n in columns if n in near.passes and n in far.passes]
        self.update(
            cache=Curve(
                columns=tuple(shared),
                values=tuple(max(far.passes[n].seconds - near.passes[n].seconds, 1e-9) / nbytes for n in shared),
                spread=_spread(far),
            )
        )

    def _families(self) -> None:
        layers = dict(self.calibration.layers)
        for family in ("sandwich", "experts", "delta", "convolution", "latent"):
            recipe = _thin(family)
            path, message = self.file(recipe), f"time per layer: {family} blocks"
            recurrent = self.describe(path).is_recurrent
            timed = (
                self.prompts(path, _FEW, _SMALL, 1.0, message) if recurrent else self.passes(path, _FEW, 1.0, message)
            )
            layers[family] = self._layer_curve(recipe, timed)
        self.update(layers=layers)

    def _layer_curve(self, recipe: Recipe, timed: PassTimings) -> Curve:
        """Seconds per block by columns: what the matrices of a narrow model leave unexplained."""
        known = self._without_layers(self.file(recipe), tuple({1, *timed.passes}), timed.verified)
        first = max((timed.step.seconds - known[1]) / recipe.layers, 1e-9)
        rest = {n: (t.seconds - known[n]) / recipe.layers for n, t in timed.passes.items() if n > 1}
        return through_first(first, rest)[0].model_copy(update={"spread": _spread(timed)})

    def _without_layers(self, path: Path, columns: Sequence[int], verified: bool) -> dict[int, float]:
        """What the calibration so far charges for a model, time per layer and state left out [s]."""
        model = self.describe(path)
        zero = Curve(columns=(1,), values=(0.0,))
        bare = self.calibration.model_copy(
            update={"layers": {family_of_architecture(model.architecture): zero}, "state": zero}
        )
        return self._predict(bare, model, columns, verified)

    def _predict(
        self, calibration: Calibration, model: ModelDescription, columns: Sequence[int], verified: bool
    ) -> dict[int, float]:
        """Passes of ``n`` tokens as a calibration charges them, all rows with output and sampled or only one [s]."""
        from advisor.performance.passes import plan_of

        costs = MeasuredCosts(calibration)
        plan = plan_of(model, self.setup(), costs)
        sampled = costs.verified_token(model.vocabulary_size)
        return {n: plan.seconds(n, n if verified else 1) + (n if verified else 1) * sampled for n in columns}

    def setup(self) -> Setup:
        """A stand-in: which machine it is does not matter, every tier gets our costs."""
        device = Device(
            slug="here",
            name="this machine",
            vendor="",
            device_class="custom",
            bandwidth=Figure(value=1.0, unit="GB/s", kind="assumed", source="not used"),
        )
        backend = self.calibration.backend
        hardware = Hardware(name="this machine", devices=(device,), backend=backend, source="detected")
        return Setup(hardware=hardware, backend=backend)

    def _experts(self, nbytes: float) -> None:
        found = []
        for quant in EXPERT_TYPES:
            recipe = _wide_experts(quant, nbytes)
            path = self.file(recipe)
            timed = self.passes(path, _FEW, 2.0, f"experts of type {quant}")
            values = self.corrected(timed, recipe.layers)
            none = ExpertCost(quant=quant, read=0.0, pair=0.0)
            free = self.calibration.model_copy(update={"experts": (none,)})
            rest = self._predict(free, self.describe(path), tuple(values), True)
            one = sum(g.bytes for g in self.describe(path).weights if g.role == "experts") / recipe.experts
            found.append(_fit_experts(quant, recipe, one, {n: values[n] - rest[n] for n in values}, _spread(timed)))
            self.drop(recipe)
        self.update(experts=tuple(found))

    def _ngram(self) -> None:
        """Rounds without a draft pass: what they cost beyond their verification is the round itself."""
        lengths = (1, 4)
        extra = [self.rounds(_NARROW, "ngram-simple", k, "n-gram rounds").timing.seconds for k in lengths]
        bare = [self._bare_round("ngram-simple", _NARROW, None, k) for k in lengths]
        self.update(rounds={"ngram-simple": sum(e - b for e, b in zip(extra, bare, strict=True)) / len(lengths)})

    def _vocabulary(self) -> None:
        """Sampling rows of many logits, with a model that is nearly all vocabulary.

        Rounds compute the logits of all their rows, but sample only up to the first rejection: all accepted against all
        rejected. An engine that cannot force either gets rounds of many rows against rounds of few.
        """
        recipe = Recipe(
            architecture="llama", name="vocabulary", layers=2, width=64, heads=1, kv_heads=1, ffn=128, quant="Q8_0",
            vocabulary=65536,
        )  # fmt: skip
        measure = self._sampled_rows if self.engine.capabilities.synth else self._sampled_rounds
        self.update(sampling=max(0.0, measure(recipe)) / recipe.vocabulary)

    def _sampled_rows(self, recipe: Recipe) -> float:
        """Sampling one row [s], from rounds that accept everything and rounds that reject everything, in turn."""
        k = 7
        self.say("sampling")
        accepting = self.drafting(recipe, "ngram-simple", k, None)
        rejecting = accepting.model_copy(update={"synth_rates": forced_rates(_NEVER, k)})
        with (
            Server(self.engine, accepting, cancel=self.cancel) as one,
            Server(self.engine, rejecting, cancel=self.cancel) as other,
        ):

            def alternate(meter: ContentionMeter) -> float:
                timings: tuple[list[float], list[float]] = ([], [])
                for i in range(1 + max(3, round(8 * self.patience))):
                    for server, rounds, seen in zip((one, other), (12, 1), timings, strict=True):
                        timed = time_rounds(
                            server, recipe.vocabulary, k, rounds=rounds, repetitions=1, first=i, meter=meter
                        )
                        if i:  # the first warms up
                            seen.append(timed.timing.seconds)
                return median(timings[0]) - median(timings[1])

            return self.quietly(alternate) / k

    def _sampled_rounds(self, recipe: Recipe) -> float:
        """The same from rounds of many rows and rounds of few, less what their passes cost."""
        few, many = 1, 7
        free = self.calibration.model_copy(update={"sampling": 0.0})
        low, high = (
            self.rounds(recipe, "ngram-simple", k, "sampling").timing.seconds
            - self._round(free, "ngram-simple", recipe, None, k)[0]
            for k in (few, many)
        )
        return (high - low) / (many - few)

    def _in_rounds(self) -> None:
        """Rounds without a draft pass, on a model of ordinary shape: what the parts of a pass leave unexplained."""
        over = []
        for k in (1, 3, 5, 7):
            measured = self.ratio(_ORDINARY, "ngram-simple", k, "rounds of an ordinary model").ratio
            over.append(measured / self._round(self.calibration, "ngram-simple", _ORDINARY, None, k)[1])
        low, high = _IN_ROUNDS
        self.update(in_rounds=min(max(median(over), low), high))

    def _drafting(self) -> None:
        """Rounds of narrow models: what they cost beyond their passes is overhead of drafting."""
        small, rounds = _NARROW, dict(self.calibration.rounds)
        drafting: dict[str, DraftCost] = {}
        big = _thin("dense", layers=4, vocabulary=_LARGE, width=256, heads=4)
        tall = _thin("dense", layers=24)
        sample = {
            (_SMALL, 4): self._token("draft-simple", small, small, rounds),
            (_LARGE, 4): self._token("draft-simple", big, big, rounds),
            (_SMALL, 24): self._token("draft-simple", small, tall, rounds),
        }
        per_entry = max(0.0, (sample[_LARGE, 4] - sample[_SMALL, 4]) / (_LARGE - _SMALL))
        per_layer = max(0.0, (sample[_SMALL, 24] - sample[_SMALL, 4]) / 20)
        # The constant may be negative: a draft pass is charged a whole step, but skips the server's share of it.
        constant = sample[_SMALL, 4] - per_entry * _SMALL - per_layer * 4
        drafting["draft-simple"] = DraftCost(constant=constant, per_entry=per_entry, per_layer=per_layer)
        self.update(rounds=rounds, drafting=drafting)

        hybrid = _thin("delta")
        wide = _thin("delta", layers=4, vocabulary=_LARGE)
        if self.engine.capabilities.supports("draft-mtp"):
            low = self._token("draft-mtp", hybrid, None, rounds)
            high = self._token("draft-mtp", wide, None, rounds)
            slope = max(0.0, (high - low) / (_LARGE - _SMALL))
            drafting["draft-mtp"] = DraftCost(constant=low - slope * _SMALL, per_entry=slope)
        if self.engine.capabilities.supports("draft-eagle3") and self.engine.capabilities.synth:
            head = Recipe(
                architecture="eagle3", name="head", layers=1, width=128, heads=2, kv_heads=1, ffn=256, quant="Q8_0",
                target_layers=(1, 2, 3), target_width=128,
            )  # fmt: skip
            low = self._token("draft-eagle3", small, head, rounds)
            slope = drafting["draft-mtp"].per_entry if "draft-mtp" in drafting else 0.0
            drafting["draft-eagle3"] = DraftCost(constant=low - slope * _SMALL, per_entry=slope)
        self.update(rounds=rounds, drafting=drafting)

    def _token(self, method: Method, target: Recipe, draft: Recipe | None, rounds: dict[str, float]) -> float:
        """Overhead of one drafted token [s]; notes the overhead of a round on the way."""
        lengths = (1, 5)
        extra = []
        for k in lengths:
            timed = self.rounds(target, method, k, f"{method} rounds", draft)
            extra.append(timed.timing.seconds - self._bare_round(method, target, draft, k))
        token = (extra[1] - extra[0]) / (lengths[1] - lengths[0])
        rounds.setdefault(method, extra[0] - token * lengths[0])
        return token

    def _bare_round(self, method: Method, target: Recipe, draft: Recipe | None, k: int) -> float:
        """A full round as the calibration so far would charge it, without overheads of drafting [s]."""
        bare = self.calibration.model_copy(
            update={"drafting": {method: DraftCost(constant=0.0)}, "rounds": {method: 0.0}}
        )
        return self._round(bare, method, target, draft, k)[0]

    def _round(
        self, calibration: Calibration, method: Method, target: Recipe, draft: Recipe | None, k: int
    ) -> tuple[float, float]:
        """A round with every draft accepted: seconds, and in decode steps."""
        from advisor.speculation.rounds import round_of

        one = round_of(
            self.describe(self.file(target)),
            self.describe(self.file(draft)) if draft else None,
            method,
            self.setup(),
            k,
            positions=(1.0,),
            depth=KNOWN + 6 * (k + 1),
            costs=MeasuredCosts(calibration),
        )
        return one.cost.milliseconds / 1000, one.cost.cost

    def _state(self) -> None:
        """A hybrid with much state against the thin one: per byte of state by columns, per snapshot, per checkpoint."""
        heavy = _HEAVY
        path = self.file(heavy)
        timed = self.prompts(path, _FEW, _SMALL, 1.5, "recurrent state")
        values = self.corrected(timed, heavy.layers)
        model = self.describe(path)
        zero = self.calibration.model_copy(update={"state": Curve(columns=(1,), values=(0.0,)), "state_copy": 0.0})
        rest = self._predict(zero, model, tuple(values), False)
        columns = tuple(sorted(values))
        # The time per delta layer was taken with the thin model's own state in it: separate the two.
        thin = _thin("delta")
        own = self.describe(self.file(thin)).state_bytes / thin.layers
        more = model.state_bytes - own * heavy.layers
        state = Curve(
            columns=columns,
            values=tuple(max(values[n] - rest[n], 0.0) / more for n in columns),
            spread=_spread(timed),
        )
        layer = self.calibration.layers["delta"]
        freed = tuple(max(v - own * state.at(n), 0.2 * v) for n, v in zip(layer.columns, layer.values, strict=True))
        self.update(
            state=state, layers={**self.calibration.layers, "delta": layer.model_copy(update={"values": freed})}
        )

    def _rollback(self) -> None:
        """Snapshots (MTP) and checkpoints (n-gram) of a hybrid with much state."""
        thin, heavy = _thin("delta"), _HEAVY
        model = self.describe(self.file(heavy))
        if self.engine.capabilities.supports("draft-mtp"):
            k = 4
            seconds = self.rounds(heavy, "draft-mtp", k, "snapshots of state").timing.seconds
            known = self._round(self.calibration.model_copy(update={"state_copy": 0.0}), "draft-mtp", heavy, None, k)[0]
            self.update(state_copy=max(0.0, seconds - known) / model.state_bytes / k)
        save = {}
        for recipe in (thin, heavy):
            seconds = self.rounds(recipe, "ngram-simple", 3, "checkpoints of state").timing.seconds
            free = self.calibration.model_copy(update={"checkpoint": 0.0, "checkpoint_constant": 0.0})
            save[self.describe(self.file(recipe)).state_bytes] = max(
                0.0, seconds - self._round(free, "ngram-simple", recipe, None, 3)[0]
            )
        (small, low), (large, high) = sorted(save.items())
        constant, slope = _line((small, low), (large, high))
        self.update(checkpoint=max(slope, 0.0), checkpoint_constant=max(constant, 0.0))

    def _check(self) -> None:
        """Rounds of other models than those measured: how well the parts add up."""
        target = Recipe(
            architecture="llama", name="check", layers=10, width=640, heads=10, kv_heads=2, ffn=2560, quant="Q8_0",
            vocabulary=8192,
        )  # fmt: skip
        draft = Recipe(
            architecture="llama", name="check-draft", layers=4, width=256, heads=4, kv_heads=2, ffn=1024, quant="Q4_0",
            vocabulary=8192,
        )  # fmt: skip
        hybrid = Recipe(
            architecture="qwen35", name="check-hybrid", layers=12, width=768, heads=12, kv_heads=4, ffn=2048,
            quant="Q8_0", vocabulary=8192, mtp=True, state=64, key_heads=4, value_heads=8,
        )  # fmt: skip
        routed = Recipe(
            architecture="qwen3moe", name="check-experts", layers=6, width=512, heads=8, kv_heads=4, experts=32,
            experts_used=4, expert_width=384, quant="Q8_0", vocabulary=2048,
        )  # fmt: skip
        checks: list[Check] = []
        pairs: tuple[tuple[Recipe, Recipe | None, Method, int], ...] = (
            (target, draft, "draft-simple", 3),
            (hybrid, None, "draft-mtp", 3),
            (routed, None, "ngram-simple", 4),
            (target, None, "ngram-simple", 7),
        )
        for one, helper, method, k in pairs:
            if not self.engine.capabilities.supports(method):
                continue
            measured = self.ratio(one, method, k, f"checking {one.name}, {method}", helper).ratio
            checks.append(
                Check(
                    name=one.name,
                    method=method,
                    draft_max=k,
                    measured=measured,
                    predicted=self._round(self.calibration, method, one, helper, k)[1],
                )
            )
        self.update(checks=tuple(checks))

    def _real(self, path: Path) -> None:
        """A model of the user: what it costs over what its parts add up to."""
        model = self.describe(path)
        if model.kind != "model":
            raise EngineError(f"{path.name} is a {model.kind} file, not a model.", "Name a target model.")
        timed = self.prompts(path, _FEW, model.vocabulary_size or _SMALL, 4.0, f"your model {path.name}")
        values = self.corrected(timed, len(model.layers))
        # These are prompts, no rounds: what rounds add is charged on top of the correction.
        alone = self.calibration.model_copy(update={"in_rounds": 1.0})
        parts = self._predict(alone, model, tuple(values), False)
        columns = tuple(sorted(values))
        ratio = Curve(columns=columns, values=tuple(values[n] / parts[n] for n in columns), spread=_spread(timed))
        others = tuple(c for c in self.calibration.corrections if c.architecture != model.architecture)
        self.update(corrections=(*others, Correction(architecture=model.architecture, model=model.name, ratio=ratio)))


def per_row(
    wide: dict[int, float], narrow: dict[int, float], long: tuple[float, float], short: tuple[float, float]
) -> dict[int, float]:
    """Seconds per row of a matrix by columns, on top of those per byte: a difference of noisy times, of any sign.

    Args:
        wide: seconds by columns of passes over matrices with long rows.
        narrow: the same for short rows.
        long: bytes and rows of the first.
        short: bytes and rows of the second.
    """
    lever = short[1] / short[0] - long[1] / long[0]
    return {n: (narrow[n] / short[0] - wide[n] / long[0]) / lever for n in sorted(narrow) if n in wide}


def pooled_rows(rows: Sequence[dict[int, float]]) -> Curve:
    """Cost per row by columns, never below zero: medians over types, which differ less than one is known.

    A decode step uses other kernels than longer passes, which share theirs: one value for it, a straight line for them.
    """
    middle = {n: median(r[n] for r in rows) for n in sorted(set.intersection(*(set(r) for r in rows)))}
    first, longer = max(middle.pop(1), 0.0), list(middle.items())
    slopes = [(b - a) / (m - n) for i, (n, a) in enumerate(longer) for m, b in longer[i + 1 :]]
    slope = max(0.0, median(slopes)) if slopes else 0.0
    start = max(0.0, median(v - slope * n for n, v in longer)) if longer else first
    return Curve(columns=(1, *(n for n, _ in longer)), values=(first, *(start + slope * n for n, _ in longer)))


def through_first(first: float, others: dict[int, float]) -> tuple[Curve, float]:
    """Small operations by columns: a straight line through the decode step, and what all others lie above it.

    Launches do not depend on columns and the rest grows with them. Longer passes are measured one at a time, which
    costs each the same on top (a new graph, threads that wake up); their slope is free of it.

    Args:
        first: time of one column.
        others: time of more columns, with that surcharge; one column is ignored.

    Returns:
        The line, and the surcharge.
    """
    points = sorted((n, value) for n, value in others.items() if n > 1)
    slopes = [(b - a) / (m - n) for i, (n, a) in enumerate(points) for m, b in points[i + 1 :]]
    slope = max(0.0, median(slopes)) if slopes else 0.0
    columns = (1, *(n for n, _ in points))
    line = tuple(first + slope * (n - 1) for n in columns)
    over = [value - at for (_, value), at in zip(points, line[1:], strict=True)]
    return Curve(columns=columns, values=line), max(0.0, median(over)) if over else 0.0


def without_spikes(values: dict[int, float]) -> dict[int, float]:
    """Times by columns with what only a disturbance explains cut off.

    Kernels work in steps, so a longer pass may be cheaper than a shorter one, but by no more than ``_STAIR``.
    """
    found: dict[int, float] = {}
    limit = math.inf
    for n in sorted(values, reverse=True):
        found[n] = min(values[n], limit)
        limit = _STAIR * found[n]
    return {n: found[n] for n in values}


def _line(one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float]:
    """Intercept and slope of the line through two points."""
    slope = (two[1] - one[1]) / (two[0] - one[0])
    return one[1] - slope * one[0], slope


def _spread(timed: PassTimings) -> float:
    """Typical relative spread of the medians of a set of passes."""
    values = [t.spread / math.sqrt(t.count) for t in timed.passes.values()]
    return round(sum(values) / len(values), 4) if values else 0.0


def _fit_experts(quant: str, recipe: Recipe, one: float, seconds: dict[int, float], spread: float) -> ExpertCost:
    """Seconds per byte per distinct expert and per (token, expert) pair; non-negative least squares, relative.

    Args:
        quant: type of the experts.
        recipe: the model they were measured on.
        one: bytes of one expert in all layers.
        seconds: what its passes of ``n`` tokens spent on experts.
        spread: relative spread of the passes.
    """
    import numpy as np
    from scipy.optimize import nnls

    rows, right = [], []
    used = recipe.experts_used
    for n, value in seconds.items():
        if value <= 0:
            continue
        distinct = recipe.experts * (1 - (1 - used / recipe.experts) ** n)
        rows.append([one * distinct / value, one * used * n / value])
        right.append(1.0)
    if not rows:
        raise EngineError(f"Experts of type {quant} could not be told apart from the rest of the pass.", "Try again.")
    (read, pair), _ = nnls(np.asarray(rows), np.asarray(right))
    return ExpertCost(quant=quant, read=float(read), pair=float(pair), spread=spread)


def disturbed(calibration: Calibration) -> str | None:
    """A warning if other programs used the machine meanwhile, or if it contradicts itself."""
    if calibration.contended:
        return (
            f"Other programs used {calibration.contention:.0%} of the processors during the calibration: "
            "its times are too long. Close them and calibrate again."
        )
    if (check := calibration.failed) is not None:
        return (
            f"Something disturbed the calibration: it expects {check.predicted:.1f} decode steps for a round of "
            f"{check.method} that took {check.measured:.1f}. Calibrate again."
        )
    return None


def try_describe(path: Path) -> str | None:
    """Why a file cannot be calibrated with; None = it can."""
    from advisor.models.reference import describe

    try:
        model = describe(str(path))
    except AdvisorError as error:
        return str(error)
    return None if model.kind == "model" else f"{path.name} is a {model.kind} file, not a model."
