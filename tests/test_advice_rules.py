"""Published rules: the article's two pairs, and where rules and physics part."""

from __future__ import annotations

import pytest
from advice_samples import head, model, prediction

from advisor.advice.rules import RuleCheck, check_rules, largest_draft


def by_rule(checks: tuple[RuleCheck, ...]) -> dict[str, RuleCheck]:
    return {c.rule: c for c in checks}


@pytest.mark.parametrize(
    ("billions", "draft"),
    [(1.0, None), (3.2, None), (4.0, None), (6.7, 1), (8.0, 1), (12.2, 1), (14.8, 3), (26.9, 3), (30.5, 7), (70, 7)],
)
def test_lm_studio_size_table(billions: float, draft: float | None) -> None:
    assert largest_draft(billions) == draft


def test_the_dense_pair_that_won_meets_the_rules() -> None:
    target, draft = model("qwen3.5-27b", 26.9e9, layers=64, width=5120), model("qwen3.5-2b", 1.9e9, width=2048)
    checks = by_rule(check_rules(target, draft, prediction(target, draft), task="code-edit", temperature=0.1))
    assert {n: c.status for n, c in checks.items()} == {
        "same-tokenizer": "met",
        "ten-times-smaller": "met",
        "lm-studio-sizes": "met",
        "active": "not applicable",
        "low-temperature": "met",
        "input-grounded": "met",
    }
    assert checks["ten-times-smaller"].physics == "agrees"
    assert "14.2 times" in checks["ten-times-smaller"].fact


def test_two_mixtures_of_experts_total_parameters_mislead() -> None:
    """A 240B against a 21B mixture is ten times smaller in total, and half the size per token."""
    target = model("big-moe", 240e9, layers=36, experts=(128, 1), vocabulary=50000, width=2880)
    draft = model("small-moe", 21e9, layers=24, experts=(32, 16), vocabulary=50000, width=2880)
    losing = prediction(target, draft, verdict="slower", speedup=0.57, round_cost=(4.5, 2.5, 1.9))
    checks = by_rule(check_rules(target, draft, losing))
    assert checks["ten-times-smaller"].status == "met"
    assert checks["ten-times-smaller"].physics == "disagrees"
    assert "Total parameters mislead" in (checks["ten-times-smaller"].why or "")
    assert checks["active"].status == "not met"
    assert checks["active"].physics == "agrees"
    assert checks["active"].why is None


def test_a_small_target_that_gains_in_spite_of_the_table() -> None:
    target, draft = model("3b", 3.1e9, width=2048, layers=24), model("0.5b", 0.5e9, width=896, layers=24)
    checks = by_rule(check_rules(target, draft, prediction(target, draft)))
    assert checks["lm-studio-sizes"].status == "not met"
    assert checks["lm-studio-sizes"].physics == "disagrees"
    assert "decode steps" in (checks["lm-studio-sizes"].why or "")


def test_checking_can_be_what_loses() -> None:
    target, draft = model("27b", 27e9, layers=64), model("0.5b", 0.5e9, width=896, layers=24)
    losing = prediction(target, draft, verdict="slower", speedup=0.8, round_cost=(3.0, 0.2, 2.7))
    check = by_rule(check_rules(target, draft, losing))["ten-times-smaller"]
    assert check.physics == "disagrees"
    assert "Checking 4 tokens is not free" in (check.why or "")


def test_heads_and_ngrams_have_no_size_rules() -> None:
    target = model(mtp=True)
    for draft in (None, head(target)):
        checks = by_rule(check_rules(target, draft, prediction(target, draft, method="draft-mtp")))
        assert {checks[n].status for n in ("same-tokenizer", "ten-times-smaller", "lm-studio-sizes", "active")} == {
            "not applicable"
        }


def test_nothing_known_is_unknown_not_met() -> None:
    target, draft = model(), model("small", 0.6e9, width=1024)
    checks = by_rule(check_rules(target, draft, None))
    assert checks["same-tokenizer"].status == "unknown"
    assert checks["low-temperature"].status == "unknown"
    assert checks["input-grounded"].status == "unknown"
    assert {c.physics for c in checks.values()} == {"no opinion"}


@pytest.mark.parametrize(
    ("task", "status"), [("summarise", "met"), ("math", "met"), ("prose", "not met"), ("chat", "unknown")]
)
def test_tasks(task: str, status: str) -> None:
    target, draft = model(), model("small", 0.6e9, width=1024)
    check = by_rule(check_rules(target, draft, None, task=task))["input-grounded"]  # type: ignore[arg-type]
    assert check.status == status


def test_wrong_tokenizer_and_high_temperature() -> None:
    target, draft = model(), model("small", 0.6e9, width=1024)
    checks = by_rule(check_rules(target, draft, prediction(target, draft, compatible=False), temperature=1.0))
    assert checks["same-tokenizer"].status == "not met"
    assert checks["low-temperature"].status == "not met"
