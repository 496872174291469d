"""What acceptance to expect before anything has run, how sure that is, and what it rests on.

The model is a linear mixed model on the logit of the first position's conditional acceptance:

    theta = 1 + method + (method, family) + (method, target) + (method, draft) + task + (task, method)
              + slopes * (temperature, low bits of target and draft, size ratio)
              + author + setup + prompt + noise
    logit a_i = theta + offset[method, i]

Every bracket is a random effect with a variance fitted to published runs (``benchmarks/fit_acceptance.py``), so a
group with many runs speaks for itself and a sparse one borrows from its neighbours. A user's own runs are further
observations of the same model, all with one author: the user. ``data/acceptance.json`` holds the joint posterior
(mean and covariance of the effects); evaluating it is a few hundred multiplications.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from advisor.base import Range
from advisor.errors import InputError
from advisor.models.description import ModelDescription
from advisor.speculation.conversions import (
    acceptance,
    positions_from_theta,
    theta_from_acceptance,
)
from advisor.speculation.prediction import AcceptanceEstimate, Method, Task

Z80 = 1.2815515655446004
"""Standard normal quantile at 0.9: the edge of a central 80 % interval."""
POSITIONS = 8
"""Draft positions with an offset of their own; later ones keep the last."""
LEVEL = 0.8
HEADS = frozenset({"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"})
NGRAM = frozenset({"ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"})
LOW_BITS = 4.5
"""Below this many bits per weight a quantisation is counted as low."""

Effects = tuple[tuple[str, float], ...]
"""Sparse row of the design: (effect name, value)."""
Kind = Literal["measured", "published", "fitted", "assumed"]


class Evidence(NamedTuple):
    """Published runs that share method, target, draft, task and author; ``runs`` of them."""

    method: str
    family: str
    target: str
    draft: str
    task: str
    author: str
    runs: int


class OwnRun(NamedTuple):
    """The user's own runs of one pair on one task at one draft length, pooled: counters of ``runs`` runs."""

    method: str
    target: str
    """Name of the model file, or a catalogue slug."""
    draft: str
    task: str
    draft_max: int
    drafted: int
    accepted: int
    runs: int = 1
    prompts: int = 1
    """Different prompts among them: what one prompt shows says less of the next than what many do."""
    temperature: float = 0.0


class Model(NamedTuple):
    """The fitted posterior of ``data/acceptance.json``, ready for use."""

    place: dict[str, int]
    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    sd: dict[str, float]
    prior_mean: dict[str, float]
    offsets: dict[str, tuple[float, ...]]
    evidence: tuple[Evidence, ...]
    ngram: dict[str, list[float]]
    ngram_runs: dict[str, list[int]]
    families: dict[str, str]


class Query(NamedTuple):
    """What a pair looks like to the model: the first arguments of :func:`row`, in their order."""

    method: Method
    family: str
    target: str
    draft: str
    task: str | None
    temperature: float
    target_bits: float
    draft_bits: float
    log_ratio: float


@lru_cache(maxsize=1)
def model() -> Model:
    """The shipped posterior.

    Raises:
        OSError: the data file is missing from the installation.
    """
    from advisor.resources import resource

    raw = json.loads(resource("data", "acceptance.json").read_text(encoding="utf-8"))
    return parse(raw)


def parse(raw: Any) -> Model:
    """A :class:`Model` from the parsed JSON of ``data/acceptance.json``."""
    lower = raw["covariance_lower"]
    n = len(lower)
    return Model(
        place={name: i for i, name in enumerate(raw["effects"])},
        mean=tuple(raw["mean"]),
        covariance=tuple(tuple(lower[max(i, j)][min(i, j)] for j in range(n)) for i in range(n)),
        sd=raw["sd"],
        prior_mean=raw["prior_mean"],
        offsets={method: tuple(values) for method, values in raw["offsets"].items()},
        evidence=tuple(Evidence(*line) for line in raw["evidence"]),
        ngram=raw["ngram"],
        ngram_runs=raw["ngram_runs"],
        families=raw["families"],
    )


# ---------------------------------------------------------------- what a pair looks like to the model

_SIZE = re.compile(r"[-_ ](?:\d+x)?\d+(?:\.\d+)?[bm](?:[-_ ]|$)")


def family_of(slug: str, families: dict[str, str]) -> str:
    """Family of a model slug: its vocabulary family if known, else the part of the name before the size."""
    if slug in families:
        return families[slug]
    stem = _SIZE.split(slug, maxsplit=1)[0]
    for known, family in families.items():
        if _SIZE.split(known, maxsplit=1)[0] == stem:
            return family
    return stem


def slug_of(description: ModelDescription) -> str:
    """Catalogue slug, else the model's name in the catalogue's spelling."""
    return description.catalogue_slug or slug_of_name(description.name)


_SUFFIX = re.compile(
    r"[-.](?:instruct|it|chat|gguf|hf|ud|f16|f32|bf16|mxfp4|nvfp4|i?q\d[\w-]*|\d{5}-of-\d{5})(?=[-.]|$)"
)


@lru_cache(maxsize=1024)
def slug_of_name(name: str) -> str:
    """``SmolLM2-135M-Instruct.Q4_1.gguf`` in the spelling of the catalogue: ``smollm2-135m``."""
    return _SUFFIX.sub("", name.lower().replace("_", "-").replace(" ", "-").replace(":", "-")).strip("-.")


def bits_per_weight(description: ModelDescription) -> float:
    """Mean bits of a weight in the file [bits]; 16 if the file says nothing."""
    total = description.total_parameters
    return 8 * sum(g.bytes for g in description.weights) / total if total else 16.0


def row(
    method: str,
    family: str,
    target: str,
    draft: str,
    task: str | None,
    temperature: float,
    target_bits: float,
    draft_bits: float,
    log_ratio: float,
    author: str,
    setup: str,
    prompt: str,
    prompts: int = 1,
) -> Effects:
    """Design row of one run, or of several pooled over ``prompts`` different prompts.

    ``log_ratio`` is log10(target / draft active parameters); only a separate draft has it.
    """
    effects = [
        ("one", 1.0),
        (f"method:{method}", 1.0),
        (f"family:{method}|{family}", 1.0),
        (f"target:{method}|{target}", 1.0),
        (f"author:{author}", 1.0),
        (f"setup:{setup}", 1.0),
    ]
    if draft:
        effects.append((f"draft:{method}|{target}|{draft}", 1.0))
    if task and task != "unknown":
        effects.append((f"task:{task}", 1.0))
        effects.append((f"tasked:{task}|{method}", 1.0))
    content = "mix" if task in (None, "mixed", "unknown") else "prompt"
    effects.append((f"{content}:{prompt}", 1 / math.sqrt(max(prompts, 1))))
    if temperature > 0:
        effects.append(("temperature", temperature))
    if target_bits < LOW_BITS and method in HEADS:
        effects.append((f"low target bits:{'inside' if method == 'draft-mtp' else 'separate'}", LOW_BITS - target_bits))
    if draft_bits < LOW_BITS and draft:
        effects.append(("low draft bits", LOW_BITS - draft_bits))
    if method == "draft-simple":
        effects.append(("size ratio", log_ratio - 1.0))
    return tuple(effects)


# ---------------------------------------------------------------- Gaussian arithmetic on sparse rows


def prior_mean(name: str, means: dict[str, float]) -> float:
    """Prior mean of an effect: its own, else that of its kind, else 0."""
    return means.get(name, means.get(name.partition(":")[0], 0.0))


def _prior_sd(name: str, m: Model) -> float:
    return m.sd[name.partition(":")[0]]


def _moments(effects: Effects, m: Model) -> tuple[float, float]:
    """Posterior mean and variance of a design row; effects never seen keep their prior."""
    known = [(m.place[name], value) for name, value in effects if name in m.place]
    mean = sum(m.mean[i] * v for i, v in known)
    variance = 0.0
    for i, v in known:
        line = m.covariance[i]
        variance += v * sum(line[j] * w for j, w in known)
    for name, value in effects:
        if name not in m.place:
            mean += prior_mean(name, m.prior_mean) * value
            variance += (value * _prior_sd(name, m)) ** 2
    return mean, variance


def _covariance(a: Effects, b: Effects, m: Model) -> float:
    """Posterior covariance of two design rows."""
    total = 0.0
    values = dict(b)
    known_b = [(m.place[name], w) for name, w in b if name in m.place]
    for name, v in a:
        if name in m.place:
            line = m.covariance[m.place[name]]
            total += v * sum(line[j] * w for j, w in known_b)
        elif name in values:
            total += v * values[name] * _prior_sd(name, m) ** 2
    return total


def _cholesky(matrix: list[list[float]]) -> list[list[float]]:
    """Lower factor of a small symmetric positive definite matrix."""
    n = len(matrix)
    low = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            s = matrix[i][j] - sum(low[i][x] * low[j][x] for x in range(j))
            low[i][j] = math.sqrt(max(s, 1e-12)) if i == j else s / low[j][j]
    return low


def _forward(low: list[list[float]], right: Sequence[float]) -> list[float]:
    """low^-1 right."""
    out: list[float] = []
    for i, value in enumerate(right):
        out.append((value - sum(low[i][x] * out[x] for x in range(i))) / low[i][i])
    return out


def _backward(low: list[list[float]], right: Sequence[float]) -> list[float]:
    """low^-T right."""
    n = len(right)
    out = [0.0] * n
    for i in reversed(range(n)):
        out[i] = (right[i] - sum(low[x][i] * out[x] for x in range(i + 1, n))) / low[i][i]
    return out


# ---------------------------------------------------------------- the estimate


def estimate(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    *,
    task: Task | None = None,
    temperature: float = 0.0,
    k: int,
    results: Sequence[OwnRun] | None = None,
) -> AcceptanceEstimate:
    """Acceptance to expect of this pair at draft length ``k``.

    Args:
        target: the model whose output is wanted.
        draft: draft model or drafter head; None for MTP inside the target and for n-gram methods.
        method: llama.cpp's method name.
        task: kind of text; None = not known, which widens the range by the spread between tasks.
        temperature: sampling temperature of the target.
        k: most tokens drafted per round.
        results: the user's own runs; None = those in the results file, if there is one.

    Raises:
        InputError: ``k`` below 1.
    """
    runs = own_runs() if results is None else results
    q = query(target, draft, method, task, temperature)
    # Few enough that hashing them stays cheap: this is asked hundreds of times in a scan.
    own = tuple(o for o in runs if o.method == method)[-_OWN_LIMIT:]
    if own:
        names = _names(target)
        drafts = _names(draft) if draft is not None else frozenset()
        # A file may be recognised by its content: its own runs go by its recognised name.
        own = tuple(
            o._replace(
                target=q.target if o.target in names else o.target, draft=q.draft if o.draft in drafts else o.draft
            )
            for o in own
        )
    return at_length(_latent(q, own), k)


def _names(model: ModelDescription) -> frozenset[str]:
    return frozenset((model.name, *(f.replace("\\", "/").rpartition("/")[2] for f in model.files)))


def query(
    target: ModelDescription, draft: ModelDescription | None, method: Method, task: str | None, temperature: float
) -> Query:
    """The features of a pair."""
    m = model()
    slug = slug_of(target)
    family = target.tokenizer.family if target.tokenizer and target.tokenizer.family else family_of(slug, m.families)
    ratio = 1.0
    if draft is not None and method == "draft-simple":
        ratio = math.log10(max(target.active_parameters, 1) / max(draft.active_parameters, 1))
    return Query(
        method,
        family,
        slug,
        slug_of(draft) if draft is not None else "",
        task,
        temperature,
        bits_per_weight(target),
        bits_per_weight(draft) if draft is not None else 16.0,
        min(max(ratio, 0.0), 3.0),
    )


@lru_cache(maxsize=512)
def _latent(q: Query, own: tuple[OwnRun, ...]) -> AcceptanceEstimate:
    return infer(q, own, model())


def infer(q: Query, own: Sequence[OwnRun], m: Model) -> AcceptanceEstimate:
    """The posterior for a query, without a draft length yet; see :func:`at_length`."""
    if q.method in NGRAM:
        return _ngram(q, m)
    effects = row(*q, author="you", setup="this one", prompt="the next")
    if q.task is None:
        # Nothing is known of the text: it may be any task.
        effects = (*effects, ("task:of the next", 1.0))
    mean, variance = _moments(effects, m)
    mine = tuple(o for o in own if o.method == q.method)[-_OWN_LIMIT:]
    if mine:
        rows, low, weights = _own_system(mine, q.method)  # of the shipped posterior
        cross = [_covariance(effects, r, m) for r in rows]
        mean += sum(c * w for c, w in zip(cross, weights, strict=True))
        half = _forward(low, cross)
        variance -= sum(h * h for h in half)
    sd = math.sqrt(max(variance, 1e-6))
    offsets = m.offsets.get(q.method, m.offsets["default"])
    kind, evidence = _provenance(q, mine, m)
    return AcceptanceEstimate(
        rate=Range(median=0.0, low=0.0, high=0.0),
        positions=(),
        kind=kind,
        evidence=evidence,
        task=q.task if q.task is None else _task(q.task),
        logit_mean=mean,
        logit_sd=sd,
        offsets=offsets,
        draft_share=1.0,
    )


def _ngram(q: Query, m: Model) -> AcceptanceEstimate:
    """N-gram methods: whether they draft at all depends on the text alone, so published figures say little."""
    grounded = q.task in m.ngram
    share, theta, sd = m.ngram[q.task] if grounded and q.task else m.ngram.get(q.method, m.ngram["default"])
    runs, sources = m.ngram_runs.get(q.method, [0, 0])
    known = runs > 0 and not grounded
    evidence = (
        f"{_count(runs, 'run')}, {_count(sources, 'source')}: on ordinary prompts next to nothing is accepted"
        if known
        else "assumed: depends on how much of the text repeats"
    )
    return AcceptanceEstimate(
        rate=Range(median=0.0, low=0.0, high=0.0),
        positions=(),
        kind="published" if known else "assumed",
        evidence=f"{evidence}; replay your own text with `advisor acceptance --sample`",
        task=None if q.task is None else _task(q.task),
        logit_mean=theta,
        logit_sd=sd,
        draft_share=share,
    )


def _task(name: str) -> Task:
    return name  # type: ignore[return-value]  # came in as a Task


_OWN_LIMIT = 24
"""Newest groups of own runs that are used; the cost grows with the square."""


@lru_cache(maxsize=64)
def _own_system(mine: tuple[OwnRun, ...], method: str) -> tuple[list[Effects], list[list[float]], list[float]]:
    """Design rows of own runs, the Cholesky factor of their covariance, and covariance^-1 times their residuals."""
    m = model()
    offsets = m.offsets.get(method, m.offsets["default"])
    rows = [_own_row(o, m) for o in mine]
    seen = [
        observe(o.accepted, o.drafted, o.draft_max, offsets, m.sd["noise"] / math.sqrt(max(o.runs, 1))) for o in mine
    ]
    gram = [[_covariance(a, b, m) for b in rows] for a in rows]
    for i, (_, noise) in enumerate(seen):
        gram[i][i] += noise
    low = _cholesky(gram)
    residual = [theta - _moments(r, m)[0] for (theta, _), r in zip(seen, rows, strict=True)]
    return rows, low, _backward(low, _forward(low, residual))


def _own_row(o: OwnRun, m: Model) -> Effects:
    slug = slug_of_name(o.target)
    return row(
        o.method,
        family_of(slug, m.families),
        slug,
        slug_of_name(o.draft) if o.draft else "",
        o.task or None,
        o.temperature,
        16.0,
        16.0,
        1.0,
        author="you",
        setup="this one",
        prompt=f"own {o.task}",
        prompts=o.prompts,
    )


def observe(accepted: float, drafted: float, k: int, offsets: Sequence[float], noise: float) -> tuple[float, float]:
    """Theta behind ``accepted`` of ``drafted`` tokens at draft length ``k``, and its variance.

    Drafts of one round stand and fall together, so a run of ``drafted / k`` rounds holds about that many independent
    trials per position; half a trial is added on both sides so that 0 and all remain finite.
    """
    rate = (accepted + 0.5) / (drafted + 1)
    theta = theta_from_acceptance(rate, k, offsets)
    step = 1e-3
    slope = (
        acceptance(positions_from_theta(theta + step, k, offsets))
        - acceptance(positions_from_theta(theta - step, k, offsets))
    ) / (2 * step)
    trials = max(drafted / math.sqrt(k), 1.0)
    return theta, rate * (1 - rate) / trials / max(slope, 1e-4) ** 2 + noise**2


def _provenance(q: Query, mine: Sequence[OwnRun], m: Model) -> tuple[Kind, str]:
    pair = [o for o in mine if (slug_of_name(o.target), slug_of_name(o.draft)) == (q.target, q.draft)]
    same = [e for e in m.evidence if e.method == q.method]
    exact = [e for e in same if e.target == q.target and e.draft == q.draft]
    runs = sum(e.runs for e in same)
    sources = len({e.author for e in same})
    parts = []
    if mine:
        count = sum(o.runs for o in pair) or sum(o.runs for o in mine)
        parts.append(f"{count} of your own runs{'' if pair else ' of other pairs'}")
    if same:
        nearest = max(same, key=lambda e: _nearness(e, q))
        name = nearest.target + (f" + {nearest.draft}" if q.method == "draft-simple" else f" {_SHORT[q.method]}")
        text = nearest.task if nearest.task not in ("mixed", "unknown") else "mixed text"
        parts.append(f"{_count(runs, 'run')}, {_count(sources, 'source')}, nearest: {name} on {text}")
    if pair:
        return "measured", "; ".join(parts)
    if exact:
        return "published", "; ".join(parts)
    if parts:
        return "fitted", "; ".join(parts)
    return "assumed", f"no run of {q.method} with a stated acceptance is known; a wide guess from the other methods"


_SHORT = {"draft-mtp": "MTP", "draft-eagle3": "EAGLE-3", "draft-dflash": "DFlash", "draft-dspark": "DSpark"}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _nearness(e: Evidence, q: Query) -> tuple[bool, bool, bool, bool, int]:
    return (
        e.target == q.target and e.draft == q.draft,
        e.target == q.target,
        e.family == q.family,
        e.task == (q.task or "mixed"),
        e.runs,
    )


def own_runs() -> tuple[OwnRun, ...]:
    """The user's own runs from the results file, oldest first; empty if there are none.

    Runs with a forced acceptance say nothing about content and are left out, as are records that cannot be read.
    """
    path = _results_file(os.environ.get("ADVISOR_DATA_DIR"))
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return _own_runs(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _results_file(chosen: str | None) -> str:
    del chosen  # part of the key only: the folder depends on it
    from advisor.llamacpp.results import FILE_NAME, data_dir

    return str(data_dir() / FILE_NAME)


@lru_cache(maxsize=4)
def _own_runs(path: str, modified: int, size: int) -> tuple[OwnRun, ...]:
    from pathlib import Path

    from advisor.errors import AdvisorError
    from advisor.llamacpp.results import read_results

    pooled: dict[tuple[str, str, str, str, int], tuple[int, int, int]] = {}
    seen: dict[tuple[str, str, str, str, int], set[str]] = {}
    try:
        records = read_results(Path(path))
    except AdvisorError:
        return ()
    for record in records:
        if record.forced_acceptance is not None or record.method == "none":
            continue
        for measurement in record.measurements:
            for prompt in measurement.prompts:
                if prompt.drafted <= 0:
                    continue
                key = (record.method, record.target, record.draft or "", prompt.task or "", measurement.draft_max)
                drafted, accepted, runs = pooled.pop(key, (0, 0, 0))  # put back at the end: newest last
                pooled[key] = (drafted + prompt.drafted, accepted + prompt.accepted, runs + 1)
                seen.setdefault(key, set()).add(prompt.id)
    return tuple(OwnRun(*key, *sums, prompts=len(seen[key])) for key, sums in pooled.items())


def given(rate: float, k: int, method: Method | None = None) -> AcceptanceEstimate:
    """The estimate for an acceptance the user states: no range, and the shape of ``method`` for other lengths.

    Raises:
        InputError: ``rate`` outside 0..1 or ``k`` below 1.
    """
    offsets: tuple[float, ...] = model().offsets.get(method, ()) if method else ()
    theta = theta_from_acceptance(rate, k, offsets)
    theta = min(max(theta, -30.0), 30.0)
    base = AcceptanceEstimate(
        rate=Range(median=rate, low=rate, high=rate),
        positions=(),
        kind="given",
        evidence=f"{rate:.1%} at draft length {k}, as given",
        logit_mean=theta,
        logit_sd=0.0,
        offsets=offsets,
    )
    return at_length(base, k)


def at_length(base: AcceptanceEstimate, k: int) -> AcceptanceEstimate:
    """The same estimate at another draft length.

    Raises:
        InputError: ``k`` below 1.
    """
    if k < 1:
        raise InputError(f"The draft length must be at least 1, got {k}.")
    low, middle, high = (acceptance(positions(base, k, z)) for z in (-Z80, 0.0, Z80))
    return base.model_copy(
        update={"rate": Range(median=middle, low=low, high=high, level=LEVEL), "positions": positions(base, k)}
    )


def positions(base: AcceptanceEstimate, k: int, z: float = 0.0) -> tuple[float, ...]:
    """Conditional acceptance of the first ``k`` drafts, ``z`` standard deviations above (below) the median."""
    if base.logit_mean is None:
        return base.positions[:k] + base.positions[-1:] * (k - len(base.positions))
    return positions_from_theta(base.logit_mean + z * (base.logit_sd or 0.0), k, base.offsets)


def quantiles(base: AcceptanceEstimate, levels: Iterable[float], k: int) -> tuple[float, ...]:
    """Acceptance at the given probability levels (0..1) and draft length ``k``."""
    from statistics import NormalDist

    normal = NormalDist()
    return tuple(acceptance(positions(base, k, normal.inv_cdf(p))) for p in levels)
