"""Printed commands and launcher entries: the right words for the build, and no name that can change them."""

from __future__ import annotations

import json
import shlex
import subprocess
import unicodedata

import pytest
import yaml
from advice_samples import head, model, setup
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.advice.launch import (
    BuildFlags,
    ModelPlace,
    Run,
    command,
    place_of,
    server_argv,
    spec_type_names,
    split_hub,
)
from advisor.advice.launchers import LAUNCHERS, entries, llama_swap, lm_studio, slug, to_yaml, yaml_string
from advisor.advice.quoting import default_shell, join, pretty, quote
from advisor.errors import EngineError, InputError
from advisor.hardware.machine import Placement, RpcHost

NASTY = [
    "plain",
    "with space",
    "it's",
    'double "quotes"',
    "$(touch pwned)",
    "`touch pwned`",
    "a;rm -rf ~;b",
    "a\nb",
    "a\r\nrm x",
    "\x1b[2J\x1b]0;title\x07",
    "right-to-left \u202egpj.exe",
    "zero\u200bwidth",
    "%PATH%",
    "$HOME",
    "!history",
    "*",
    "-starts-with-dash",
    "~",
    "#comment",
    "\\",
    "back\\slash 'and' \"both\"",
    "ümlaut 模型 😀",
    "| tee x > y & z",
    "",
    "\x7f\x80\x85",
    "1\x1b1",
]


def bash_words(line: str) -> list[str]:
    out = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    ).stdout
    return [w.decode("utf-8", "surrogateescape") for w in out.split(b"\0")[:-1]]


def printable(text: str) -> bool:
    return all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for c in text)


def test_posix_quoting_survives_a_shell() -> None:
    line = join(NASTY, "posix")
    assert printable(line)
    assert bash_words(line) == NASTY


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=30))
def test_posix_quoting_survives_any_text(words: list[str]) -> None:
    line = join(words, "posix")
    assert printable(line)
    assert bash_words(line) == words


def test_bytes_that_are_not_utf8_survive() -> None:
    name = b"caf\xe9.gguf".decode("utf-8", "surrogateescape")
    assert bash_words(join([name], "posix")) == [name]


def powershell_value(text: str) -> str:
    """What a PowerShell argument means, for the forms :func:`quote` writes: bare, single-quoted, concatenated."""
    if text.startswith("('' + ") and text.endswith(")"):
        out, rest = "", text[len("('' + ") : -1]
        while rest:
            if rest.startswith("["):
                number, rest = rest.removeprefix("[char]::ConvertFromUtf32(").split(")", 1)
                out += chr(int(number))
            else:
                i, piece = 1, ""
                while True:
                    if rest[i] in "'‘’‚‛":
                        if rest[i + 1 : i + 2] not in tuple("'‘’‚‛"):
                            break
                        piece += rest[i]
                        i += 2
                    else:
                        piece += rest[i]
                        i += 1
                out, rest = out + piece, rest[i + 1 :]
            rest = rest.removeprefix(" + ")
        return out
    if text.startswith("'"):
        return powershell_value("('' + " + text + ")")
    assert not set(text) & set(" '\"$`;&|<>(){}@#,*?[]~%!^\n\t‘’‚‛“”"), text
    return text


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_characters='\0"', exclude_categories=["Cs"])))
def test_powershell_quoting_means_the_same(word: str) -> None:
    quoted = quote(word, "powershell")
    assert printable(quoted)
    assert powershell_value(quoted) == word


def test_powershell_calls_quoted_programs_and_makes_no_arrays() -> None:
    line = join([r"C:\Program Files\llama-server.exe", "-ts", "0.5,0.5", "--rpc", "a:1,b:2"], "powershell")
    assert line == r"& 'C:\Program Files\llama-server.exe' -ts '0.5,0.5' --rpc 'a:1,b:2'"


@pytest.mark.parametrize("word", ["%PATH%", 'a"b', "a\nb", "a\u202eb"])
def test_cmd_refuses_what_it_cannot_pass(word: str) -> None:
    with pytest.raises(InputError):
        quote(word, "cmd")


def test_cmd_quotes_operators_and_trailing_backslashes() -> None:
    assert quote("a & b | c ^ d", "cmd") == '"a & b | c ^ d"'
    assert quote("C:\\my models\\", "cmd") == '"C:\\my models\\\\"'


def test_nul_is_refused_everywhere() -> None:
    for shell in ("posix", "powershell", "cmd"):
        with pytest.raises(InputError):
            quote("a\0b", shell)  # type: ignore[arg-type]


def test_default_shells() -> None:
    assert (default_shell("win32"), default_shell("linux"), default_shell("darwin")) == (
        "powershell",
        "posix",
        "posix",
    )


def test_pretty_is_the_same_command() -> None:
    argv = ["llama-server", "-m", "/models/" + "long " * 20 + ".gguf", "--cpu-moe", "-c", "4096", "-np", "1", *NASTY]
    text = pretty(argv, "posix")
    assert bash_words(text) == argv
    assert all(len(line) <= 78 for line in text.splitlines() if "long" not in line)


def a_run(**extra: object) -> Run:
    values: dict[str, object] = {
        "target": ModelPlace(kind="file", name="big", path="/models/big.gguf"),
        "draft": ModelPlace(kind="file", name="small", path="/models/small.gguf"),
        "methods": ("draft-simple",),
        "draft_max": 4,
        "context": 8192,
        "setup": setup(),
    }
    return Run.model_validate(values | extra)


def test_current_build() -> None:
    assert server_argv(a_run()) == (
        *("llama-server", "-m", "/models/big.gguf", "-md", "/models/small.gguf", "--spec-type", "draft-simple"),
        *("--spec-draft-n-max", "4", "-ngld", "999", "-ngl", "999", "-c", "8192", "-np", "1"),
    )


def test_old_build_drafts_as_soon_as_md_is_given() -> None:
    old = BuildFlags(new_names=False, spec_types=(), spec_default=False, label="build 5163")
    argv = server_argv(a_run(), old)
    assert "--spec-type" not in argv
    assert argv[argv.index("--draft-max") + 1] == "4"
    assert argv[argv.index("--draft-p-min") + 1] == "0", "old builds default to 0.75"
    with pytest.raises(EngineError, match="draft-mtp"):
        server_argv(a_run(methods=("draft-mtp",), draft=None), old)


def test_names_of_spring_2026() -> None:
    spring = BuildFlags(spec_types=("none", "draft", "eagle3", "mtp", "ngram-simple"))
    assert spec_type_names(("ngram-simple", "draft-simple"), spring) == ["ngram-simple", "draft"]
    assert spec_type_names(("draft-mtp",), spring) == ["mtp"]
    with pytest.raises(EngineError, match="ngram-mod"):
        spec_type_names(("ngram-mod",), spring)


def test_llama_serve_program_and_port() -> None:
    argv = server_argv(a_run(), BuildFlags(program=("llama", "serve")), host="127.0.0.1", port=8081, metrics=True)
    assert argv[:2] == ("llama", "serve")
    assert argv[-5:] == ("--metrics", "--host", "127.0.0.1", "--port", "8081")


def test_plain_run_has_no_speculation_flags() -> None:
    argv = server_argv(a_run(methods=(), draft=None))
    assert not [a for a in argv if a.startswith(("--spec", "-md", "--draft", "-ngld"))]


def test_mtp_inside_the_file_needs_no_draft() -> None:
    argv = server_argv(a_run(methods=("draft-mtp",), draft=None, p_min=0.5))
    assert argv[argv.index("--spec-type") + 1] == "draft-mtp"
    assert argv[argv.index("--draft-p-min") + 1] == "0.5"
    assert "-md" not in argv


def test_an_assistant_beside_the_target_is_given_with_its_type() -> None:
    """llama.cpp does not infer it: without --spec-type it would load the file and never draft."""
    companion = place_of(head(model(), "draft-mtp", "gemma-4-assistant"))
    run = a_run(methods=("draft-mtp",), draft=companion)
    line = " ".join(server_argv(run))
    assert "-md /models/gemma-4-assistant.gguf --spec-type draft-mtp" in line
    by = {e.launcher: e for e in entries(run, shell="posix")}
    assert not by["lm-studio"].possible
    assert yaml.safe_load(by["jan"].content or "")["mtp_model_path"] == "/models/gemma-4-assistant.gguf"
    assert yaml.safe_load(by["localai"].content or "")["draft_model"] == "/models/gemma-4-assistant.gguf"


def test_slots_share_the_context() -> None:
    argv = server_argv(a_run(context=8192, setup=setup(parallel=4)))
    assert argv[argv.index("-c") + 1] == "32768"


def test_a_draft_method_without_its_draft_is_refused() -> None:
    with pytest.raises(InputError, match="draft-eagle3"):
        server_argv(a_run(methods=("draft-eagle3",), draft=None))


def test_ngram_before_draft() -> None:
    run = a_run(methods=("draft-simple", "ngram-mod"), ngram_max=24, ngram_match=16)
    argv = server_argv(run)
    assert argv[argv.index("--spec-type") + 1] == "ngram-mod,draft-simple"
    assert argv[argv.index("--spec-ngram-mod-n-max") + 1] == "24"
    assert argv[argv.index("--spec-ngram-mod-n-min") + 1] == "24", "the default of 48 would drop every draft"


@pytest.mark.parametrize("method", ["ngram-simple", "ngram-map-k", "ngram-map-k4v"])
def test_ngram_lengths_have_names_of_their_own(method: str) -> None:
    argv = server_argv(a_run(methods=(method,), draft=None, ngram_max=16, ngram_match=8))
    assert argv[argv.index(f"--spec-{method}-size-m") + 1] == "16"
    assert argv[argv.index(f"--spec-{method}-size-n") + 1] == "8"


def test_spec_default() -> None:
    run = a_run(methods=("ngram-mod",), draft=None, spec_default=True)
    assert "--spec-default" in server_argv(run)
    without = server_argv(run, BuildFlags(spec_default=False))
    assert without[without.index("--spec-type") + 1] == "ngram-mod"


def test_placement_and_cache() -> None:
    place = Placement(gpu_layers=20, cpu_moe_layers=8, tensor_split=(0.6, 0.4), split="row", draft_device="host")
    argv = server_argv(a_run(setup=setup(placement=place, cache_type_k="q8_0", cache_type_v="q8_0", parallel=2)))
    line = " ".join(argv)
    for part in ("-ngl 20", "--n-cpu-moe 8", "-sm row", "-ts 0.6,0.4", "-ngld 0", "-ctk q8_0", "-ctv q8_0", "-fa on"):
        assert part in line
    assert "-np 2" in line
    assert "--cpu-moe" in server_argv(a_run(setup=setup(placement=Placement(cpu_moe=True))))
    assert "-devd CUDA1" in " ".join(server_argv(a_run(setup=setup(placement=Placement(draft_device="second")))))


def test_cpu_machine_needs_no_gpu_flags_and_a_gpu_machine_does() -> None:
    assert not {"-ngl", "-dev"} & set(server_argv(a_run(setup=setup(cpu=True))))
    on_cpu = setup().model_copy(update={"backend": "cpu"})
    argv = server_argv(a_run(setup=on_cpu))
    assert argv[argv.index("-dev") + 1] == "none"


def test_rpc_hosts() -> None:
    far = RpcHost(
        hardware=setup().hardware,
        bandwidth=setup().hardware.device.bandwidth,  # type: ignore[arg-type]
        latency=setup().hardware.device.bandwidth,  # type: ignore[arg-type]
        address="10.0.0.2:50052",
    )
    done = command(a_run(setup=setup(placement=Placement(rpc=(far,)))), shell="posix")
    assert done.argv[done.argv.index("--rpc") + 1] == "10.0.0.2:50052"
    assert any("rpc-server" in n for n in done.notes)
    assert done.argv[done.argv.index("-devd") + 1] == "CUDA0"  # the draft stays off the network
    nameless = far.model_copy(update={"address": None})
    with pytest.raises(InputError, match="address"):
        server_argv(a_run(setup=setup(placement=Placement(rpc=(nameless,)))))


@pytest.mark.parametrize(
    ("reference", "repo", "tag"),
    [
        ("hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", "Qwen/Qwen3-8B-GGUF", "Q4_K_M"),
        ("Qwen/Qwen3-8B-GGUF", "Qwen/Qwen3-8B-GGUF", None),
        ("a/b/UD-Q4_K_XL/b-UD-Q4_K_XL-00001-of-00002.gguf", "a/b", "UD-Q4_K_XL"),
        ("https://huggingface.co/a/b", "a/b", None),
        ("not a repository; rm", None, None),
    ],
)
def test_hub_references(reference: str, repo: str | None, tag: str | None) -> None:
    assert split_hub(reference) == (repo, tag)


def test_hub_and_named_models() -> None:
    hub = model("hub").model_copy(update={"reference": "hf:a/b:Q8_0", "source": "hub-gguf"})
    named = model("Some Model").model_copy(update={"source": "catalogue"})
    done = command(a_run(target=place_of(hub), draft=place_of(named)), shell="posix")
    assert done.argv[1:3] == ("-hf", "a/b:Q8_0")
    assert done.argv[done.argv.index("-md") + 1] == "Some-Model-Q8_0.gguf"
    assert not done.ready
    assert any("Get the draft first" in n for n in done.notes)


@pytest.mark.parametrize("name", [n for n in NASTY if n])
def test_a_hostile_name_changes_nothing(name: str) -> None:
    """The argument list holds the name as one argument, and every text shown of it means the same."""
    path = f"/models/{name}.gguf"
    run = a_run(draft=place_of(model(name, path=path)))
    honest = server_argv(a_run())
    argv = server_argv(run)
    assert [path if a == "/models/small.gguf" else a for a in honest] == list(argv)
    done = command(run, shell="posix")
    assert done.line is not None
    assert done.text is not None
    assert printable(done.line)
    assert printable(done.text.replace("\n", ""))
    assert bash_words(done.line) == list(argv)
    for entry in entries(run, shell="posix"):
        assert entry.possible or entry.missing, entry.launcher
        if entry.content is None:
            continue
        assert printable(entry.content.replace("\n", "")), entry.launcher
        if entry.format == "yaml":
            parsed = yaml.safe_load(entry.content)
            if entry.launcher == "llama-swap":
                assert shlex.split(parsed["models"]["big"]["cmd"]) == [*argv, "--port", "${PORT}"]
            if entry.launcher == "localai":
                assert parsed["draft_model"] == path
                assert parsed["parameters"] == {"model": "/models/big.gguf"}
        if entry.format == "json":
            options = json.loads(entry.content)["user.big"]
            assert path in lemonade_words(options["llamacpp_args"])


def lemonade_words(text: str) -> list[str]:
    """Lemonade's splitter (src/cpp/include/lemon/utils/custom_args.h, older form without escapes)."""
    words, current, mark = [], "", ""
    for c in text:
        if not mark and c in "\"'":
            mark = c
        elif mark and c == mark:
            mark = ""
        elif not mark and c == " ":
            if current:
                words.append(current)
            current = ""
        else:
            current += c
    return [*words, current] if current else words


def test_llama_swap_refuses_its_own_macros() -> None:
    entry = llama_swap(a_run(draft=place_of(model("x", path="/m/${env.SECRET}.gguf"))), BuildFlags(), "posix")
    assert not entry.possible
    assert "expand" in entry.missing[0]


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_yaml_strings_round_trip(text: str) -> None:
    written = yaml_string(text)
    assert printable(written)
    assert yaml.safe_load(written) == text


def test_yaml_of_every_kind_round_trips() -> None:
    value = {"a b": {"c": [1, "x: y", True]}, "d": 1.5, "e": "- no list", "f": False}
    assert yaml.safe_load(to_yaml(value)) == value


def test_slug_is_safe_everywhere() -> None:
    assert slug("../../etc/passwd $(x).gguf") == "etc-passwd-x"
    assert slug("\x1b[31m") == "31m"
    assert slug("///") == "model"


def test_every_launcher_answers_for_every_method() -> None:
    target = model(mtp=True)
    cases = {
        "none": a_run(methods=(), draft=None),
        "simple": a_run(),
        "mtp": a_run(methods=("draft-mtp",), draft=None),
        "eagle3": a_run(methods=("draft-eagle3",), draft=place_of(head(target))),
        "ngram": a_run(methods=("ngram-mod",), draft=None),
        "both": a_run(methods=("ngram-mod", "draft-simple")),
    }
    can = {name: {e.launcher for e in entries(run, shell="posix") if e.possible} for name, run in cases.items()}
    for name, run in cases.items():
        found = entries(run, shell="posix")
        assert tuple(e.launcher for e in found) == LAUNCHERS
        for e in found:
            assert e.possible == (e.content is not None), (name, e.launcher)
            assert e.possible or e.missing
    everywhere = {"llama-swap", "localai", "lemonade"}
    assert all(everywhere <= launchers for launchers in can.values())
    assert "lm-studio" in can["simple"] & can["mtp"] & can["none"]
    assert "lm-studio" not in can["ngram"] | can["eagle3"]
    assert "jan" in can["mtp"] & can["eagle3"]
    assert "jan" not in can["simple"]
    assert "docker-model-runner" in can["simple"]
    assert "docker-model-runner" not in can["mtp"]
    assert not {"vllm", "sglang"} & can["simple"], "no repository of the unquantised weights is known"


def test_lm_studio_settings() -> None:
    entry = lm_studio(a_run(p_min=0.25, draft_min=1))
    assert entry.lm_studio is not None
    assert entry.lm_studio.draft_model == "small"
    assert entry.content == "Draft model: small\nMax draft tokens: 4\nMin draft tokens: 1\nDraft probability: 0.25"
    assert entry.lm_studio.config["llm.prediction.speculativeDecoding.maxTokensToDraft"] == 4
    mtp = lm_studio(a_run(methods=("draft-mtp",), draft=None)).lm_studio
    assert mtp is not None
    assert mtp.mtp
    assert mtp.config["llm.load.llama.speculativeDecoding.draftMtpMaxTokens"] == 4


def test_vllm_and_sglang_take_original_weights() -> None:
    target = ModelPlace(kind="file", name="big", path="/models/big.gguf", original="Qwen/Qwen3-32B")
    draft = ModelPlace(kind="file", name="small", path="/models/small.gguf", original="Qwen/Qwen3-0.6B")
    by = {e.launcher: e for e in entries(a_run(target=target, draft=draft), shell="posix")}
    words = shlex.split(by["vllm"].content or "")
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-32B"]
    assert json.loads(words[-1]) == {
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "model": "Qwen/Qwen3-0.6B",
    }
    words = shlex.split(by["sglang"].content or "")
    assert words[words.index("--speculative-algorithm") + 1] == "STANDALONE"
    assert words[words.index("--speculative-num-draft-tokens") + 1] == "5"
