"""What others publish as rules for choosing a draft, checked against a pair, next to what the physics says.

The rules are good habits for dense models of one family. They go wrong in two places, and both are shown: they count
*total* parameters where *active* ones decide, and they take checking for free.
"""

from __future__ import annotations

from typing import Literal

from advisor.base import Frozen
from advisor.models.description import ModelDescription
from advisor.speculation.prediction import Prediction, Task

Status = Literal["met", "not met", "unknown", "not applicable"]
Rule = Literal["same-tokenizer", "ten-times-smaller", "lm-studio-sizes", "low-temperature", "input-grounded", "active"]

LM_STUDIO_DOCS = "LM Studio docs, Speculative Decoding (lmstudio.ai/docs/app/advanced/speculative-decoding)"
HUGGING_FACE = "Hugging Face, Assisted Generation, 2023 (huggingface.co/blog/assisted-generation)"
MOE_ARTICLE = "a published test of LM Studio on one Strix Halo laptop, 2026-09-17"

LM_STUDIO_SIZES: tuple[tuple[float, float | None], ...] = ((3, None), (7, 1), (14, 3), (32, 7))
"""Target size against the largest sensible draft, both in billions of parameters; None = do not draft for it."""
TARGET_SLACK, DRAFT_SLACK = 1.1, 1.3
"""Models are sold under rounded names: 6.7B counts as 7B, 1.24B as 1B, 30.5B as 32B; but 12B is no 14B, 1.5B no 1B."""
TEN_TIMES = 10.0
LOW_TEMPERATURE = 0.5
"""Our reading of "low": the sources name no number."""

_GROUNDED: frozenset[str] = frozenset({"code-edit", "summarise", "extract", "translate", "math"})
_FREE: frozenset[str] = frozenset({"prose"})


class RuleCheck(Frozen):
    """One published rule applied to one pair."""

    rule: Rule
    says: str
    source: str
    status: Status
    fact: str
    """The numbers it was checked with."""
    physics: Literal["agrees", "disagrees", "no opinion"] = "no opinion"
    why: str | None = None
    """Where the physics disagrees: the reason."""


def check_rules(
    target: ModelDescription,
    draft: ModelDescription | None,
    prediction: Prediction | None,
    *,
    task: Task | None = None,
    temperature: float | None = None,
) -> tuple[RuleCheck, ...]:
    """All published rules for this pair.

    Args:
        target: the target.
        draft: the draft model; None or a head (MTP, EAGLE-3, DFlash) makes the size rules not applicable.
        prediction: what the physics says of the pair; None = no opinion.
        task: kind of text, if known.
        temperature: sampling temperature, if known.
    """
    pair = draft if draft is not None and draft.kind == "model" else None
    return (
        _tokenizer(prediction, pair),
        _ten_times(target, pair, prediction),
        _lm_studio(target, pair, prediction),
        _active(target, pair, prediction),
        _temperature(temperature),
        _grounded(task, prediction),
    )


def _gain(prediction: Prediction | None) -> bool | None:
    """Whether the physics expects a gain; None if it cannot tell."""
    if prediction is None or prediction.verdict not in ("faster", "slower"):
        return None
    return prediction.verdict == "faster"


def _opinion(
    status: Status, prediction: Prediction | None, why: str | None
) -> tuple[Literal["agrees", "disagrees", "no opinion"], str | None]:
    gain = _gain(prediction)
    if gain is None or status not in ("met", "not met"):
        return "no opinion", None
    if gain == (status == "met"):
        return "agrees", None
    return "disagrees", why


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:.3g}B"


def _tokenizer(prediction: Prediction | None, draft: ModelDescription | None) -> RuleCheck:
    status: Status = "not applicable"
    fact = "No second model with a vocabulary of its own."
    if draft is not None:
        verdict = prediction.tokenizer if prediction is not None else None
        fact = verdict.reason if verdict is not None else "Not compared."
        known = verdict.compatible if verdict is not None else None
        status = "unknown" if known is None else "met" if known else "not met"
    return RuleCheck(
        rule="same-tokenizer",
        says="Target and draft share one tokenizer.",
        source=f"{LM_STUDIO_DOCS}; {HUGGING_FACE}",
        status=status,
        fact=fact,
    )


def _ten_times(target: ModelDescription, draft: ModelDescription | None, prediction: Prediction | None) -> RuleCheck:
    status: Status = "not applicable"
    fact, why = "No draft model.", None
    if draft is not None:
        ratio = target.total_parameters / max(1, draft.total_parameters)
        status = "met" if ratio >= TEN_TIMES else "not met"
        fact = (
            f"{_billions(target.total_parameters)} against {_billions(draft.total_parameters)} in total: "
            f"{ratio:.1f} times smaller."
        )
        why = _why(target, draft, prediction)
    physics, why = _opinion(status, prediction, why)
    return RuleCheck(
        rule="ten-times-smaller",
        says="The draft is at least ten times smaller; the smaller the better.",
        source=HUGGING_FACE,
        status=status,
        fact=fact,
        physics=physics,
        why=why,
    )


def largest_draft(target_billions: float) -> float | None:
    """LM Studio's largest sensible draft for a target [billions of parameters]; None = it advises against drafting.

    The row of the largest listed target that is not above this one applies, with names rounded as they are sold.
    """
    allowed: float | None = None
    for size, draft in LM_STUDIO_SIZES:
        if target_billions * TARGET_SLACK >= size:
            allowed = draft
    return allowed


def _lm_studio(target: ModelDescription, draft: ModelDescription | None, prediction: Prediction | None) -> RuleCheck:
    size = target.total_parameters / 1e9
    allowed = largest_draft(size)
    status: Status = "not applicable"
    fact, why = "No draft model.", None
    if draft is not None:
        mine = draft.total_parameters / 1e9
        fits = allowed is not None and mine <= allowed * DRAFT_SLACK
        status = "met" if fits else "not met"
        fact = (
            f"For a {size:.3g}B target its table says at most {allowed:g}B; the draft has {mine:.3g}B."
            if allowed is not None
            else f"Its table advises against drafting for a {size:.3g}B target."
        )
        why = _why(target, draft, prediction)
    physics, why = _opinion(status, prediction, why)
    return RuleCheck(
        rule="lm-studio-sizes",
        says="At most 1B for a 7B target, 3B for 14B, 7B for 32B; no draft for 3B and below.",
        source=LM_STUDIO_DOCS,
        status=status,
        fact=fact,
        physics=physics,
        why=why,
    )


def _active(target: ModelDescription, draft: ModelDescription | None, prediction: Prediction | None) -> RuleCheck:
    status: Status = "not applicable"
    fact, why = "No draft model.", None
    if draft is not None:
        if not (target.is_moe or draft.is_moe):
            fact = "Neither model is a mixture of experts: active and total parameters are the same."
        else:
            ratio = target.active_parameters / max(1, draft.active_parameters)
            status = "met" if ratio >= TEN_TIMES else "not met"
            fact = (
                f"{_billions(target.active_parameters)} against {_billions(draft.active_parameters)} per token: "
                f"{ratio:.1f} times smaller."
            )
            why = _why(target, draft, prediction)
    physics, why = _opinion(status, prediction, why)
    return RuleCheck(
        rule="active",
        says="With a mixture of experts compare active, not total, parameters.",
        source=MOE_ARTICLE,
        status=status,
        fact=fact,
        physics=physics,
        why=why,
    )


def _why(target: ModelDescription, draft: ModelDescription, prediction: Prediction | None) -> str | None:
    """The reason a size rule and the physics part ways, from the numbers of the prediction."""
    if prediction is None:
        return None
    cost, k = prediction.round, max(1, prediction.draft_max)
    share = draft.decode_bytes / max(1, target.decode_bytes)
    if _gain(prediction):
        return (
            f"Per token the draft reads {share:.0%} of what the target reads, and a round costs {cost.cost:.2f} decode "
            f"steps for {prediction.mean_accepted_length:.2f} tokens."
        )
    total = draft.total_parameters / max(1, target.total_parameters)
    if share > 2 * total:
        return (
            f"Total parameters mislead: per token the draft reads {share:.0%} of what the target reads "
            f"({_billions(draft.active_parameters)} of {_billions(target.active_parameters)} active), not {total:.0%}."
        )
    if cost.verify - 1 >= cost.draft:
        return f"Checking {k + 1} tokens is not free: it costs {cost.verify:.2f} decode steps here, whatever the draft."
    return (
        f"Drafting {k} tokens costs {cost.draft:.2f} decode steps here and yields "
        f"{prediction.mean_accepted_length - 1:.2f} of them."
    )


def _temperature(temperature: float | None) -> RuleCheck:
    if temperature is None:
        status: Status = "unknown"
        fact = "No temperature was given; llama-server's default is 0.8."
    else:
        status = "met" if temperature <= LOW_TEMPERATURE else "not met"
        fact = f"Temperature {temperature:g}."
    return RuleCheck(
        rule="low-temperature", says="Keep the temperature low.", source=HUGGING_FACE, status=status, fact=fact
    )


def _grounded(task: Task | None, prediction: Prediction | None) -> RuleCheck:
    status: Status = "unknown"
    fact = "No kind of text was given." if task is None else f"{task}: in between."
    why = None
    if task in _GROUNDED:
        status, fact = "met", f"{task}: much of the answer is in the prompt or follows from it."
        why = "The text would suit, but a round costs too much on this machine for what it yields."
    elif task in _FREE:
        status, fact = "not met", f"{task}: free text, the hardest to guess."
        why = "Free text is accepted less often, but a round is cheap enough here to gain all the same."
    physics, why = _opinion(status, prediction, why)
    return RuleCheck(
        rule="input-grounded",
        says="Best for input-grounded work (edits, summaries) and factual or math answers, worst for creative text.",
        source=f"{LM_STUDIO_DOCS}; {HUGGING_FACE}",
        status=status,
        fact=fact,
        physics=physics,
        why=why,
    )
