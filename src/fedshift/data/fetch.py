"""Download a data set's files. The only place that speaks to the network, and only when `fetch` is called."""

import hashlib
import json
import os
import re
import time
import urllib.request as web
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError

from ..core.errors import DataError
from .dataset import Mirror, Source
from .places import data_home
from .unpack import CHUNK, Progress, disk_error, room, written

TRIES = 5  # requests in a row that bring nothing new before a mirror is given up
STEP = 1 << 20  # bytes that count as something new
BUSY = (429, 502, 503, 504)
HASHES = "hashes.json"


class _Failed(Exception):
    """Why a mirror is given up."""


class _Cut(Exception):
    """Why a request ended too early; another one may go on."""


@dataclass(frozen=True)
class _Part:
    """What is known of a file of which a part is here: where from, which version, and its whole size."""

    url: str = ""
    version: str = ""  # a strong ETag, or the time of the last change
    total: int = 0  # 0: the server did not say


def fetch(
    source: Source,
    home: Path | None = None,
    *,
    progress: Progress | None = None,
    wait: Callable[[float], None] = time.sleep,
    timeout: float = 30.0,
) -> list[Path]:
    """Download every file of a data set into `home`/downloads/NAME, or go on where an earlier call stopped.

    Mirrors are tried in turn. A file must have its known SHA-256, or else that of its first download, which is kept in
    `hashes.json` beside it. `progress` is called with the bytes done and in all (0: not known) of the file at hand,
    first while it is downloaded, then while it is checked. `timeout` is how many seconds a server may be silent.
    """
    if not source.files:
        raise DataError(_by_hand(source))
    folder = (home or data_home()) / "downloads" / source.name
    try:
        with _alone(folder):
            return [_File(source, folder / name, progress, wait, timeout).get() for name in source.files]
    except OSError as error:  # the disk's: those of the network became failures of a mirror
        raise disk_error(folder, error) from error


def _by_hand(source: Source) -> str:
    if source.load:
        return f"data set {source.name!r}: found nothing to download, since it is made on this machine; just use it."
    where = f"get it from {source.url}" if source.url else "get it from its authors"
    return (
        f"data set {source.name!r}: found no file that may be downloaded by a program; {where} by hand, then "
        f"`fedshift data import {source.name} PATH`."
    )


@dataclass(frozen=True)
class _File:
    """One file on its way here: first `NAME.part` with `NAME.part.json`, then, checked and whole, `NAME`."""

    source: Source
    path: Path
    progress: Progress | None
    wait: Callable[[float], None]
    timeout: float

    @property
    def part(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def facts(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part.json")

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self.part.stat().st_size if self.part.exists() else 0

    def get(self) -> Path:
        """The file, whole, from the first mirror that gives it; a mirror with a part of it here comes first."""
        mirrors = self.source.files[self.path.name]
        if self.path.exists():
            return self._kept(mirrors)
        begun, failures = self._begun().url, []
        for mirror in sorted(mirrors, key=lambda mirror: mirror.url != begun):
            try:
                self._download(mirror)
                return self._accept(mirror)
            except _Failed as why:
                failures.append(f"{mirror.url} {why}")
        raise DataError(
            f"data set {self.source.name!r}: found no mirror that gives {self.path.name} ({'; '.join(failures)}); "
            f"try again later, or download it in a browser from {self.source.url or mirrors[0].url} and "
            f"`fedshift data import {self.source.name} PATH`."
        )

    def _download(self, mirror: Mirror) -> None:
        """Ask until all is here, but not for ever: only so often without anything new."""
        most = tries = 0
        while True:
            try:
                return self._ask(mirror)
            except _Cut as why:
                tries = 0 if self.size >= most + STEP else tries + 1
                if tries == TRIES:
                    raise _Failed(f"{why}, {TRIES} times in a row") from None
                most = max(most, self.size)
                self.wait(2.0**tries)

    def _ask(self, mirror: Mirror) -> None:
        """One request, for what is missing; returns when all is here."""
        begun, start = self._begun(), self.size
        if begun.url != mirror.url or not (begun.version or mirror.sha256):
            begun, start = _Part(), 0  # a part that could be another file's, unnoticed
        if start and start == begun.total:
            return
        with self._open(mirror.url, begun, start) as answer:
            if start and answer.status == 206:
                head, total = b"", self._rest(answer, begun, start)
            else:
                start, total, head = 0, answer.length or 0, _head(answer)
            room(self.path.parent, total - start)
            if not start:
                self._begin(_Part(mirror.url, _version(answer), total))
            self._copy(_chunks(answer, head, total - start), start, total)

    def _open(self, url: str, begun: _Part, start: int) -> HTTPResponse:
        if not url.lower().startswith(("http://", "https://")):
            raise _Failed("is no http or https address")
        headers = {"User-Agent": "fedshift"}
        if start:
            headers["Range"] = f"bytes={start}-"
            if begun.version:
                headers["If-Range"] = begun.version
        try:
            answer: HTTPResponse = _opener().open(web.Request(url, headers=headers), timeout=self.timeout)
            return answer
        except HTTPError as error:
            error.close()
            raise self._refusal(error, start) from None
        except (OSError, HTTPException, ValueError) as error:
            raise (_Cut if start else _Failed)(f"cannot be reached ({_short(error)})") from None

    def _refusal(self, error: HTTPError, start: int) -> _Failed | _Cut:
        if error.code == 416 and start:
            self._discard()
            return _Cut("changed during the download")
        if error.code in BUSY:
            return _Cut(f"answered HTTP {error.code}")
        if 300 <= error.code < 400:
            return _Failed("redirects in a circle, or to no http or https address")
        return _Failed(f"answered HTTP {error.code} ({_line(error.reason)})")

    def _rest(self, answer: HTTPResponse, begun: _Part, start: int) -> int:
        """The whole size, if the answer goes on exactly where this version of the file stops."""
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        marks = {answer.headers["ETag"], answer.headers["Last-Modified"]} - {None}
        other = begun.version and marks and begun.version not in marks
        if span is None or int(span[1]) != start or begun.total not in (0, int(span[2])) or other:
            self._discard()
            raise _Cut("changed during the download")
        return int(span[2])

    def _copy(self, chunks: Iterator[bytes], done: int, total: int) -> None:
        """Add what arrives to the part; every byte is in the file before the next is asked for."""
        with open(self.part, "ab", buffering=0) as file:
            for chunk in chunks:
                if not total:
                    room(self.path.parent, len(chunk))
                written(file, chunk)
                done += len(chunk)
                if self.progress:
                    self.progress(done, total)
            os.fsync(file.fileno())
        if done < total:
            raise _Cut(f"broke off after {done} of {total} bytes")

    def _accept(self, mirror: Mirror) -> Path:
        """Check the whole file and give it its name; a hash that was not known is from now on."""
        found, recorded = self._sha256(self.part), self._recorded().get(self.path.name, "")
        expected = mirror.sha256 or recorded
        if expected and found != expected:
            self._discard()
            first = "" if mirror.sha256 else f" of the first download, in {self.path.with_name(HASHES)}"
            raise _Failed(f"gave a file with SHA-256 {found}, expected {expected}{first}")
        self._record(found)
        os.replace(self.part, self.path)
        self.facts.unlink()  # last: a part without its facts would be fetched again
        return self.path

    def _kept(self, mirrors: tuple[Mirror, ...]) -> Path:
        """The file is here already; is it the right one?"""
        found, recorded = self._sha256(self.path), self._recorded().get(self.path.name, "")
        expected = {mirror.sha256 or recorded for mirror in mirrors} - {""}
        if expected and found not in expected:
            raise DataError(
                f"{self.path}: found SHA-256 {found}, expected {' or '.join(sorted(expected))}; "
                "it was changed since or is another file: delete it and get the data set again."
            )
        self._record(found)
        return self.path

    def _sha256(self, path: Path) -> str:
        total, size, done = hashlib.sha256(), path.stat().st_size, 0
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                total.update(chunk)
                done += len(chunk)
                if self.progress:
                    self.progress(done, size)
        return total.hexdigest()

    def _recorded(self) -> dict[str, str]:
        path = self.path.with_name(HASHES)
        try:
            return {str(k): str(v) for k, v in json.loads(path.read_text()).items()} if path.exists() else {}
        except (ValueError, AttributeError):
            raise DataError(f"{path}: found no JSON object of names and hashes; delete it and get again.") from None

    def _record(self, found: str) -> None:
        recorded = self._recorded()
        if recorded.get(self.path.name) != found:
            _write_whole(self.path.with_name(HASHES), {**recorded, self.path.name: found})

    def _begun(self) -> _Part:
        try:
            return _Part(**json.loads(self.facts.read_text()))
        except (OSError, ValueError, TypeError):
            return _Part()

    def _begin(self, facts: _Part) -> None:
        """A new part; the old one goes first, so that no kill leaves old bytes under new facts."""
        self._discard()
        _write_whole(self.facts, asdict(facts))

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.facts.unlink(missing_ok=True)


def _opener() -> web.OpenerDirector:
    """For http and https alone: the usual one would also follow a redirect to ftp, and open local files."""
    opener = web.OpenerDirector()
    for handler in (
        web.ProxyHandler, web.UnknownHandler, web.HTTPHandler, web.HTTPSHandler, web.HTTPRedirectHandler,
        web.HTTPErrorProcessor, web.HTTPDefaultErrorHandler,
    ):  # fmt: skip
        opener.add_handler(handler())
    return opener


def _chunks(answer: HTTPResponse, head: bytes, length: int) -> Iterator[bytes]:
    """The head and what follows, up to `length` bytes, or to the end where that is 0."""
    yield head
    done = len(head)
    while not length or done < length:
        try:
            chunk = answer.read1(min(CHUNK, length - done) if length else CHUNK)
        except (OSError, HTTPException) as error:
            raise _Cut(f"broke off ({_short(error)})") from None
        if not chunk:
            return
        done += len(chunk)
        yield chunk


def _head(answer: HTTPResponse) -> bytes:
    """The first bytes, if they may be a data file's."""
    if answer.status != 200:
        raise _Failed(f"answered HTTP {answer.status}, expected 200")
    try:
        head = answer.read(512)
        text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
        if "html" in answer.headers.get_content_type() or text.startswith((b"<!doctype html", b"<html")):
            raise _Failed(_page(head + answer.read(CHUNK)))
    except (OSError, HTTPException) as error:
        raise _Cut(f"broke off ({_short(error)})") from None
    if not head:
        raise _Failed("sent an empty file")
    return head


def _page(page: bytes) -> str:
    """What a web page in place of the file asks for; nobody clicks it for the user."""
    title = re.search(rb"<title[^>]*>(.*?)</title", page, re.DOTALL | re.IGNORECASE)
    name = f" {_line(title[1].decode('utf-8', 'replace'))[:80]!r}" if title else ""
    what = "to confirm the download in a browser" if b"confirm" in page.lower() else "to look at it in a browser"
    return f"sent a web page{name} in place of the file, asking {what}"


def _version(answer: HTTPResponse) -> str:
    """What tells this version of a file from the next; a weak ETag does not."""
    etag = str(answer.headers.get("ETag", ""))
    return etag if etag and not etag.startswith("W/") else str(answer.headers.get("Last-Modified", ""))


def _short(error: BaseException) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    return _line(str(reason)) or type(reason).__name__


def _line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _write_whole(path: Path, content: dict[str, object] | dict[str, str]) -> None:
    """Written aside, flushed and renamed."""
    aside = path.with_name(f".{path.name}")
    with open(aside, "wb", buffering=0) as file:
        written(file, json.dumps(content, indent=1).encode())
        os.fsync(file.fileno())
    os.replace(aside, path)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder; a second process is told so."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "wb") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # no such locks on this system
        except BlockingIOError:
            raise DataError(f"{folder}: found another process downloading there; wait for it to end.") from None
        yield
