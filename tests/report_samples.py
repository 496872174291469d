"""Predictions and sheets made up for the tests of what is shown: every field filled, no physics needed."""

from __future__ import annotations

from typing import Any

from advisor.advice.rules import RuleCheck
from advisor.base import Figure, Range
from advisor.report.document import Command, Compared, PassPoint, RooflineView, Sheet, WhatIf, WhatIfContext
from advisor.speculation.prediction import (
    AcceptanceEstimate,
    BestDraftLength,
    CurvePoint,
    DeviceMemory,
    MemoryPlan,
    ModelSummary,
    Prediction,
    RoundCost,
    TokenizerVerdict,
)

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>\x1b[31m\u202e`|$(rm)'\"{{7*7}}"
"""A model name that tries everything: markup, script, a closed data block, escape codes, Markdown, shell, Jinja."""


def around(median: float, share: float = 0.12) -> Range:
    return Range(median=median, low=median * (1 - share), high=median * (1 + share))


def prediction(**changes: Any) -> Prediction:
    target = ModelSummary(
        name="Qwen3.5 27B Q8_0", reference="qwen3.5-27b:Q8_0", architecture="qwen35", quant="Q8_0",
        size_bytes=28_600_000_000, total_parameters=27_000_000_000, active_parameters=26_000_000_000,
        decode_bytes=27_500_000_000, source="catalogue",
    )  # fmt: skip
    draft = target.model_copy(
        update={"name": "Qwen3.5 2B Q8_0", "reference": "qwen3.5-2b:Q8_0", "decode_bytes": 2_000_000_000}
    )
    tokens = [1 + sum(0.8**i for i in range(1, k + 1)) for k in range(1, 9)]
    curve = tuple(
        CurvePoint(draft_max=k, round_cost=1 + 0.28 * k, mean_accepted_length=t, speedup=around(t / (1 + 0.28 * k)))
        for k, t in enumerate(tokens, 1)
    )
    fields: dict[str, Any] = {
        "target": target,
        "draft": draft,
        "hardware": "Ryzen AI Max+ PRO 395",
        "backend": "vulkan",
        "method": "draft-simple",
        "draft_max": 3,
        "context": 4096,
        "depth": 2048,
        "acceptance": AcceptanceEstimate(
            rate=Range(median=0.64, low=0.5, high=0.78), positions=(0.8, 0.75, 0.7), kind="published",
            evidence="12 published runs of the same family on code-edit",
        ),
        "mean_accepted_length": 2.92,
        "baseline_tps": around(7.09),
        "speculative_tps": around(11.2),
        "speedup": around(1.58),
        "probability_faster": 0.993,
        "round": RoundCost(cost=1.85, draft=0.31, verify=1.42, overhead=0.12, milliseconds=261),
        "best": BestDraftLength(draft_max=4, speedup=1.62),
        "break_even_acceptance": 0.29,
        "curve": curve,
        "memory": MemoryPlan(
            target_weights=28_600_000_000, draft_weights=2_000_000_000, target_kv=300_000_000, draft_kv=20_000_000,
            state=1_000_000, compute=500_000_000, total=31_421_000_000, context=4096,
            devices=(DeviceMemory(device="Radeon 8060S", need=31_421_000_000, capacity=96_000_000_000, fits=True),),
            fits=True,
        ),
        "tokenizer": TokenizerVerdict(compatible=True, reason="Same vocabulary family qwen3.5."),
        "verdict": "faster",
        "reasons": ("Checking 4 tokens at once costs 1.4 decode steps here; it is not free.",),
        "figures": {
            "bandwidth": Figure(value=256, unit="GB/s", kind="published", source="product page"),
            "stream efficiency": Figure(value=0.78, unit="", kind="fitted", source="decode table, vulkan rows"),
        },
        "assumptions": ("The boost clock under load is not known.",),
    }  # fmt: skip
    return Prediction(**{**fields, **changes})


def curves(**changes: Any) -> WhatIf:
    lengths = tuple(range(1, 9))
    fields: dict[str, Any] = {
        "reported_at": 3,
        "rate": 0.64,
        "depth": 2048,
        "rates": tuple(i / 20 for i in range(21)),
        "lengths": lengths,
        "offsets": (0.0, -0.1, -0.2),
        "contexts": tuple(
            WhatIfContext(depth=d, step_ms=141 + d / 500, cost=tuple((1 + (0.28 + d / 1e5) * k,) for k in lengths))
            for d in (0, 2048, 8192)
        ),
    }
    return WhatIf(**{**fields, **changes})


def sheet(**changes: Any) -> Sheet:
    fields: dict[str, Any] = {
        "prediction": prediction(),
        "what_if": curves(),
        "roofline": RooflineView(
            bandwidth=256,
            peak=29,
            note="Every pass streams weights.",
            points=(
                PassPoint(name="decode", intensity=1.9, rate=0.38, milliseconds=141),
                PassPoint(name="verify", intensity=7.4, rate=1.1, milliseconds=200),
                PassPoint(name="draft", intensity=1.9, rate=0.31, milliseconds=14),
            ),
        ),
        "rules": (
            RuleCheck(
                rule="ten-times-smaller", says="The draft is at least ten times smaller.", source="Hugging Face, 2023",
                status="met", fact="27B against 2B.", physics="agrees",
            ),
        ),
        "compared": (
            Compared(quantity="speedup", unit="x", predicted=around(1.58), measured=around(1.52, 0.02)),
            Compared(quantity="decode", unit="tok/s", predicted=around(7.09), measured=None),
        ),
        "confirmed": "Confirmed: 1.52x lies inside the predicted range.",
        "commands": (Command(title="Run it:", text="llama-server -m a.gguf \\\n  -md b.gguf"),),
    }  # fmt: skip
    return Sheet(**{**fields, **changes})


def hostile_sheet() -> Sheet:
    """A sheet in which every text that can come from outside is :data:`HOSTILE`."""
    base = sheet()
    p = base.prediction
    assert p.draft is not None
    bad = p.model_copy(
        update={
            "target": p.target.model_copy(
                update={"name": HOSTILE, "reference": HOSTILE, "architecture": HOSTILE, "quant": HOSTILE}
            ),
            "draft": p.draft.model_copy(update={"name": HOSTILE, "reference": f"-{HOSTILE}"}),
            "hardware": HOSTILE,
            "reasons": (HOSTILE,),
            "assumptions": (HOSTILE,),
            "tokenizer": TokenizerVerdict(compatible=None, reason=HOSTILE),
            "figures": {HOSTILE: Figure(value=1, unit=HOSTILE, kind="assumed", source=HOSTILE)},
            "acceptance": p.acceptance.model_copy(update={"evidence": HOSTILE}),
            "memory": p.memory.model_copy(
                update={
                    "advice": (HOSTILE,),
                    "devices": (DeviceMemory(device=HOSTILE, need=1, capacity=None, fits=None),),
                }
            ),
        }
    )
    assert base.roofline is not None
    return base.model_copy(
        update={
            "prediction": bad,
            "confirmed": HOSTILE,
            "commands": (Command(title=HOSTILE, text=f"llama-server -m '{HOSTILE}'\n{HOSTILE}"),),
            "compared": (Compared(quantity=HOSTILE, unit=HOSTILE, predicted=around(1), measured=around(1)),),
            "roofline": base.roofline.model_copy(
                update={"note": HOSTILE, "points": (PassPoint(name=HOSTILE, intensity=1, rate=1, milliseconds=1),)}
            ),
            "rules": tuple(r.model_copy(update={"says": HOSTILE, "fact": HOSTILE, "why": HOSTILE}) for r in base.rules),
        }
    )
