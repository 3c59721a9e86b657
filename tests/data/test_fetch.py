"""Downloads, against a server on the loopback address that misbehaves on request."""

import errno
import hashlib
import io
import json
import shutil
import threading
from collections import namedtuple
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedshift.core.errors import DataError
from fedshift.data import fetch as module
from fedshift.data.dataset import Mirror, Source
from fedshift.data.fetch import fetch

DATA = bytes(i * 7919 % 251 for i in range(300_000))
OTHER = DATA[::-1]
SOON = 0.7  # seconds; long enough for a busy machine to answer
PAGE = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please log in.</body></html>"


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Server(ThreadingHTTPServer):
    """Answers each path with its list of acts, one a request; the last one stays."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.acts, self.seen, self.over = {}, [], threading.Event()

    def __setitem__(self, path, acts):
        self.acts[path] = list(acts)

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}{path}"

    def ranges(self):
        return [headers["Range"] for _, headers in self.seen]

    def handle_error(self, request, client_address):
        """A client that hangs up is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    timeout = 5

    def do_GET(self):
        self.server.seen.append((self.path, self.headers))
        acts = self.server.acts[self.path]
        if len(self.server.seen) < 40:
            (acts.pop(0) if len(acts) > 1 else acts[0])(self)

    def log_message(self, *_):
        pass

    def start(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()


def plain(data, **headers):
    """A server without Range."""
    return lambda h: (h.start(200, Content_Length=len(data), **headers), h.wfile.write(data))


def cut(data, at, **headers):
    """Announces all and closes the connection in the middle."""
    return lambda h: (h.start(200, Content_Length=len(data), **headers), h.wfile.write(data[:at]))


def ranged(data, etag='"1"', upto=None):
    """A server with Range and If-Range; `upto` cuts each answer off there."""

    def act(h):
        start, condition = h.headers["Range"], h.headers["If-Range"]
        if start is None or condition not in (None, etag):
            h.start(200, Content_Length=len(data), ETag=etag)
            h.wfile.write(data[:upto])
            return
        first = int(start.removeprefix("bytes=").removesuffix("-"))
        if first >= len(data):
            return h.start(416, Content_Range=f"bytes */{len(data)}", Content_Length=0)
        span = f"bytes {first}-{len(data) - 1}/{len(data)}"
        h.start(206, Content_Length=len(data) - first, Content_Range=span, ETag=etag)
        h.wfile.write(data[first:upto])

    return act


def status(code, **headers):
    return lambda h: h.start(code, Content_Length=0, **headers)


def silent(h):
    h.server.over.wait(5)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield served
        served.over.set()
        served.shutdown()
        thread.join(5)
        assert not thread.is_alive() and len(served.seen) < 40


@pytest.fixture
def get(tmp_path):
    """Fetch one file from these mirrors without waiting; `get.waits` holds how long it would have waited."""

    def act(*mirrors, name="a.zip", timeout=20.0, **options):
        source = Source("toy", "", "", "", (), url="http://authors.example", files={name: mirrors})
        (path,) = fetch(source, tmp_path, wait=act.waits.append, timeout=timeout, **options)
        return path

    act.waits, act.folder = [], tmp_path / "downloads" / "toy"
    return act


def left(get):
    return {path.name for path in get.folder.iterdir()}


def recorded(get):
    return json.loads((get.folder / "hashes.json").read_text())


def test_a_plain_download(server, get):
    server["/a"] = [plain(DATA)]
    calls = []
    path = get(Mirror(server.url("/a"), sha(DATA)), progress=lambda *c: calls.append(c))
    assert path == get.folder / "a.zip" and path.read_bytes() == DATA
    assert left(get) == {"a.zip", "hashes.json", ".lock"} and recorded(get) == {"a.zip": sha(DATA)}
    assert calls[-1] == (len(DATA), len(DATA)) and {total for _, total in calls} == {len(DATA)}
    get(Mirror(server.url("/a"), sha(DATA)))
    assert len(server.seen) == 1  # what is here is not fetched again


def test_all_files_of_a_source(server, tmp_path):
    server["/a"], server["/b"] = [plain(DATA)], [plain(OTHER)]
    files = {"a": (Mirror(server.url("/a")),), "b": (Mirror(server.url("/b")),)}
    paths = fetch(Source("toy", "", "", "", (), files=files), tmp_path)
    assert [path.read_bytes() for path in paths] == [DATA, OTHER]


def test_the_home_is_the_usual_one(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    server["/a"] = [plain(DATA)]
    (path,) = fetch(Source("toy", "", "", "", (), files={"a": (Mirror(server.url("/a")),)}))
    assert path == tmp_path / "home" / "downloads" / "toy" / "a"


def test_a_cut_connection_is_resumed_where_it_stopped(server, get):
    server["/a"] = [ranged(DATA, upto=100_000), ranged(DATA, upto=250_000), ranged(DATA)]
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA
    assert server.ranges() == [None, "bytes=100000-", "bytes=250000-"]
    assert [h["If-Range"] for _, h in server.seen] == [None, '"1"', '"1"'] and get.waits == [2.0, 4.0]


def test_a_later_call_resumes_with_the_mirror_that_began(server, get):
    server["/a"] = [status(404), plain(OTHER)]
    server["/b"] = [ranged(DATA, upto=100_000), status(404), ranged(DATA)]
    mirrors = Mirror(server.url("/a")), Mirror(server.url("/b"))
    with pytest.raises(DataError, match="404"):
        get(*mirrors)
    assert (get.folder / "a.zip.part").read_bytes() == DATA[:100_000]
    assert get(*mirrors).read_bytes() == DATA
    assert server.seen[-1][0] == "/b" and server.ranges()[-1] == "bytes=100000-"


def test_ctrl_c_leaves_a_part_to_go_on_from(server, get):
    server["/a"] = [ranged(DATA)]

    def stop(done, total):
        if done > 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(Mirror(server.url("/a")), progress=stop)
    size = (get.folder / "a.zip.part").stat().st_size
    assert size > 1000 and "a.zip" not in left(get)
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA
    assert size == len(DATA) or server.ranges() == [None, f"bytes={size}-"]


def test_a_whole_part_is_not_asked_for_again(server, get, monkeypatch):
    """Killed after the last byte, before the rename."""
    server["/a"] = [ranged(DATA)]
    with monkeypatch.context() as patch:
        patch.setattr(module._File, "_accept", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            get(Mirror(server.url("/a")))
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA and len(server.seen) == 1


def test_a_server_without_range_starts_again(server, get):
    server["/a"] = [cut(DATA, 100_000, ETag='"1"'), plain(DATA, ETag='"1"')]
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA
    assert server.ranges() == [None, "bytes=100000-"]


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"1"'}])
def test_without_a_version_and_a_hash_nothing_is_glued(server, get, headers):
    server["/a"] = [cut(DATA, 100_000, **headers), ranged(DATA)]
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA
    assert server.ranges() == [None, None]


def test_without_a_version_a_known_hash_is_enough(server, get):
    server["/a"] = [cut(DATA, 100_000), ranged(DATA)]
    assert get(Mirror(server.url("/a"), sha(DATA))).read_bytes() == DATA
    assert server.ranges() == [None, "bytes=100000-"] and server.seen[1][1]["If-Range"] is None


def test_parts_of_two_mirrors_are_not_glued(server, get):
    """Even where both call their version by the same name."""
    server["/a"], server["/b"] = [ranged(DATA, upto=100_000), status(404)], [ranged(OTHER)]
    assert get(Mirror(server.url("/a")), Mirror(server.url("/b"))).read_bytes() == OTHER
    assert server.ranges() == [None, "bytes=100000-", None]


def test_last_modified_serves_where_there_is_no_etag(server, get):
    when = "Wed, 21 Oct 2015 07:28:00 GMT"
    server["/a"] = [cut(DATA, 100_000, Last_Modified=when), plain(DATA)]
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA
    assert server.seen[1][1]["If-Range"] == when


def test_a_file_that_changed_meanwhile_starts_again(server, get):
    server["/a"] = [ranged(DATA, '"1"', upto=100_000), ranged(OTHER, '"2"')]
    assert get(Mirror(server.url("/a"))).read_bytes() == OTHER


def careless(data, span=None, **headers):
    """Answers 206 whatever If-Range says; without Range it breaks off."""

    def act(h):
        if h.headers["Range"] is None:
            return ranged(data, upto=5)(h)
        first = int(h.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        found = span or f"bytes {first}-{len(data) - 1}/{len(data)}"
        h.start(206, Content_Length=len(data) - first, Content_Range=found, **headers)
        h.wfile.write(data[first:])

    return act


@pytest.mark.parametrize(
    "second",
    [
        careless(OTHER, ETag='"2"'),  # another version
        careless(OTHER + b"more"),  # another size
        careless(DATA, span="bytes 5-299999/300000"),  # another place
        careless(DATA, span="bytes */300000"),
        status(416),
    ],
)
def test_a_server_that_ignores_if_range_is_not_believed(server, get, second):
    server["/a"] = [ranged(DATA, upto=100_000), second, ranged(OTHER, '"2"')]
    assert get(Mirror(server.url("/a"))).read_bytes() == OTHER
    assert server.ranges() == [None, "bytes=100000-", None]


def test_a_wrong_hash_says_both_and_keeps_nothing(server, get):
    server["/a"] = [plain(OTHER)]
    with pytest.raises(DataError, match=f"SHA-256 {sha(OTHER)}, expected {sha(DATA)}"):
        get(Mirror(server.url("/a"), sha(DATA)))
    assert left(get) == {".lock"}


def test_the_first_download_is_kept_to(server, get):
    server["/a"] = [plain(DATA), plain(OTHER), plain(DATA)]
    path = get(Mirror(server.url("/a")))
    assert recorded(get) == {"a.zip": sha(DATA)}
    path.unlink()
    with pytest.raises(DataError, match=f"SHA-256 {sha(OTHER)}, expected {sha(DATA)} of the first download, in .*json"):
        get(Mirror(server.url("/a")))
    assert recorded(get) == {"a.zip": sha(DATA)} and not path.exists()
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA


def test_a_file_that_lies_there_is_checked(server, get):
    get.folder.mkdir(parents=True)
    (get.folder / "a.zip").write_bytes(DATA)
    mirror = Mirror(server.url("/a"))
    assert get(mirror).read_bytes() == DATA and recorded(get) == {"a.zip": sha(DATA)}
    with pytest.raises(DataError, match=f"found SHA-256 {sha(DATA)}, expected {sha(OTHER)}; it was changed"):
        get(replace(mirror, sha256=sha(OTHER)))
    (get.folder / "a.zip").write_bytes(OTHER)
    with pytest.raises(DataError, match=f"found SHA-256 {sha(OTHER)}, expected {sha(DATA)}; it was changed"):
        get(mirror)
    assert not server.seen


def test_a_damaged_record_is_said(get):
    get.folder.mkdir(parents=True)
    for text in ("{", "[1]"):
        (get.folder / "hashes.json").write_text(text)
        (get.folder / "a.zip").write_bytes(DATA)
        with pytest.raises(DataError, match="found no JSON object"):
            get(Mirror("http://127.0.0.1:9/"))


@pytest.mark.parametrize("first", [status(404), status(500), status(403), status(204), silent, plain(b"")])
def test_the_second_mirror_helps_out(server, get, first):
    server["/a"], server["/b"] = [first], [plain(DATA)]
    assert get(Mirror(server.url("/a")), Mirror(server.url("/b")), timeout=SOON).read_bytes() == DATA
    assert [path for path, _ in server.seen] == ["/a", "/b"] and get.waits == []


def test_a_server_that_is_not_there(server, get):
    with Server() as gone:
        url = gone.url("/a")
    server["/b"] = [plain(DATA)]
    assert get(Mirror(url), Mirror("http://"), Mirror("http://a b/"), Mirror(server.url("/b"))).read_bytes() == DATA


def test_when_all_mirrors_fail_each_is_listed_in_one_sentence(server, get):
    server["/a"], server["/b"], server["/c"] = [status(404)], [silent], [plain(PAGE)]
    with pytest.raises(DataError) as caught:
        get(*(Mirror(server.url(path)) for path in ("/a", "/b", "/c")), timeout=SOON)
    text = str(caught.value)
    assert f"{server.url('/a')} answered HTTP 404 (Not Found)" in text
    assert f"{server.url('/b')} cannot be reached (timed out)" in text
    assert f"{server.url('/c')} sent a web page 'Sign in'" in text
    assert "http://authors.example" in text and "`fedshift data import toy PATH`" in text
    assert "\n" not in text and ". " not in text


def test_a_busy_server_is_asked_again(server, get):
    server["/a"] = [status(503), status(429), plain(DATA)]
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA and get.waits == [2.0, 4.0]


def test_a_server_that_falls_silent_in_the_middle(server, get):
    server["/a"] = [lambda h: (cut(DATA, 100_000, ETag='"1"')(h), h.wfile.flush(), silent(h)), ranged(DATA)]
    assert get(Mirror(server.url("/a")), timeout=SOON).read_bytes() == DATA
    assert server.ranges() == [None, "bytes=100000-"]


def test_a_server_that_is_away_for_a_moment_after_a_cut(server, get, monkeypatch):
    server["/a"] = [ranged(DATA, upto=100_000), lambda h: h.connection.close(), ranged(DATA)]
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA


@pytest.mark.parametrize(
    "act", [cut(DATA, 100_000), cut(DATA, 100), ranged(DATA, upto=100_000), status(503), careless(DATA, span="x")]
)
def test_no_server_is_asked_for_ever(server, get, act):
    server["/a"] = [ranged(DATA, upto=5), act]
    with pytest.raises(DataError, match="5 times in a row"):
        get(Mirror(server.url("/a")))
    assert len(server.seen) <= 8 and len(get.waits) == len(server.seen) - 1


def test_to_start_again_is_not_to_move_on(server, get, monkeypatch):
    monkeypatch.setattr(module, "STEP", 20_000)
    server["/a"] = [cut(DATA, 100_000)]
    with pytest.raises(DataError, match="broke off after 100000 of 300000 bytes, 5 times in a row"):
        get(Mirror(server.url("/a")))


def test_what_moves_on_is_not_given_up(server, get, monkeypatch):
    monkeypatch.setattr(module, "STEP", 20_000)
    server["/a"] = [ranged(DATA, upto=n) for n in range(20_000, 300_000, 20_000)] + [ranged(DATA)]
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA and len(server.seen) == 15


def test_an_answer_of_unknown_length(server, get):
    def chunked(data, end=True):
        def act(h):
            h.protocol_version = "HTTP/1.1"
            h.start(200, Transfer_Encoding="chunked", ETag='"1"')
            for k in range(0, len(data), 50_000):
                piece = data[k : k + 50_000]
                h.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            h.wfile.write(b"0\r\n\r\n" if end else b"")

        return act

    server["/a"] = [chunked(DATA[:150_000], end=False), ranged(DATA)]
    calls = []
    assert get(Mirror(server.url("/a")), progress=lambda *c: calls.append(c)).read_bytes() == DATA
    assert server.ranges() == [None, "bytes=150000-"] and calls[0] == (512, 0)
    server["/b"] = [chunked(OTHER)]
    assert get(Mirror(server.url("/b")), name="b.zip").read_bytes() == OTHER


@pytest.mark.parametrize(
    "page",
    [
        plain(PAGE, Content_Type="application/octet-stream"),
        plain(b"\xef\xbb\xbf\r\n <HTML><title>Sign\n in</title>"),
        plain(b"<script></script><title>Sign in</title>", Content_Type="text/html; charset=utf-8"),
    ],
)
def test_a_page_in_place_of_the_archive(server, get, page):
    server["/a"] = [page]
    with pytest.raises(DataError, match="sent a web page 'Sign in' in place of the file, asking to look at it"):
        get(Mirror(server.url("/a")))
    assert left(get) == {".lock"}


def test_a_page_that_asks_to_confirm(server, get):
    body = (
        b"<!DOCTYPE html><html><head><title>Drive - Virus scan warning</title></head><body>"
        + b" " * 2000
        + b"<form><input type=hidden name=confirm value=t></form></body></html>"
    )
    server["/a"] = [plain(body, Content_Type="text/html")]
    expected = "'Drive - Virus scan warning' in place of the file, asking to confirm the download in a browser"
    with pytest.raises(DataError, match=expected):
        get(Mirror(server.url("/a")))
    assert len(server.seen) == 1


def test_a_page_does_not_cost_the_part(server, get):
    server["/a"] = [ranged(DATA, upto=100_000), plain(PAGE), ranged(DATA)]
    with pytest.raises(DataError, match="web page"):
        get(Mirror(server.url("/a")))
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA and server.ranges()[-1] == "bytes=100000-"


Usage = namedtuple("Usage", "total used free")


def test_no_room_is_seen_before(server, get, monkeypatch):
    server["/a"] = [plain(DATA)]
    free = 100_000_000 + len(DATA)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free - 1))
    with pytest.raises(DataError, match="found 100 MB free on its disk, expected 100 MB; free some space"):
        get(Mirror(server.url("/a")), Mirror(server.url("/b")))
    assert left(get) == {".lock"} and len(server.seen) == 1  # no other mirror would help
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free))
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA


def test_only_the_rest_needs_room(server, get, monkeypatch):
    server["/a"] = [ranged(DATA, upto=100_000), status(404), ranged(DATA)]
    with pytest.raises(DataError, match="404"):
        get(Mirror(server.url("/a")))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 100_000_000 + 200_000))
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA


def test_a_disk_that_fills_up(server, get, monkeypatch):
    class Full(io.FileIO):
        def write(self, data):
            if self.tell() + len(data) > 100_000:
                if self.tell() == 100_000:
                    raise OSError(errno.ENOSPC, "No space left on device")
                data = data[: 100_000 - self.tell()]
            return super().write(data)

    server["/a"] = [ranged(DATA)]
    with monkeypatch.context() as patch:
        patch.setattr(module, "open", lambda path, mode, **_: Full(path, mode), raising=False)
        with pytest.raises(DataError, match=r"a\.zip\.part: the disk is full; free some space"):
            get(Mirror(server.url("/a")))
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA
    assert server.ranges() == [None, "bytes=100000-"]


def test_a_folder_that_cannot_be_made(get, tmp_path):
    (tmp_path / "downloads").write_text("a file")
    with pytest.raises(DataError, match="cannot be written"):
        get(Mirror("http://127.0.0.1:9/"))


def test_redirects_are_followed_but_not_for_ever(server, get):
    server["/a"], server["/b"] = [status(302, Location="/b")], [ranged(DATA, upto=1000), ranged(DATA)]
    assert get(Mirror(server.url("/a"))).read_bytes() == DATA
    assert server.ranges() == [None, None, "bytes=1000-", "bytes=1000-"]
    server["/loop"] = [status(302, Location="/loop")]
    with pytest.raises(DataError, match="redirects in a circle"):
        get(Mirror(server.url("/loop")), name="b.zip")
    for k in range(20):
        server[f"/{k}"] = [status(301, Location=f"/{k + 1}")]
    with pytest.raises(DataError, match="redirects in a circle"):
        get(Mirror(server.url("/0")), name="b.zip")


@pytest.mark.parametrize("scheme", ["file", "ftp", "data"])
def test_only_http(server, get, tmp_path, scheme):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(DataError, match="is no http or https address"):
        get(Mirror(f"{scheme}://{tmp_path}/secret"))
    server["/a"] = [status(302, Location=f"{scheme}://{tmp_path}/secret")]
    with pytest.raises(DataError, match=r"no http or https address|unknown url type"):
        get(Mirror(server.url("/a")))
    assert left(get) == {".lock"}


def test_two_processes_do_not_mix(server, get):
    server["/a"] = [plain(DATA)]

    def second(*_):
        with pytest.raises(DataError, match="another process"):
            get(Mirror(server.url("/a")))

    assert get(Mirror(server.url("/a")), progress=second).read_bytes() == DATA
    assert len(server.seen) == 1


def test_sets_without_files_say_how_to_get_them():
    source = Source("toy", "", "", "", (), url="http://authors.example")
    with pytest.raises(
        DataError, match=r"get it from http://authors[.]example by hand, then `fedshift data import toy"
    ):
        fetch(source)
    with pytest.raises(DataError, match="from its authors by hand"):
        fetch(replace(source, url=""))
    with pytest.raises(DataError, match="made on this machine"):
        fetch(replace(source, load=lambda: None))
