"""Recommendations: what is considered, what is left out and why, who wins, and what is said about it."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from advice_samples import BPE, head, model, setup
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.advice import weigh
from advisor.advice.candidates import catalogue_slugs, check, drafter_slugs, from_catalogue, inside, ngrams, of_models
from advisor.advice.disk import models_on_disk
from advisor.advice.hub import from_hub, queries
from advisor.advice.launch import BuildFlags
from advisor.advice.recommend import known_trouble, recommend
from advisor.advice.recommendation import Recommendation
from advisor.advice.weigh import GAIN, SURE, Question, choose
from advisor.errors import CancelledError, HubError, InputError, ModelFileError
from advisor.hardware.machine import Placement
from advisor.models.catalogue import describe_catalogue
from advisor.models.description import ModelDescription
from advisor.speculation import acceptance as acceptances
from advisor.speculation.rounds import gate

BIG = model("big-27b", 27e9, layers=64, width=5120, mtp=True)
SMALL = model("small-0.6b", 0.6e9, layers=24, width=1024)
MIDDLE = model("middle-4b", 4e9, layers=36, width=2560)


def ask(
    target: ModelDescription = BIG, drafts: tuple[ModelDescription, ...] = (SMALL,), **extra: object
) -> Recommendation:
    options = {"setup": setup(), "local": False, "catalogue": False, **extra}
    return recommend(target, drafts=drafts, **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- candidates


def test_everything_is_considered() -> None:
    answer = ask(drafts=(SMALL, MIDDLE))
    kinds = {o.methods for o in answer.options}
    assert () in kinds, "nothing"
    assert ("draft-simple",) in kinds
    assert ("draft-mtp",) in kinds
    assert {("ngram-simple",), ("ngram-map-k",), ("ngram-map-k4v",), ("ngram-cache",), ("ngram-mod",)} <= kinds
    assert any(o.spec_default for o in answer.options)
    assert {o.draft.name for o in answer.options if o.draft} == {"small-0.6b", "middle-4b"}
    assert [o.rank for o in answer.options] == list(range(1, len(answer.options) + 1))


def test_ngram_before_draft_where_text_repeats() -> None:
    combined = [o for o in ask(task="code-edit").options if len(o.methods) == 2]
    assert combined
    for option in combined:
        assert option.methods[0].startswith("ngram")
        assert option.methods[1].startswith("draft")
        assert option.ngram_max


def test_mtp_only_where_the_layers_are() -> None:
    assert [c.method for c in inside(BIG).candidates] == ["draft-mtp"]
    assert inside(MIDDLE).candidates == []
    assert len(ngrams().candidates) == 5


@pytest.mark.parametrize(
    ("draft", "kind", "words"),
    [
        (model("projector", 1e9, width=1024).model_copy(update={"kind": "mmproj"}), "not a draft", "mmproj"),
        (model("adapter", 1e9, width=1024).model_copy(update={"kind": "lora"}), "not a draft", "lora"),
        (model("empty", 1e9, width=1024).model_copy(update={"weights": ()}), "not a draft", "no weights"),
        (model("as-big", 26e9, layers=64, width=5120), "not smaller", "Per token it reads 9"),
        (
            model(
                "other-words", 0.6e9, width=1024, tokenizer=BPE.model_copy(update={"type": "SPM", "digest": "b" * 64})
            ),
            "tokenizer",
            "different types",
        ),
        (
            model(
                "longer-list", 0.6e9, width=1024, tokenizer=BPE.model_copy(update={"size": 152200, "digest": "c" * 64})
            ),
            "tokenizer",
            "264 entries",
        ),
        (model("hybrid", 0.6e9, width=1024, state=1000), "does not work", "recurrent"),
        (head(MIDDLE, name="head-of-another"), "tokenizer", "2560 wide"),
        (
            head(model("x", 27e9, width=5120), name="assistant").model_copy(update={"architecture": "gemma3"}),
            None,
            "",
        ),
    ],
)
def test_exclusions_tell_the_true_reason(draft: ModelDescription, kind: str | None, words: str) -> None:
    found = check(BIG, draft, known_trouble)
    if kind is None:
        assert found is None
        return
    assert found is not None
    assert found.kind == kind
    assert words in found.reason


def test_a_draft_that_reads_as_much_per_token_is_left_out_although_it_is_smaller_in_total() -> None:
    """gpt-oss: 20B against 120B in total, 3.6B against 5.1B per token: still weighed; against 3.8B it is not."""
    target = describe_catalogue("gpt-oss-120b")
    assert check(target, describe_catalogue("gpt-oss-20b")) is None
    lean = model("lean-moe", 120e9, layers=36, experts=(128, 1), vocabulary=20000, width=2880)
    found = check(lean, model("fat-moe", 21e9, layers=24, experts=(32, 28), vocabulary=20000, width=2880))
    assert found is not None
    assert found.kind == "not smaller"


def test_the_target_itself_is_no_draft() -> None:
    copy = BIG.model_copy(update={"name": "same file, other name"})
    found = of_models(BIG, [BIG, copy, SMALL], lambda _: "file")
    assert [c.draft for c in found.candidates] == [SMALL]
    assert found.excluded == []


def test_excluded_drafts_are_reported_in_the_answer() -> None:
    answer = ask(drafts=(SMALL, model("as-big", 26e9, layers=64, width=5120)))
    assert [(x.name, x.kind) for x in answer.excluded] == [("as-big", "not smaller")]


def test_methods_the_build_does_not_know_are_left_out() -> None:
    old = BuildFlags(new_names=False, spec_types=(), spec_default=False, label="build 5163")
    answer = ask(build=old, methods=frozenset({"none", "draft-simple"}))
    assert {o.methods for o in answer.options} == {(), ("draft-simple",)}
    assert {x.kind for x in answer.excluded} == {"engine"}
    assert answer.command is not None
    assert "--spec-type" not in answer.command.argv


def test_catalogue_names_of_the_same_family_that_are_small_enough() -> None:
    target = describe_catalogue("qwen3-32b:Q4_K_M")
    slugs = catalogue_slugs(target)
    assert "qwen3-0.6b" in slugs
    assert "qwen3-32b" not in slugs
    assert all(describe_catalogue(s).active_parameters <= target.active_parameters / 3 for s in slugs)
    assert "qwen3-0.6b" not in catalogue_slugs(target, ["qwen3-0.6b"]), "what is at hand need not be downloaded"
    assert any("eagle3" in s for s in drafter_slugs(target))
    assert catalogue_slugs(model("nobody-knows")) == []


def test_catalogue_drafts_come_in_their_best_file_type() -> None:
    target = describe_catalogue("qwen3-32b:Q4_K_M")
    answer = ask(target, (), catalogue=True, setup=setup(memory=80))
    names = [o.draft.name for o in answer.options if o.draft and o.methods == ("draft-simple",)]
    assert len(names) == len(set(names)), "one line per name"
    option = next(o for o in answer.options if o.draft and o.draft.name == "qwen3-0.6b")
    assert option.download_bytes > 0
    assert any("File types compared" in n for n in option.notes)
    assert len([c for c in from_catalogue(target).candidates if c.draft and c.draft.name == "qwen3-0.6b"]) == 3


class FakeHub:
    def __init__(self, found: dict[str, list[str]], error: Exception | None = None) -> None:
        self.found, self.error, self.asked = found, error, []

    def list_models(self, *, search: str, filter: str, sort: str, limit: int) -> list[object]:
        self.asked.append(search)
        if self.error is not None:
            raise self.error
        return [type("M", (), {"id": name}) for name in self.found.get(search, [])]


def test_hub_search_describes_what_it_finds() -> None:
    target = describe_catalogue("qwen3-32b:Q4_K_M")
    wanted = next(q for q in queries(target) if "0.6b" in q)
    hub = FakeHub({wanted: ["someone/Qwen3-0.6B-GGUF", "bad name; rm"]})
    asked: list[str] = []

    def describe(reference: str) -> ModelDescription:
        asked.append(reference)
        if reference.endswith(":Q4_0"):
            raise ModelFileError("there is no such file")
        return describe_catalogue("qwen3-0.6b:" + reference.rsplit(":", 1)[1]).model_copy(
            update={"source": "hub-gguf", "reference": reference}
        )

    found = from_hub(target, api=hub, describe=describe)
    assert [c.draft.reference for c in found.candidates if c.draft] == [
        "hf:someone/Qwen3-0.6B-GGUF:Q4_K_M",
        "hf:someone/Qwen3-0.6B-GGUF:Q8_0",
    ]
    assert all(c.origin == "hub" and c.download_bytes > 0 for c in found.candidates)
    assert not any("rm" in a for a in asked)
    assert any("mtp" in q for q in hub.asked)


def test_hub_offers_the_target_with_its_mtp_layers() -> None:
    plain = describe_catalogue("qwen3.6-27b:Q4_K_M+nomtp")
    hub = FakeHub({"qwen3.6-27b mtp gguf": ["someone/Qwen3.6-27B-MTP-GGUF"]})

    def describe(reference: str) -> ModelDescription:
        return describe_catalogue("qwen3.6-27b:Q4_K_M+mtp").model_copy(update={"reference": reference})

    found = from_hub(plain, api=hub, describe=describe)
    assert found.candidates == []
    assert "MTP layers kept" in found.excluded[-1].reason
    assert "hf:someone/Qwen3.6-27B-MTP-GGUF" in found.excluded[-1].reason


def test_one_gated_repository_stops_nothing_but_all_of_them_do() -> None:
    target = describe_catalogue("qwen3-32b:Q4_K_M")
    wanted = next(q for q in queries(target) if "0.6b" in q)
    hub = FakeHub({wanted: ["gated/Qwen3-0.6B-GGUF", "open/Qwen3-0.6B-GGUF"]})

    def describe(reference: str) -> ModelDescription:
        if "gated" in reference:
            raise HubError("This repository is gated.")
        return describe_catalogue("qwen3-0.6b:" + reference.rsplit(":", 1)[1])

    assert len(from_hub(target, api=hub, describe=describe).candidates) == 3
    hub.found[wanted] = ["gated/Qwen3-0.6B-GGUF"]
    with pytest.raises(HubError, match="gated"):
        from_hub(target, api=hub, describe=describe)


def test_hub_out_of_reach_and_cancelled() -> None:
    target = describe_catalogue("qwen3-32b:Q4_K_M")
    with pytest.raises(HubError, match="--hub"):
        from_hub(target, api=FakeHub({}, OSError("no route")), describe=lambda _: SMALL)
    with pytest.raises(CancelledError):
        from_hub(target, api=FakeHub({}), describe=lambda _: SMALL, cancelled=lambda: True)


# ------------------------------------------------------------------------------------------------ the choice


def test_a_cheap_draft_on_a_fast_gpu_wins() -> None:
    answer = ask(task="code")
    assert answer.speculate
    assert answer.best.speedup.median > GAIN
    assert answer.headline.startswith("Use ")
    assert answer.prediction is not None
    assert answer.prediction.verdict == "faster"


def test_two_lean_mixtures_do_not_pay() -> None:
    """The pairing of the published test that lost: acceptance is fine, the physics is not."""
    target, draft = describe_catalogue("gpt-oss-120b"), describe_catalogue("gpt-oss-20b")
    answer = ask(target, (draft,), setup=setup(bandwidth=256, memory=128), task="chat")
    pair = next(o for o in answer.options if o.draft)
    assert pair.speedup.median < 0.9
    assert not answer.speculate
    assert answer.headline.startswith("Do not speculate")
    rule = next(r for r in answer.rules if r.rule == "active")
    assert rule.status == "not met"


def test_the_margin_rule_is_what_decides() -> None:
    plain, trial = _two_trials()
    at = trial.speedup.model_copy
    weak = trial._replace(speedup=at(update={"median": GAIN - 0.01}), probability_faster=0.9)
    unsure = trial._replace(speedup=at(update={"median": 1.5}), probability_faster=SURE - 0.01)
    sure = trial._replace(speedup=at(update={"median": GAIN + 0.01}), probability_faster=SURE + 0.01)
    assert choose(plain, [weak, unsure]) is plain
    assert choose(plain, [weak, unsure, sure]) is sure


def test_a_download_must_be_worth_it() -> None:
    plain, here = _two_trials()
    assert here.candidate is not None
    speed = here.speed.model_copy
    remote = here.candidate._replace(origin="catalogue", download_bytes=10**9)
    better = here._replace(candidate=remote, speed=speed(update={"median": here.speed.median * 1.03}))
    best = here._replace(candidate=remote, speed=speed(update={"median": here.speed.median * 1.08}))
    assert choose(plain, [here, better]) is here
    assert choose(plain, [here, best]) is best
    assert choose(plain, [better]) is better, "with nothing at hand it is the answer"


def test_what_must_be_converted_wins_only_against_nothing() -> None:
    plain, here = _two_trials()
    assert here.candidate is not None
    kept_as = here.candidate._replace(draft=head(MIDDLE), origin="catalogue", download_bytes=10**9)
    safetensors = here._replace(candidate=kept_as, speed=_times(here, 2.0))
    assert choose(plain, [here, safetensors]) is here
    assert choose(plain, [safetensors]) is safetensors


def test_of_equals_the_simpler_goes_first() -> None:
    plain, draft = _two_trials()
    both = draft._replace(methods=("ngram-mod", "draft-simple"), speed=_times(draft, 1.01))
    assert choose(plain, [draft, both]) is draft
    assert choose(plain, [draft, both._replace(speed=_times(draft, 1.05))]).methods == ("ngram-mod", "draft-simple")


def _times(trial: weigh.Trial, factor: float):  # type: ignore[no-untyped-def]
    return trial.speed.model_copy(update={"median": trial.speed.median * factor})


def _two_trials() -> tuple[weigh.Trial, weigh.Trial]:
    question = Question(MIDDLE.model_copy(), setup(), "code", 0.0, 0, 4096, True)
    found = of_models(MIDDLE, [SMALL], lambda _: "file")
    trials, _ = weigh.weigh(question, found.candidates)
    draft = next(t for t in trials if t.methods == ("draft-simple",))
    good = draft._replace(speedup=draft.speedup.model_copy(update={"median": 1.4}), probability_faster=0.9)
    return trials[0], good


@settings(max_examples=25, deadline=None)
@given(
    bandwidth=st.floats(30, 3000),
    draft=st.floats(0.2e9, 8e9),
    task=st.sampled_from(["code-edit", "chat", "prose", None]),
)
def test_the_answer_never_contradicts_itself(bandwidth: float, draft: float, task: str | None) -> None:
    small = model("d", draft, layers=24, width=1024)
    answer = ask(drafts=(small,), setup=setup(bandwidth=bandwidth, memory=80), task=task)
    plain = next(o for o in answer.options if not o.methods)
    assert answer.best is answer.options[0] or answer.best == answer.options[0]
    assert answer.speculate == bool(answer.best.methods)
    if answer.speculate:
        assert answer.best.speedup.median >= GAIN
        assert answer.best.probability_faster >= SURE
        assert answer.best.speed.median > plain.speed.median
    others = [o.speed.median for o in answer.options[1:]]
    assert others == sorted(others, reverse=True)
    for o in answer.options:
        assert o.speedup.low <= o.speedup.median <= o.speedup.high
        assert o.speed.low <= o.speed.median <= o.speed.high
        assert o.speed.median == pytest.approx(plain.speed.median * o.speedup.median, rel=1e-6)


def test_option_and_prediction_agree() -> None:
    """The quick weighing and the full prediction are the same physics."""
    answer = ask(task="code")
    p = answer.prediction
    assert p is not None
    best = next(o for o in answer.options if o.methods)
    assert len(best.methods) == 1
    assert p.draft_max == best.draft_max
    assert p.speedup.median == pytest.approx(best.speedup.median, rel=1e-6)
    assert p.speedup.low == pytest.approx(best.speedup.low, rel=1e-6)
    assert p.speculative_tps.high == pytest.approx(best.speed.high, rel=1e-6)
    assert p.round.cost == pytest.approx(best.round_cost, rel=1e-6)
    assert p.probability_faster == pytest.approx(best.probability_faster, abs=1e-6)


# ----------------------------------------------------------------------------------------------- placement


def test_what_does_not_fit_is_moved_and_the_loss_is_counted() -> None:
    """28.7 GB of target on a 24 GB card: layers go to the host, and the draft pushes further ones there."""
    answer = ask(setup=setup(memory=24), task="code")
    plain = next(o for o in answer.options if not o.methods)
    assert plain.placement.gpu_layers is not None
    assert 0 < plain.placement.gpu_layers < 64
    option = next(o for o in answer.options if o.draft)
    on_device = option.placement.draft_device == "same"
    assert (option.placement.gpu_layers or 0) < plain.placement.gpu_layers or not on_device
    assert option.fits is not False
    assert answer.command is not None
    assert "-ngl" in answer.command.argv


def test_experts_go_to_the_host_first() -> None:
    moe = model("moe-60b", 60e9, layers=40, experts=(64, 4))
    answer = ask(moe, (), setup=setup(memory=24))
    place = answer.best.placement
    assert place.cpu_moe_layers > 0 or place.cpu_moe
    assert answer.command is not None
    assert {"--n-cpu-moe", "--cpu-moe"} & set(answer.command.argv)


def test_placement_of_the_user_stays() -> None:
    mine = setup(memory=24, placement=Placement(gpu_layers=10))
    assert {o.placement.gpu_layers for o in ask(setup=mine).options} == {10}


def test_a_target_that_fits_nowhere_is_still_answered_and_said() -> None:
    huge = model("huge", 400e9, layers=100, width=8192)
    answer = ask(huge, (SMALL,), setup=setup(memory=12))
    assert any("does not fit" in line for line in answer.why)
    assert answer.best.fits is False


# ------------------------------------------------------------------------------------------------ in words


def test_reasons_and_changes_are_there() -> None:
    answer = ask(task="code", drafts=(SMALL, MIDDLE))
    assert any(line.startswith("A round yields") for line in answer.why)
    assert any(line.startswith(("Runner-up", "Next best")) for line in answer.why)
    assert any("acceptance" in line for line in answer.changes)
    assert {row.task for row in answer.outlook} >= {"code-edit", "chat", "prose", "math"}
    lines = " ".join((*answer.why, *answer.changes, answer.headline))
    assert "nan" not in lines
    assert "inf" not in lines


def test_break_even_is_where_the_answer_turns() -> None:
    """At the acceptance the answer names, the runner-up and the winner are equally fast."""
    from advisor.advice.explain import acceptance_for

    question = Question(BIG, setup(), "code", 0.0, 0, 4096, True)
    found = of_models(BIG, [SMALL], lambda _: "file")
    trials, _ = weigh.weigh(question, found.candidates)
    trial = next(t for t in trials if t.methods == ("draft-simple",))
    even = acceptance_for(question, trial, trial.base)
    assert even is not None
    assert trial.prediction is not None
    assert even == pytest.approx(trial.prediction.break_even_acceptance, abs=0.01)
    assert acceptance_for(question, trial, trial.base * 100) is None


def test_acceptance_is_what_the_server_will_count() -> None:
    """Without p-min the mean over all drafted tokens; with it only what was not stopped, so a higher share."""
    question = Question(BIG, setup(), "code", 0.0, 0, 4096, True)
    candidate = of_models(BIG, [SMALL], lambda _: "file").candidates[0]
    plain = weigh.plain_trial(question)
    trial = weigh.try_candidate(question, candidate, plain)
    assert isinstance(trial, weigh.Trial)
    assert trial.estimate is not None
    whole = weigh.weigh_in(question, candidate, trial.setup, trial.memory, trial.estimate, plain)
    gated = weigh.weigh_in(question, candidate, trial.setup, trial.memory, trial.estimate, plain, 0.75)
    assert whole.acceptance is not None
    assert gated.acceptance is not None
    k = whole.draft_max
    a = acceptances.positions(trial.estimate, k)
    kept = [math.prod(a[: i + 1]) for i in range(k)]
    assert whole.acceptance.median == pytest.approx(sum(kept) / k)
    same_length = weigh.counted([gate(p, 0.75) for p in a])
    assert same_length > whole.acceptance.median
    assert weigh.counted([]) == 0.0


def test_rules_are_checked_for_the_best_draft_model() -> None:
    answer = ask(task="summarise", temperature=1.0)
    by = {c.rule: c for c in answer.rules}
    assert by["ten-times-smaller"].status == "met"
    assert by["low-temperature"].status == "not met"
    assert by["input-grounded"].status == "met"


def test_what_to_expect_of_a_running_server() -> None:
    answer = ask(task="code")
    expected = answer.expected()
    assert expected.speculates == answer.speculate
    assert expected.speed == answer.best.speed
    nothing = ask(model("tiny", 0.3e9, layers=12, width=512), ()).expected()
    assert not nothing.speculates
    assert nothing.acceptance is None


def test_a_drafter_or_projector_is_no_target() -> None:
    with pytest.raises(InputError, match="drafter"):
        ask(head(BIG))


def test_progress_and_cancelling() -> None:
    seen: list[tuple[str, int, int]] = []
    ask(progress=lambda *step: seen.append(step))
    assert seen[-1][1] == seen[-1][2]
    calls = iter([False, False, True])
    with pytest.raises(CancelledError):
        ask(cancelled=lambda: next(calls, True))


def test_the_answer_is_json_and_back() -> None:
    answer = ask(task="code")
    assert Recommendation.model_validate_json(answer.model_dump_json()) == answer
    assert answer.schema_version == 1


# -------------------------------------------------------------------------------------------------- on disk


def test_real_files(smollm2: Path, gemma3: Path, tmp_path: Path) -> None:
    """A real target with a real file of another vocabulary beside it, a broken one and a copy of itself."""
    target = tmp_path / "SmolLM2 135M.gguf"
    shutil.copy(smollm2, target)
    shutil.copy(gemma3, tmp_path / "gemma.gguf")
    (tmp_path / "page.gguf").write_text("<html>not found</html>")
    answer = recommend(
        str(target), setup=setup(cpu=True, bandwidth=40), drafts=[tmp_path], local=False, catalogue=False
    )
    reasons = {x.name: x.kind for x in answer.excluded}
    assert reasons["page.gguf"] == "unreadable"
    assert reasons["gemma"] in ("not smaller", "tokenizer")
    assert answer.target.name == "SmolLM2 135M"
    assert answer.command is not None
    assert answer.command.argv[answer.command.argv.index("-m") + 1] == str(target)
    assert answer.command.ready


def test_files_are_listed_once(smollm2: Path, tmp_path: Path) -> None:
    shutil.copy(smollm2, tmp_path / "a.gguf")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "a.gguf")
    shelf = models_on_disk([tmp_path / "a.gguf", tmp_path], usual=False)
    assert len(shelf.models) == 1
    with pytest.raises(InputError):
        models_on_disk([tmp_path / "missing"], usual=False)
