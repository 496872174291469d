"""Models on the Hugging Face Hub, described without downloading them.

A GGUF header is fetched by range requests, block by block, until the tensor table has been read. Repositories
without GGUF are described from ``config.json``. Everything goes through ``huggingface_hub`` (0.34 to 2.x): its
session, token, endpoint and offline switch. Headers are kept by etag (see :mod:`advisor.models.cache`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from advisor.errors import AdvisorError, HubError, InputError, ModelFileError, UnknownModelError
from advisor.models import cache
from advisor.models.describe import QUANT_NAME, describe_header
from advisor.models.description import ModelDescription
from advisor.models.files import SHARD, is_companion, join
from advisor.models.gguf import FileSource, Header, parse
from advisor.text import clean

BLOCK = 1 << 20
"""Bytes per range request."""
SHARD_BLOCK = 1 << 17
"""The same for later shards, whose headers hold a tensor table only."""
MOST_KEPT = 256 << 20
"""Bytes of headers kept on disk; the oldest go first."""
TIMEOUT = 20.0
"""Seconds a server may stay silent."""
PREFERRED = ("Q4_K_M", "UD-Q4_K_XL", "MXFP4", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0", "BF16", "F16")
"""File type taken when the user names none: as llama.cpp's ``-hf`` Q4_K_M, then the next in this order."""


class Place(NamedTuple):
    """Where on the Hub: ``file`` or ``quant`` may be open. ``url`` is set for addresses of other servers."""

    repo: str
    revision: str
    file: str | None
    quant: str | None
    url: str | None = None


class RemoteFile(NamedTuple):
    """What a server says of a file: its address, version and size [bytes], None if it does not tell."""

    url: str
    etag: str
    size: int | None


def endpoint() -> str:
    """The Hub's address: ``HF_ENDPOINT`` or the public one."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def is_offline() -> bool:
    """Whether the user switched the network off for Hub tools (``HF_HUB_OFFLINE``)."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def parse_place(text: str) -> Place:
    """Take a Hub reference apart.

    ``org/repo``, ``org/repo:Q4_K_M``, ``org/repo@revision``, ``org/repo/file.gguf``, the same behind ``hf:``, and
    addresses of repositories or files (``/blob/`` is read as ``/resolve/``).

    Raises:
        InputError: not a Hub reference.
    """
    shown = clean(text, 120)
    rest = re.sub(r"^hf:(?://)?", "", text.strip(), flags=re.IGNORECASE)
    rest = re.sub(r"^(?:www\.)?(?:hf\.co|huggingface\.co)/", "https://huggingface.co/", rest, flags=re.IGNORECASE)
    if re.match(r"https?://", rest, re.IGNORECASE):
        parts = urlsplit(rest)
        hosts = {"huggingface.co", "www.huggingface.co", "hf.co", urlsplit(endpoint()).netloc.lower()}
        if parts.netloc.lower() not in hosts:
            name = unquote(parts.path.rsplit("/", 1)[-1])
            if not name.lower().endswith(".gguf"):
                raise InputError(f"{shown} is not the address of a .gguf file.", "Give the file's own address.")
            return Place("", "", name, None, rest)
        rest = unquote(parts.path).strip("/")
    rest, quant = _split_quant(rest)
    pieces = [p for p in rest.split("/") if p]
    if len(pieces) < 2 or any(p in (".", "..") for p in pieces):
        raise InputError(f"{shown} names no Hub repository.", "Write org/repo, org/repo:Q4_K_M or org/repo/file.gguf.")
    owner, name, *inside = pieces
    name, _, revision = name.partition("@")
    if len(inside) >= 2 and inside[0] in ("blob", "resolve", "raw", "tree"):
        revision, inside = inside[1], inside[2:] if inside[0] != "tree" else []
    if not all(re.fullmatch(r"[A-Za-z0-9][\w.-]*", part) for part in (owner, name)):
        raise InputError(f"{shown} names no Hub repository.", "Write org/repo, org/repo:Q4_K_M or org/repo/file.gguf.")
    file = "/".join(inside) or None
    if file is not None and not file.lower().endswith(".gguf"):
        raise InputError(f"{clean(file, 80)} is not a GGUF file.", "Name a .gguf file of the repository.")
    if quant and quant.lower().endswith(".gguf"):
        file, quant = quant, None
    return Place(f"{owner}/{name}", revision or "main", file, quant)


def _split_quant(text: str) -> tuple[str, str | None]:
    head, colon, tail = text.rpartition(":")
    return (head, tail or None) if colon and "/" in head else (text, None)


def describe_hub(reference: str, *, quant: str | None = None, offline: bool = False) -> ModelDescription:
    """Describe a model on the Hub from its header or config.

    Args:
        reference: see :func:`parse_place`.
        quant: file type, where the reference leaves it open.
        offline: use caches only; also set by ``HF_HUB_OFFLINE``.

    Raises:
        InputError: not a Hub reference.
        UnknownModelError: no such repository, revision, file or file type.
        ModelFileError: the file is no usable GGUF.
        HubError: the server could not be reached, refused (gated or private), or answered nonsense.
    """
    place = parse_place(reference)
    if quant and not place.quant and not place.file:
        place = place._replace(quant=quant)
    if offline or is_offline():
        return _offline(place, reference)
    if place.url is not None:
        return _finish(_remote_header(place, place.url, place.file or "model.gguf"), reference, place)
    assumptions: tuple[str, ...] = ()
    files = [place.file] if place.file else []
    if not files:
        info = _info(place)
        names = [s.rfilename for s in info.siblings or () if isinstance(s.rfilename, str)]
        chosen = choose_file(names, place)
        if chosen is None:
            from advisor.models.hfconfig import describe_repository

            return describe_repository(place.repo, _json(place, "config.json"), info, place.quant, reference)
        files = [chosen]
        if place.quant is None:
            assumptions = (f"{clean(chosen, 100)} of the repository's files (no file type in the name)",)
    header = _whole(place, files[0])
    found = _finish(header, reference, place)
    return found.model_copy(update={"assumptions": (*assumptions, *found.assumptions)})


def choose_file(names: list[str], place: Place) -> str | None:
    """The GGUF to describe among a repository's files; None if it has none (first shard of a set).

    Raises:
        UnknownModelError: the wanted file type is not there.
    """
    ggufs = [n for n in names if n.lower().endswith(".gguf")]
    models = [n for n in ggufs if not is_companion(n.rsplit("/", 1)[-1])] or ggufs
    firsts: dict[str, str] = {}
    for name in sorted(models):
        match = SHARD.fullmatch(name)
        firsts.setdefault(match["prefix"] if match else name, name)
    if not firsts:
        return None
    labels = {name: file_type(name) for name in firsts.values()}
    if place.quant:
        wanted = place.quant.upper()
        exact = [n for n, label in labels.items() if label in (wanted, f"UD-{wanted}")]
        exact.sort(key=lambda n: labels[n] != wanted)
        if exact:
            return exact[0]
        there = ", ".join(sorted({label for label in labels.values() if label})) or "none named"
        raise UnknownModelError(
            f"{place.repo} has no file of type {clean(place.quant, 40)}.", f"It has: {clean(there, 300)}."
        )
    for preferred in PREFERRED:
        for name, label in labels.items():
            if label == preferred:
                return name
    return next(iter(firsts.values()))


def file_type(name: str) -> str | None:
    """The file type a file's or folder's name tells, e.g. ``UD-Q4_K_XL``."""
    for part in reversed(name.split("/")):
        match = QUANT_NAME.search(re.sub(r"\.gguf$", "", part, flags=re.IGNORECASE))
        if match:
            return match.group(1).upper()
    return None


def _finish(header: Header, reference: str, place: Place) -> ModelDescription:
    from advisor.models.catalogue import recognise

    found = describe_header(header, reference=reference, source="hub-gguf")
    source = f"header read from {place.repo}" if place.repo else "header read from a web address"
    update: dict[str, Any] = {
        "catalogue_slug": recognise(found),
        "files": (),
        "notes": (*found.notes, f"{source}, nothing else downloaded"),
    }
    return found.model_copy(update=update)


def _whole(place: Place, file: str) -> Header:
    """The header of a file or of all shards of its set."""
    match = SHARD.fullmatch(file)
    first = _hub_header(place, file)
    count = first.integer("split.count") or 1
    if count <= 1:
        return first
    if match is None or int(match["count"]) != count:
        raise ModelFileError(
            f"{clean(file)} is one of {count} parts, but its name does not tell where the others are.",
            "Name a repository whose parts are called NAME-00001-of-00002.gguf.",
        )
    headers = []
    for number in range(1, count + 1):
        name = f"{match['prefix']}-{number:05d}-of-{count:05d}{match['end']}"
        headers.append(first if name == file else _hub_header(place, name, SHARD_BLOCK if number > 1 else None))
    return join(headers)


# -- headers over the network, and their cache --------------------------------------------------------------------


def _hub_header(place: Place, file: str, block: int | None = None) -> Header:
    import huggingface_hub

    url = huggingface_hub.hf_hub_url(place.repo, file, revision=place.revision, endpoint=endpoint())
    return _remote_header(place, url, file, block)


def _remote_header(place: Place, url: str, file: str, block: int | None = None) -> Header:
    """The header of one remote file: from the cache if its etag is unchanged, else by range requests."""
    with _explained(place, file):
        remote = _head(place, url)
        entry = _entry(place, file)
        kept = _kept(entry, remote.etag) if remote.etag else None
        if kept is None:
            source = RangeSource(remote, _headers(place), block or BLOCK)
            try:
                header = parse(source, file.rsplit("/", 1)[-1])
            finally:
                source.close()
            _keep(entry, remote.etag, source.size, bytes(source.seen[: header.data_offset]))
            kept = _kept(entry, remote.etag)
            if kept is None:  # no cache could be written: the description simply has no token texts at hand
                return header
    path, size = kept
    return _cached_header(path, size, file)


def _cached_header(path: Path, size: int, file: str) -> Header:
    source = FileSource(path)
    source.size = size
    try:
        header = parse(source, file.rsplit("/", 1)[-1])
    finally:
        source.close()
    return replace(header, files=(path,))


def _entry(place: Place, file: str) -> Path:
    """The cache entry's path without its ending."""
    what = place.url or f"{endpoint()}\0{place.repo}\0{place.revision}\0{file}"
    return cache.folder() / "hub" / hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()


def _kept(entry: Path, etag: str | None) -> tuple[Path, int] | None:
    """The kept header and the remote file's size, if it is of that version (any version for None)."""
    try:
        known = json.loads(entry.with_suffix(".json").read_bytes())
        path = entry.with_name(f"{entry.name}-{known['version']}.gguf-header")
        if (etag is not None and known["etag"] != etag) or path.stat().st_size != known["bytes"]:
            return None
        return path, int(known["size"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _keep(entry: Path, etag: str, size: int, header: bytes) -> None:
    version = hashlib.sha256(etag.encode() + header[-4096:]).hexdigest()[:16]
    path = entry.with_name(f"{entry.name}-{version}.gguf-header")
    if cache.write(path, header, MOST_KEPT):
        facts = {"etag": etag, "size": size, "bytes": len(header), "version": version}
        cache.write(entry.with_suffix(".json"), json.dumps(facts).encode(), MOST_KEPT)


def _head(place: Place, url: str) -> RemoteFile:
    """Address after redirects, etag and size of a file."""
    if place.url is None:
        from huggingface_hub import get_hf_file_metadata

        found = get_hf_file_metadata(url, token=_token() or False, timeout=TIMEOUT)
        location = found.location or url
        return RemoteFile(location, found.etag or "", found.size)
    with _open("HEAD", url, {"Accept-Encoding": "identity"}) as response:
        _raise_for_status(response)
        size = response.headers.get("Content-Length") or ""
        etag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        return RemoteFile(str(response.url), etag, int(size) if size.isdigit() else None)


def _token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _headers(place: Place) -> dict[str, str]:
    """Request headers; the token goes to the Hub alone, never to another host."""
    if place.url is not None:
        return {}
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, not in __all__

    headers: dict[str, str] = build_hf_headers(token=_token() or False)
    return headers


class RangeSource:
    """A remote file as a :class:`~advisor.models.gguf.Source`: one range request per block.

    A server that ignores ranges sends the file from its start: then that one answer is read on as far as needed
    and closed. ``seen`` collects what was fetched, from the first byte on.
    """

    def __init__(self, remote: RemoteFile, headers: dict[str, str], block: int) -> None:
        self.remote, self.block = remote, block
        self.size = remote.size or 0
        self.seen = bytearray()
        self._stream: Any = None
        self._chunks: Iterator[bytes] | None = None
        own = urlsplit(remote.url).netloc == urlsplit(endpoint()).netloc
        self._headers = {k: v for k, v in headers.items() if own or k.lower() != "authorization"}
        self._headers["Accept-Encoding"] = "identity"
        if remote.size is None:  # then the answer to the first range tells it
            self._fetch(0, self.block)
            if not self.size:
                self.close()
                raise HubError("The server does not tell how large the file is.", "Download it and give its path.")

    def read(self, start: int, count: int) -> bytes:
        """Bytes from ``start``, which is always where the last read ended.

        Raises:
            HubError: the server's answer does not fit the request.
        """
        end = start + count
        while len(self.seen) < end:
            before = len(self.seen)
            if self._chunks is None:
                self._fetch(before, end - before)
            if self._chunks is not None:
                self.seen += next(self._chunks, b"")
            if len(self.seen) == before:
                break
        return bytes(self.seen[start:end])

    def _fetch(self, start: int, count: int) -> None:
        stop = start + count - 1
        headers = {**self._headers, "Range": f"bytes={start}-{stop}"}
        context = _open("GET", self.remote.url, headers)
        response = context.__enter__()
        try:
            _raise_for_status(response)
            if response.status_code == 206:
                stated = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers.get("Content-Range", "").strip())
                if stated is None or int(stated[1]) != start:
                    raise HubError("The server sent another part of the file than was asked for.", "Try again.")
                if stated[3] != "*":
                    if self.size and int(stated[3]) != self.size:
                        raise HubError("The file changed on the server while it was read.", "Try again.")
                    self.size = int(stated[3])
                for chunk in _chunks(response):
                    self.seen += chunk[: start + count - len(self.seen)]
                    if len(self.seen) >= start + count:
                        break
            elif start == 0:
                length = response.headers.get("Content-Length", "")
                self.size = self.size or (int(length) if length.isdigit() else 0)
                self._stream, self._chunks = context, _chunks(response)
                return
            else:
                raise HubError("The server does not serve parts of files.", "Download the file and give its path.")
        except BaseException:
            context.__exit__(None, None, None)
            raise
        context.__exit__(None, None, None)

    def close(self) -> None:
        """Drop the connection of a server that ignored ranges."""
        if self._stream is not None:
            self._stream.__exit__(None, None, None)
            self._stream = None


def _open(method: str, url: str, headers: dict[str, str]) -> Any:
    """A streamed request with huggingface_hub's session, whichever HTTP library that version uses."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # documented, not in __all__

    session: Any = get_session()
    if callable(getattr(session, "stream", None)):  # httpx and its successor, huggingface_hub from 1.0 on
        return session.stream(method, url, headers=headers, timeout=TIMEOUT, follow_redirects=True)
    return session.request(method, url, headers=headers, timeout=TIMEOUT, stream=True, allow_redirects=True)


def _chunks(response: Any) -> Iterator[bytes]:
    if hasattr(response, "iter_raw"):
        yield from response.iter_raw(1 << 16)
    else:
        yield from response.iter_content(1 << 16)


def _raise_for_status(response: Any) -> None:
    if response.status_code >= 400:
        raise RefusedError(response.status_code)


class RefusedError(Exception):
    """An HTTP status that huggingface_hub did not turn into an exception of its own."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


# -- the API ------------------------------------------------------------------------------------------------------


def _info(place: Place) -> Any:
    """What the Hub says of a repository: its files, whether it is gated."""
    from huggingface_hub import HfApi

    with _explained(place, None):
        api = HfApi(endpoint=endpoint(), token=_token() or False)
        return api.model_info(place.repo, revision=place.revision, files_metadata=True, timeout=TIMEOUT)


def _json(place: Place, file: str) -> dict[str, Any]:
    """A small JSON file of the repository.

    Raises:
        UnknownModelError: it is not there.
        HubError: it is not JSON, or too large to be a config.
    """
    import huggingface_hub

    url = huggingface_hub.hf_hub_url(place.repo, file, revision=place.revision, endpoint=endpoint())
    with _explained(place, file):
        remote = _head(place, url)
        if (remote.size or 0) > 4 << 20:
            raise HubError(f"{clean(file)} of {place.repo} is too long to be a config ({remote.size:,} bytes).")
        source = RangeSource(remote, _headers(place), 1 << 18)
        try:
            data = source.read(0, min(source.size, 4 << 20))
        finally:
            source.close()
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HubError(f"{clean(file)} of {place.repo} is not JSON.", "Name a GGUF file instead.") from error
    if not isinstance(found, dict):
        raise HubError(f"{clean(file)} of {place.repo} is not a config.", "Name a GGUF file instead.")
    return found


_CLIENTS = frozenset({"huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "h11"})


@contextmanager
def _explained(place: Place, file: str | None) -> Iterator[None]:
    """Turn whatever the Hub client raises into one sentence. The token never appears in it."""
    try:
        yield
    except AdvisorError:
        raise
    except Exception as error:
        # the exception classes differ between the client's versions and HTTP libraries: told by where they come from
        origin = type(error).__module__.partition(".")[0]
        if not isinstance(error, (OSError, RefusedError)) and origin not in _CLIENTS:
            raise
        raise _explain(error, place, file) from error


def _explain(error: Exception, place: Place, file: str | None) -> AdvisorError:
    from huggingface_hub import errors

    host = urlsplit(place.url or endpoint()).netloc
    what = place.repo or clean(place.url or "", 100)
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubError(f"{what} cannot be asked for: HF_HUB_OFFLINE is set.", "Unset it, or name a local file.")
    page = f"{endpoint()}/{place.repo}"
    if isinstance(error, errors.GatedRepoError):
        return HubError(
            f"{what} is gated: its files are given only to accounts that accepted its licence.",
            f"Accept it at {page}, then set HF_TOKEN or run `hf auth login`.",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return UnknownModelError(f"{what} has no revision {clean(place.revision, 60)}.", f"See {page}/tree/main.")
    if isinstance(error, errors.EntryNotFoundError):
        return _no_such_file(place, file)
    if isinstance(error, errors.RepositoryNotFoundError):
        return UnknownModelError(
            f"There is no repository {what} on {host}, or it is private.",
            _suggestion(place.repo) or "If it is private, set HF_TOKEN or run `hf auth login`.",
        )
    if isinstance(error, errors.HFValidationError):
        return InputError(f"{what} is not a repository name.", "Write org/repo.")
    if status in (401, 403):
        return HubError(
            f"{host} refused {what} (HTTP {status}).",
            f"If it is gated, accept its licence at {page}; the token is read from HF_TOKEN or `hf auth login`."
            if place.url is None
            else "The address needs a login, which is not supported: download the file.",
        )
    if status == 404:
        return _no_such_file(place, file)
    if status == 429:
        return HubError(f"{host} answers no more requests for now (HTTP 429).", "Wait a minute, or set HF_TOKEN.")
    if status:
        return HubError(f"{host} answered HTTP {status} for {what}.", "Try again later.")
    return HubError(
        f"{host} could not be reached ({_reason(error)}).",
        "Check the network, or name a local file or catalogue model.",
    )


def _reason(error: Exception) -> str:
    """A few words about a failed connection; the message itself may quote addresses with signatures."""
    name = type(error).__name__.lower()
    if "timeout" in name:
        return "no answer in time"
    if "ssl" in str(error).lower():
        return "the encrypted connection failed"
    if "resolution" in str(error).lower() or "name or service" in str(error).lower():
        return "its name could not be resolved"
    return "connection failed" if "connect" in name or "refused" in str(error).lower() else clean(type(error).__name__)


def _no_such_file(place: Place, file: str | None) -> UnknownModelError:
    hint = None
    if place.repo and file:
        with suppress(Exception):  # only for a better hint: whatever fails here, the answer stays
            import difflib

            from huggingface_hub import HfApi

            api = HfApi(endpoint=endpoint(), token=_token() or False)
            siblings = api.model_info(place.repo, revision=place.revision, timeout=TIMEOUT).siblings or ()
            names = [s.rfilename for s in siblings if s.rfilename.endswith(".gguf")][:2000]
            close = difflib.get_close_matches(file, names, n=2, cutoff=0.5) or names[:3]
            hint = f"It has {' and '.join(clean(n, 100) for n in close)}." if close else "It has no GGUF files."
    where = place.repo or urlsplit(place.url or "").netloc
    return UnknownModelError(f"{where} has no file {clean(file or '', 120)}.", hint)


def _suggestion(repo: str) -> str | None:
    from advisor.models.catalogue import find

    slug = find(repo)
    return f"The catalogue has {slug}." if slug else None


# -- offline ------------------------------------------------------------------------------------------------------


def _offline(place: Place, reference: str) -> ModelDescription:
    """What caches know: files downloaded by any Hub tool, then headers read earlier, then the catalogue."""
    from advisor.models.catalogue import describe_catalogue, find
    from advisor.models.files import describe_file
    from advisor.models.places import huggingface_folders

    if place.url is None:
        for folder in huggingface_folders():
            local = _downloaded(folder / f"models--{place.repo.replace('/', '--')}" / "snapshots", place)
            if local is not None:
                return describe_file(local, reference)
    if place.file is not None:
        header = _kept_whole(place, place.file)
        if header is not None:
            return _finish(header, reference, place)
    slug = find(place.repo) if place.repo else None
    if slug is not None and place.file is None:
        found = describe_catalogue(slug, quant=place.quant)
        note = f"described from the catalogue entry {slug}: {place.repo} was not asked (offline)"
        return found.model_copy(update={"reference": reference, "assumptions": (*found.assumptions, note)})
    raise HubError(
        f"{clean(place.repo or place.url or '', 100)} is not in any cache, and the network is switched off.",
        "Leave out --offline and unset HF_HUB_OFFLINE, or name a local file.",
    )


def _kept_whole(place: Place, file: str) -> Header | None:
    """The header of a file, or of all shards of its set, if all of it was read before."""
    match = SHARD.fullmatch(file)
    names = [file]
    if match is not None:
        count = int(match["count"])
        names = [f"{match['prefix']}-{i:05d}-of-{count:05d}{match['end']}" for i in range(1, min(count, 1000) + 1)]
    headers = []
    for name in names:
        kept = _kept(_entry(place, name), None)
        if kept is None:
            return None
        headers.append(_cached_header(*kept, name))
    return headers[0] if len(headers) == 1 else join(headers)


def _downloaded(snapshots: Path, place: Place) -> Path | None:
    """A fully downloaded file in a Hub cache that fits the reference."""
    try:
        revisions = sorted(snapshots.iterdir(), key=lambda p: p.stat().st_mtime_ns, reverse=True)
    except OSError:
        return None
    for revision in revisions:
        names = [p.relative_to(revision).as_posix() for p in revision.rglob("*.gguf") if p.is_file()]
        if place.file is not None:
            if place.file in names:
                return revision / place.file
            continue
        with suppress(UnknownModelError):
            chosen = choose_file(names, place)
            if chosen is not None:
                return revision / chosen
    return None
