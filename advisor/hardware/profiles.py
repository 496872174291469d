"""Machines by name: the shipped profiles, and names as people write them.

A name may be a slug (``rtx-3090``), a product ("RTX 3090", "3090", "rtx3090", "Strix Halo", "395"), several devices
("2x RTX 3090", "RTX 5080 + RTX 3090", "rtx-5080+rtx-3090"), or a GPU with the CPU memory behind it
("RTX 4090 + DDR5-6000 dual channel 64GB").
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from advisor.base import Figure
from advisor.errors import InputError, UnknownHardwareError
from advisor.hardware.machine import Backend, Device, Hardware
from advisor.resources import resource
from advisor.text import clean

_FORMAT = "See docs/hardware.md for the format."

UNITS = {
    "bandwidth": "GB/s",
    "memory": "GB",
    "fp32_vector": "TFLOPS",
    "fp16": "TFLOPS",
    "int8": "TOPS",
    "tdp": "W",
}

DEFAULT_HOST = "cpu-ddr5-5600-2ch"
"""The host assumed behind a discrete GPU of which nothing else is known."""

DEFAULT_LINK = Figure(
    value=25.0,
    unit="GB/s",
    kind="assumed",
    source="PCIe 4.0 x16: 31.5 GB/s by its line rate, about 80 % of it in large copies",
)

_DISCRETE = ("consumer-gpu", "workstation-gpu", "datacenter-gpu")

# Words that carry no identity: vendors, marks, and what drivers append to a product name.
_NOISE = frozenset(
    (
        "nvidia", "geforce", "amd", "radeon", "intel", "apple", "tesla", "instinct", "corporation", "inc", "tm", "r",
        "graphics", "gpu", "cpu", "card", "edition", "workstation", "generation", "series", "mobile", "with", "core",
        "cores", "dual", "ram", "memory", "hbm2", "hbm2e", "hbm3", "hbm3e",
    )
)  # fmt: skip


# --- reading the files ------------------------------------------------------------------------------------------


def profile_folders() -> tuple[Path, ...]:
    """Folders whose ``*.toml`` are read: the shipped ones, then the user's own (which may override a slug)."""
    from platformdirs import user_config_path

    return (resource("hardware_profiles"), user_config_path("draft-advisor") / "hardware_profiles")


class _Section(NamedTuple):
    """One ``[devices.SLUG]`` table as text, not parsed until somebody wants it."""

    file: Path
    text: str
    vendor: str
    sources: Mapping[str, str]


class Profiles(Mapping[str, Device]):
    """Devices by slug. Tables are parsed when they are asked for: parsing all of them takes longer than predicting."""

    def __init__(self, sections: dict[str, _Section], families: dict[str, tuple[str, ...]]) -> None:
        self._sections = sections
        self._parsed: dict[str, Device] = {}
        self.families = families
        """Names that do not settle which device is meant, with the devices they may mean, the likeliest first."""

    def __getitem__(self, slug: str) -> Device:
        if slug not in self._parsed:
            self._parsed[slug] = _device(slug, self._sections[slug])
        return self._parsed[slug]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)

    def names(self) -> dict[str, tuple[str, ...]]:
        """Slug, name and aliases of every device, read without parsing the tables."""
        return {slug: (slug, *_quick_names(section.text)) for slug, section in self._sections.items()}

    def file(self, slug: str) -> Path:
        """The file that describes this device."""
        return self._sections[slug].file


_HEADER = re.compile(r"(?m)^(?=\[)")
_TABLE = re.compile(r'\[devices\.(?:"([^"]+)"|([A-Za-z0-9_-]+))\]')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _quick_names(text: str) -> Iterator[str]:
    # Only the value of these two keys is looked at, so a quoted word in a note is never taken for a name.
    for key in ("name", "aliases"):
        match = re.search(rf"(?m)^{key}\s*=\s*(.*)$", text)
        if match:
            yield from _STRING.findall(match[1])


def _toml(text: str, where: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{clean(where)} is not valid TOML: {error}.", _FORMAT) from None


@lru_cache(maxsize=1)
def devices() -> Profiles:
    """Every known device by slug.

    Raises:
        InputError: a profile file cannot be read or is not valid.
    """
    sections: dict[str, _Section] = {}
    families: dict[str, tuple[str, ...]] = {}
    for folder in profile_folders():
        for path in sorted(folder.glob("*.toml")):
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"Hardware profile {clean(str(path))} cannot be read: {error}.") from None
            head, *tables = _HEADER.split(text)
            top = _toml(head + "".join(t for t in tables if not t.startswith("[devices.")), str(path))
            sources = top.get("sources", {})
            families.update({name: tuple(slugs) for name, slugs in top.get("families", {}).items()})
            for table in tables:
                match = _TABLE.match(table)
                if match:
                    sections[match[1] or match[2]] = _Section(path, table, top.get("vendor", ""), sources)
    return Profiles(sections, families)


def _device(slug: str, section: _Section) -> Device:
    where = f"{section.file} [devices.{slug}]"
    table = _toml(section.text, where)["devices"][slug]
    vendor = table.pop("vendor", section.vendor)
    values: dict[str, Any] = {"slug": slug, "vendor": vendor, "device_class": table.pop("class", None)}
    try:
        for key, value in table.items():
            if key in UNITS:
                values[key] = Figure(unit=UNITS[key], **{**value, "source": _source(value["source"], section.sources)})
            else:
                values[key] = value
        return Device.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(f"Hardware profile {clean(where)}: {field}: {first['msg']}.", _FORMAT) from None
    except (KeyError, TypeError):
        raise InputError(
            f"Hardware profile {clean(where)}: every figure needs a value, a kind and a source.",
            _FORMAT,
        ) from None


def _source(text: str, sources: Mapping[str, str]) -> str:
    key, colon, rest = text.partition(":")
    return sources[key] + colon + rest if key in sources else text


# --- names --------------------------------------------------------------------------------------------------------

_MEMORY = re.compile(r"\b(\d+)\s*(?:gb|gib)\b")


class _Query(NamedTuple):
    """A name reduced to what identifies a device: words, and a memory size if one is stated [GB]."""

    words: tuple[str, ...]
    memory: float | None

    @property
    def key(self) -> str:
        return "".join(self.words)


_MARKS = re.compile(r"\((?:r|tm)\)")
_SPLITS = (
    (re.compile(r"\bgb10\b"), "gbten"),  # a chip, not ten gigabytes
    (re.compile(r"\bsxm\d\b"), "sxm"),
    (re.compile(r"(\d{2,})([a-z]{2,})"), r"\1 \2"),  # 7900xtx, 3080ti
    (re.compile(r"(\d)([a-z]{3,})"), r"\1 \2"),  # m4max
    (re.compile(r"([a-z]{2,})(\d{2,})"), r"\1 \2"),  # rtx3090, hx370
)
_WORD = re.compile(r"[a-z0-9.]+")


def _reduce(text: str) -> _Query:
    text = _MARKS.sub(" ", text.lower()).replace("×", "x")
    memory = _MEMORY.search(text)
    if memory:
        text = _MEMORY.sub(" ", text)
    for pattern, replacement in _SPLITS:
        text = pattern.sub(replacement, text)
    words = tuple(w for w in _WORD.findall(text) if w not in _NOISE)
    return _Query(words, float(memory[1]) if memory else None)


class _Entry(NamedTuple):
    """One spelling: ``targets`` has several slugs when the spelling is a family."""

    query: _Query
    targets: tuple[str, ...]
    label: str


@lru_cache(maxsize=1)
def _index() -> tuple[_Entry, ...]:
    known = devices()
    entries = [_Entry(_reduce(name), slugs, name) for name, slugs in known.families.items()]
    for slug, names in known.names().items():
        spellings: set[str] = set(names)
        for name in names:
            outside = re.sub(r"\([^)]*\)", " ", name).strip()
            spellings.add(outside)
        entries += [_Entry(_reduce(s), (slug,), names[1] if len(names) > 1 else slug) for s in sorted(spellings) if s]
    return tuple(e for e in entries if e.query.words)


@lru_cache(maxsize=1)
def _by_key() -> dict[str, tuple[_Entry, ...]]:
    found: dict[str, list[_Entry]] = {}
    for entry in _index():
        found.setdefault(entry.query.key, []).append(entry)
    return {key: tuple(entries) for key, entries in found.items()}


@lru_cache(maxsize=1)
def _literal() -> dict[str, str]:
    """Spellings that mean one device as they stand, so that the common case needs no index."""
    known = devices()
    found: dict[str, set[str]] = {}
    for slug, names in known.names().items():
        for name in names:
            found.setdefault(name.lower(), set()).add(slug)
    families = {name.lower() for name in known.families}
    return {name: min(slugs) for name, slugs in found.items() if len(slugs) == 1 and name not in families}


class _Match(NamedTuple):
    device: Device
    assumptions: tuple[str, ...]


def _figures(device: Device) -> str:
    parts = [f"{device.bandwidth.value:g} GB/s" if device.bandwidth else "bandwidth unknown"]
    if device.memory:
        parts.append(f"{device.memory.value:g} GB")
    return ", ".join(parts)


def _has_memory(slug: str, memory: float) -> bool:
    device = devices()[slug]
    return memory in device.memory_options or (device.memory is not None and device.memory.value == memory)


def _pick(entry: _Entry, memory: float | None) -> _Match:
    known = devices()
    slugs = entry.targets
    if memory is not None:
        slugs = tuple(s for s in slugs if _has_memory(s, memory)) or slugs
    device = known[slugs[0]]
    said: list[str] = []
    if len(slugs) > 1:
        others = "; ".join(f"{known[s].name} ({_figures(known[s])})" for s in slugs[1:])
        said.append(
            f'"{entry.label}" may be several devices: {device.name} ({_figures(device)}) is assumed, not {others}.'
        )
    return _Match(_with_memory(device, memory, said), tuple(said))


def _with_memory(device: Device, memory: float | None, said: list[str]) -> Device:
    if memory is not None and (device.memory is None or device.memory.value != memory):
        stated = Figure(value=memory, unit="GB", kind="published", source="stated in the name of the machine")
        return device.model_copy(update={"memory": stated})
    if memory is None and len(device.memory_options) > 1 and device.memory:
        sizes = ", ".join(f"{size:g}" for size in device.memory_options)
        short = _MEMORY.sub("", device.name.split(" (")[0].replace("GB", "gb")).strip()
        said.append(
            f"{device.name} is sold with {sizes} GB: {device.memory.value:g} GB is assumed "
            f'(write for example "{short} {device.memory_options[0]:g}GB").'
        )
    return device


def _exact(text: str) -> _Match | None:
    known = devices()
    literal = _literal().get(text.strip().lower())
    if literal and known[literal].bandwidth:
        query = _reduce(text)
        return _pick(_Entry(query, (literal,), known[literal].name), query.memory)
    slug = text.strip().lower()
    query = _reduce(text)
    if not query.words:
        return None
    entries = _by_key().get(query.key, ())
    family = next((e for e in entries if len(e.targets) > 1), None)
    if slug in known and (known[slug].bandwidth or not family):
        return _pick(_Entry(query, (slug,), known[slug].name), query.memory)
    if family:
        return _pick(family, query.memory)
    return _choose(text, entries, query.memory)


def _choose(text: str, entries: Iterable[_Entry], memory: float | None) -> _Match | None:
    """The one device meant, None if there is none; several are an error that names them."""
    by_target = {e.targets: e for e in entries}
    if memory is not None:
        fitting = {t: e for t, e in by_target.items() if any(_has_memory(s, memory) for s in t)}
        by_target = fitting or by_target
    elif len(by_target) > 1:
        # "RTX 3080" is the card of that name, not "RTX 3080 12GB".
        plain = {t: e for t, e in by_target.items() if e.query.memory is None}
        by_target = plain or by_target
    if not by_target:
        return None
    if len(by_target) > 1:
        names = sorted({e.label for e in by_target.values()})
        raise UnknownHardwareError(
            f'"{clean(text)}" may be any of: {", ".join(names[:8])}{" …" if len(names) > 8 else ""}.',
            "Write the full name; `advisor hardware list` shows all of them.",
        )
    return _pick(next(iter(by_target.values())), memory)


def _partial(text: str) -> _Match | None:
    """A name that leaves out words ("3090"): the device with the fewest further words."""
    query = _reduce(text)
    if not query.words or len(query.key) < 2:
        return None
    wanted = set(query.words)
    found = [e for e in _index() if wanted <= set(e.query.words)]
    if not found:
        return None
    fewest = min(len(e.query.words) for e in found)
    return _choose(text, [e for e in found if len(e.query.words) == fewest], query.memory)


_DDR = re.compile(r"\b(lp)?ddr(\d)x?[ -]?(\d{4,5})\b", re.IGNORECASE)
_CHANNELS = re.compile(
    r"\b(?:(\d+)\s*-?\s*(?:ch|channels?)|(single|dual|quad|octa)[ -]?channel|(\d+)[ -]?bit)\b", re.IGNORECASE
)
_CHANNEL_WORDS = {"single": 1, "dual": 2, "quad": 4, "octa": 8}


def memory_device(text: str) -> Device | None:
    """A CPU described by its memory, such as "DDR5-7200 quad channel 256GB"; None if the text names no memory type.

    Bandwidth = channels x MT/s x 8 bytes [GB/s]; two channels when the text names none (the source then says so).
    """
    ddr = _DDR.search(text)
    if not ddr:
        return None
    channels, told = 2, "two channels assumed"
    match = _CHANNELS.search(text)
    if match:
        told = "as named"
        channels = int(match[1]) if match[1] else _CHANNEL_WORDS[match[2].lower()] if match[2] else int(match[3]) // 64
    if not 1 <= channels <= 48:
        return None
    speed = int(ddr[3])
    kind = f"{(ddr[1] or '').upper()}DDR{ddr[2]}"
    memory = _MEMORY.search(text.lower())
    return Device(
        slug=f"cpu-{kind.lower()}-{speed}-{channels}ch",
        name=f"CPU {kind}-{speed}, {channels} channel{'s' if channels > 1 else ''}",
        vendor="generic",
        device_class="desktop-cpu" if channels <= 2 else "server-cpu",
        bandwidth=Figure(
            value=round(channels * speed * 8 / 1000, 1),
            unit="GB/s",
            kind="published" if match else "assumed",
            source=f"{channels} x {speed} MT/s x 8 bytes, {told}",
        ),
        memory=Figure(value=float(memory[1]), unit="GB", kind="published", source="stated in the name of the machine")
        if memory
        else None,
    )


def _lookup(text: str) -> _Match | None:
    found = _exact(text)
    if found:
        return found
    if _DDR.search(text) and not re.search(r"\b(epyc|xeon|threadripper|ampereone|ryzen|core)\b", text.lower()):
        device = memory_device(text)
        if device:
            known = devices().get(device.slug)
            return _Match(known.model_copy(update={"memory": device.memory}) if known else device, ())
    return _partial(text)


_TIMES = re.compile(
    r"^\s*(?:(\d{1,2})\s*[x×*]\s*|(dual|quad)\s+)(?=\D|\d{3})(.+)$|^\s*(.+?)\s+[x×*]\s*(\d{1,2})\s*$", re.IGNORECASE
)


def _part(text: str) -> list[_Match] | None:
    """The device(s) of one part of a name; None if unknown."""
    found = _exact(text)
    if found and found.device.bandwidth:
        return [found]
    times = _TIMES.match(text)
    if times:
        count = int(times[1] or times[5] or {"dual": 2, "quad": 4}[times[2].lower()])
        each = _lookup(times[3] or times[4])
        if each and 1 <= count <= 16:
            return [each] * count
    found = found or _lookup(text)
    return [found] if found else None


def _unknown(text: str) -> UnknownHardwareError:
    close = closest(text)
    hint = f"Closest: {', '.join(close)}." if close else "`advisor hardware list` shows all of them."
    return UnknownHardwareError(
        f'No hardware profile is called "{clean(text)}".',
        f"{hint} A machine without a profile is described by --bandwidth GB/s and --memory GB.",
    )


def closest(text: str, count: int = 5) -> tuple[str, ...]:
    """Names of known devices that look most like ``text``, best first."""
    from difflib import SequenceMatcher

    query = _reduce(text)
    wanted = set(query.words)
    scores: dict[str, float] = {}
    for entry in _index():
        words = set(entry.query.words)
        common = len(wanted & words) / max(1, len(wanted | words))
        score = SequenceMatcher(None, query.key, entry.query.key).ratio() + common
        scores[entry.label] = max(scores.get(entry.label, 0.0), score)
    best = sorted((-score, label) for label, score in scores.items() if score > 0.6)
    return tuple(label for _, label in best[:count])


def find(name: str) -> Hardware:
    """The machine that a name describes; see the module's docstring for the spellings.

    What the name leaves open is filled with the likeliest value and listed in ``assumptions``.

    Raises:
        UnknownHardwareError: no device is called so, or several are and none is likelier.
    """
    text = " ".join(name.split())[:300]
    if not text:
        raise UnknownHardwareError("The name of the machine is empty.", "`advisor hardware list` shows the profiles.")
    matches = _split(text)
    found = [match.device for match in matches]
    said = [sentence for match in matches for sentence in match.assumptions]
    return machine(found, tuple(dict.fromkeys(said)))


def _split(text: str) -> list[_Match]:
    exact = _exact(text) if re.search(r"[+,&]|\band\b", text) else None
    if exact and exact.device.bandwidth:
        return [exact]  # a name that holds such a sign itself
    if "+" in text and not re.search(r"\s\+\s", text):
        # "a+b" may be two devices or one product ("Ryzen AI Max+ 395").
        whole = _part(text)
        if whole:
            return whole
        parts = text.split("+")
    else:
        parts = re.split(r"\s\+\s|\s*[,&]\s*|\s+and\s+", text)
    matches: list[_Match] = []
    for part in parts:
        found = _part(part)
        if found is None:
            raise _unknown(part)
        matches += found
    return matches


def recognise(description: str, memory: float | None = None) -> Device | None:
    """The first of :func:`candidates`, None if there is none."""
    return next(iter(candidates(description, memory)), None)


def candidates(description: str, memory: float | None = None) -> tuple[Device, ...]:
    """Devices that a driver's, engine's or PCI database's product name may mean, the likeliest first.

    ``memory`` [GB] chooses between cards that share a name: a 10 and a 12 GB version, or "RX 7900 XT/7900 XTX".
    """
    plain = re.sub(r"(?i)\((r|tm)\)", "", description)
    # Vulkan drivers put the chip in brackets: "AMD Radeon Graphics (RADV GFX1151)".
    inside = [re.sub(r"(?i)\bradv\b|_", " ", part) for part in re.findall(r"\(([^)]*)\)", plain)]
    for text in (plain, re.sub(r"\([^)]*\)", " ", plain), *inside):
        slugs = list(dict.fromkeys(slug for name in _alternatives(text) for slug in _named(name)))
        known = [devices()[slug] for slug in slugs]
        if memory is not None:
            known = [device for device in known if _near(device, memory)] or known
        usable = tuple(device for device in known if device.bandwidth)
        if usable:
            return usable
    return ()


def _named(text: str) -> list[str]:
    query = _reduce(text)
    exact = sorted(
        _by_key().get(query.key, ()) if query.words else (), key=lambda entry: len(entry.targets), reverse=True
    )  # families know which is likeliest
    return [slug for entry in exact for slug in entry.targets]


def _alternatives(text: str) -> list[str]:
    """ "Radeon RX 7900 XT/7900 XTX" as two names; other texts as they are."""
    parts = text.split("/")
    if len(parts) == 1 or len(parts) > 8:
        return [text]
    first = re.match(r"\D*", parts[0])
    prefix = first[0] if first else ""
    return [text, parts[0], *(name for part in parts[1:] for name in (part, f"{prefix}{part}"))]


def _near(device: Device, memory: float) -> bool:
    # Drivers report GiB minus what they reserve; makers sell GB.
    sizes = device.memory_options or ((device.memory.value,) if device.memory else ())
    return any(abs(size - memory) <= 0.09 * size for size in sizes)


# --- machines -----------------------------------------------------------------------------------------------------


def default_backend(device: Device) -> Backend:
    """The backend of llama.cpp that serves single-stream decoding best on such a device, as far as published.

    - NVIDIA: CUDA. Apple: Metal. Processors: CPU.
    - AMD: Vulkan. At batch 1 it reaches more of the bandwidth than ROCm on the same cards with Q4_0 (7B):
      RX 7900 XTX 73 against 67 %, RX 9070 XT 81 against 60 %, R9700 86 against 61 %, Ryzen AI Max+ 395 83 against
      77 %; and the builds people download carry it. Instinct cards: ROCm, the only backend with published rows.
    - Intel: Vulkan, as Arc B580 reads 59 % with it and 55 % with SYCL; Data Center GPU Max: SYCL.
    """
    if device.is_cpu:
        return "cpu"
    if device.vendor == "NVIDIA":
        return "cuda"
    if device.vendor == "Apple":
        return "metal"
    if device.device_class == "datacenter-gpu":
        return "sycl" if device.vendor == "Intel" else "rocm"
    return "vulkan"


def machine(
    found: Iterable[Device],
    assumptions: tuple[str, ...] = (),
    source: Literal["profile", "detected", "numbers"] = "profile",
    host: Device | None = None,
) -> Hardware:
    """A machine made of these devices: GPUs hold the model, a CPU among them is the host behind discrete GPUs.

    Discrete GPUs without a CPU get an assumed host (dual-channel DDR5-5600) and link (PCIe 4.0 x16).
    """
    every = tuple(found)
    cpus = tuple(device for device in every if device.is_cpu)
    gpus = tuple(device for device in every if not device.is_cpu)
    said = list(assumptions)
    if not gpus:
        return Hardware(
            name=_title(cpus[:1]),
            devices=cpus[:1],
            backend="cpu",
            source=source,
            assumptions=tuple(said),
        )
    discrete = [device for device in gpus if device.device_class in _DISCRETE]
    link = None
    if discrete:
        link = DEFAULT_LINK
        unified = next((device for device in gpus if device.is_unified), None)
        host = host or (cpus[0] if cpus else unified)
        if host is None:
            host = devices()[DEFAULT_HOST]
            said.append(
                "Host memory is not stated: dual-channel DDR5-5600 is assumed (add for example "
                '" + DDR5-6000 dual channel 64GB").'
            )
        said.append("The link between host and GPU is assumed to be PCIe 4.0 x16 (25 GB/s).")
    backends = {default_backend(device) for device in gpus}
    backend: Backend = backends.pop() if len(backends) == 1 else "vulkan"
    if len({device.vendor for device in gpus}) > 1:
        said.append("Devices of different makers share one llama.cpp backend: Vulkan is assumed.")
    return Hardware(
        name=_title(gpus + cpus[:1]),
        devices=gpus,
        host=host if discrete else None,
        link=link,
        backend=backend,
        source=source,
        assumptions=tuple(said),
    )


def _title(every: tuple[Device, ...]) -> str:
    counts: dict[str, int] = {}
    for device in every:
        counts[device.name] = counts.get(device.name, 0) + 1
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counts.items())
