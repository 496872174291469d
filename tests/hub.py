"""A small Hugging Face Hub on the loopback: repositories, redirects to a CDN, ranges, etags, gates and faults."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Repository:
    """``access`` "open", "gated" (listed, files refused), "private" (denied like a missing one)."""

    files: dict[str, bytes]
    access: str = "open"
    safetensors: int | None = None
    large: bool = True
    """Files are answered by a redirect to the CDN, as LFS files are."""


@dataclass
class Request:
    method: str
    path: str
    host: str
    authorization: str | None
    range: str | None
    sent: int = 0


@dataclass
class LoopbackHub:
    """The server's state. ``fault`` makes the CDN misbehave: see :meth:`_Handler.serve`."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    token: str | None = None
    """The token that opens gated and private repositories."""
    fault: str | None = None
    requests: list[Request] = field(default_factory=list)
    address: str = ""
    cdn: str = ""
    """The CDN under another host name, so that it is another origin."""

    def add(self, name: str, files: dict[str, bytes], **options: Any) -> Repository:
        self.repositories[name] = Repository(files, **options)
        return self.repositories[name]

    def sent(self, ending: str = "") -> int:
        """Body bytes sent for paths with that ending."""
        return sum(r.sent for r in self.requests if r.path.endswith(ending))

    def asked(self, method: str, part: str) -> list[Request]:
        return [r for r in self.requests if r.method == method and part in r.path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LoopbackHub

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = urlsplit(self.path).path
        self.request_record = Request(
            self.command,
            path,
            self.headers.get("Host", ""),
            self.headers.get("Authorization"),
            self.headers.get("Range"),
        )
        self.hub.requests.append(self.request_record)
        if self.hub.fault == "busy":
            return self.reply(429, b"slow down", body)
        if self.hub.fault == "broken":
            return self.reply(503, b"sorry", body)
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path)
        if listing:
            return self.listing(listing[1], listing[2] or "main", body)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if resolve:
            return self.resolve(resolve[1], resolve[2], resolve[3], body)
        cdn = re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path)
        if cdn:
            return self.serve(self.hub.repositories[cdn[1]].files[cdn[2]], body)
        return self.reply(404, b"Not Found", body)

    def allowed(self) -> bool:
        return self.hub.token is not None and self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def repository(self, name: str, body: bool) -> Repository | None:
        found = self.hub.repositories.get(name)
        if found is None or (found.access == "private" and not self.allowed()):
            self.reply(401, b"Repository not found", body, {"X-Error-Code": "RepoNotFound"})
            return None
        return found

    def listing(self, name: str, revision: str, body: bool) -> None:
        repository = self.repository(name, body)
        if repository is None:
            return
        if revision != "main":
            self.reply(404, b"no revision", body, {"X-Error-Code": "RevisionNotFound"})
            return
        facts: dict[str, Any] = {
            "id": name, "modelId": name, "sha": "c0ffee", "private": False, "tags": [], "downloads": 1, "likes": 0,
            "gated": "manual" if repository.access == "gated" else False,
            "siblings": [{"rfilename": n, "size": len(d)} for n, d in repository.files.items()],
        }  # fmt: skip
        if repository.safetensors:
            facts["safetensors"] = {"parameters": {"BF16": repository.safetensors}, "total": repository.safetensors}
        self.reply(200, json.dumps(facts).encode(), body, {"Content-Type": "application/json"})

    def resolve(self, name: str, revision: str, file: str, body: bool) -> None:
        repository = self.repository(name, body)
        if repository is None:
            return
        if revision != "main":
            self.reply(404, b"no revision", body, {"X-Error-Code": "RevisionNotFound"})
        elif repository.access == "gated" and not self.allowed():
            self.reply(403, b"gated", body, {"X-Error-Code": "GatedRepo"})
        elif repository.access == "refused":
            self.reply(403, b"forbidden", body)
        elif file not in repository.files:
            self.reply(404, b"Entry not found", body, {"X-Error-Code": "EntryNotFound"})
        else:
            data = repository.files[file]
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            headers = {"X-Repo-Commit": "c0ffee", "ETag": etag}
            if repository.large:
                headers |= {
                    "Location": f"{self.hub.cdn}/cdn/{name}/{file}?signature=secret", "X-Linked-Etag": etag,
                    "X-Linked-Size": str(len(data)),
                }  # fmt: skip
                self.reply(302, b"", body, headers)
            else:
                self.serve(data, body, headers)

    def serve(self, data: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
        """A file, by ranges unless a fault says otherwise."""
        fault = self.hub.fault
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        more = {"Accept-Ranges": "bytes", **(headers or {})}
        if wanted is None or fault == "no ranges":
            self.reply(200, data, body, headers or {})
            return
        start, stop = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
        if fault == "no ranges later" and start:
            self.reply(200, data, body, headers or {})
            return
        if fault == "wrong range":
            start += 7
        total = len(data) + (5 if fault == "other size" and start else 0)
        more["Content-Range"] = f"bytes {start}-{stop}/{total}"
        part = data[start : stop + 1]
        if fault == "greedy":
            part = data[start:]  # more than was asked for
        if fault == "cut":
            part = part[: len(part) // 2]
        self.reply(206, part, body, more)

    def reply(self, status: int, data: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not body:
            return
        try:
            for start in range(0, len(data), 1 << 16):
                part = data[start : start + (1 << 16)]
                self.request_record.sent += len(part)  # before the write: the client may look at once
                self.wfile.write(part)
        except OSError:
            self.close_connection = True  # the client has read enough


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that leaves early is no error."""


@contextmanager
def serve_hub() -> Iterator[LoopbackHub]:
    """Run a hub until the block ends."""
    hub = LoopbackHub()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    port = server.server_address[1]
    hub.address, hub.cdn = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
