"""The page's files: what is given, how, and that nothing else is."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from api_server import Api, Reply, serving
from harness.pace import patience

from hostler.entry.server.services import ServerConfig

INDEX = b'<!doctype html><meta name="hostler-nonce" content="__NONCE__"><script src="/assets/app-1.js"></script>'
SCRIPT = b"console.log(1);" * 40
ASSET = "/assets/app-1.js"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    assets = site / "assets"
    assets.mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("words that stay inside")
    (site / "index.html").write_bytes(INDEX)
    (site / "favicon.svg").write_text("<svg/>")
    (site / "other.txt").write_text("not to be had")
    (assets / "app-1.js").write_bytes(SCRIPT)
    (assets / "app-1.js.gz").write_bytes(gzip.compress(SCRIPT))
    (assets / "app-1.js.br").write_bytes(b"brotli")
    (assets / "app-1.js.map").write_text("{}")
    (assets / "app-1.css").write_text("a{}")
    (assets / "font-1.woff2").write_bytes(b"font")
    (assets / "inner").mkdir()
    return site


@pytest.fixture
async def api(folder: Path) -> AsyncIterator[Api]:
    async with serving(plan=ServerConfig(site=folder)) as api:
        yield api


async def got(api: Api, path: str, method: str = "GET", **headers: str) -> Reply:
    """As it was sent: nothing unpacked."""
    return await api.call(method, path, token=None, **{"Accept_Encoding": "", **headers})


def policy_of(reply: Reply) -> dict[str, str]:
    pieces = (piece.split(" ", 1) for piece in reply.headers["Content-Security-Policy"].split("; "))
    return {piece[0]: piece[1] for piece in pieces}


async def test_the_page_has_a_nonce_of_its_own_each_time_and_a_strict_policy(api: Api) -> None:
    nonces = set()
    for _ in range(3):
        reply = await got(api, "/", Accept_Encoding="br, gzip")
        assert (reply.status, reply.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert reply.headers.getall("Cache-Control") == ["no-cache"]
        policy = policy_of(reply)
        nonce = re.fullmatch(r"'self' 'nonce-([A-Za-z0-9_-]{24})'", policy.pop("style-src"))
        assert nonce is not None
        nonces.add(nonce[1])
        assert reply.body == INDEX.replace(b"__NONCE__", nonce[1].encode())
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "img-src": "'self' data:",
            "font-src": "'self'",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        for name, value in (
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            assert reply.headers.getall(name) == [value]
        assert "camera=()" in reply.headers["Permissions-Policy"]
        assert "Set-Cookie" not in reply.headers
        assert "ETag" not in reply.headers, "a page that was kept has a nonce that was used"
        assert (await got(api, "/", If_None_Match="*")).status == 200
    assert len(nonces) == 3


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("", None),
        ("gzip, deflate, br, zstd", "br"),
        ("gzip", "gzip"),
        ("GZIP;q=1.0", "gzip"),
        ("br;q=0, gzip;q=0.5", "gzip"),
        ("br;q=0.1, gzip;q=0.9", "gzip"),
        ("br;q=0,gzip;q=0", None),
        ("*", "br"),
        ("*;q=0", None),
        ("br;q=0, *", "gzip"),
        ("identity", None),
        ("br;q=junk, ;;,=", None),
        ("br;q=0.000", None),
    ],
)
async def test_a_file_comes_packed_as_the_browser_likes_it(api: Api, accepted: str, encoding: str | None) -> None:
    reply = await got(api, ASSET, Accept_Encoding=accepted)
    wanted = {"br": b"brotli", "gzip": gzip.compress(SCRIPT), None: SCRIPT}[encoding]
    assert (reply.status, reply.headers.get("Content-Encoding")) == (200, encoding)
    assert gzip.decompress(reply.body) == SCRIPT if encoding == "gzip" else reply.body == wanted
    assert int(reply.headers["Content-Length"]) == len(reply.body)
    assert reply.headers["Vary"] == "accept-encoding"
    assert reply.headers.getall("Cache-Control") == ["public, max-age=31536000, immutable"]
    assert reply.headers["Content-Type"] == "text/javascript; charset=utf-8"
    head = await got(api, ASSET, "HEAD", Accept_Encoding=accepted)
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", reply.headers["Content-Length"])


async def test_what_the_browser_has_already_is_not_sent_again(api: Api) -> None:
    tags = {}
    for accepted in ("br", "gzip", ""):
        tag = tags[accepted] = (await got(api, ASSET, Accept_Encoding=accepted)).headers["ETag"]
        for known in (tag, f'"x", {tag}', f"W/{tag}", "*"):
            again = await got(api, ASSET, Accept_Encoding=accepted, If_None_Match=known)
            assert (again.status, again.body) == (304, b"")
            assert again.headers["ETag"] == tag
            assert "Content-Length" not in again.headers
            assert again.headers["Vary"] == "accept-encoding"
        for other in ('"x"', tag[:-2], tag.strip('"'), ""):
            assert (await got(api, ASSET, Accept_Encoding=accepted, If_None_Match=other)).status == 200
    assert len(set(tags.values())) == 3, "one for each encoding"
    assert (await got(api, ASSET, If_None_Match=tags["br"])).status == 200


async def test_the_kinds_of_files(api: Api) -> None:
    for path, media, kept in (
        ("/favicon.svg", "image/svg+xml", "no-cache"),
        ("/assets/app-1.css", "text/css; charset=utf-8", "public, max-age=31536000, immutable"),
        ("/assets/font-1.woff2", "font/woff2", "public, max-age=31536000, immutable"),
    ):
        reply = await got(api, path, Accept_Encoding="br")
        assert (reply.status, reply.headers["Content-Type"]) == (200, media)
        assert "Content-Encoding" not in reply.headers
        assert reply.headers["Cache-Control"] == kept
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers.getall("Cross-Origin-Resource-Policy") == ["same-origin"]
        assert reply.headers["Content-Security-Policy"].startswith("default-src 'none'")


ELSEWHERE = [
    "/assets/../index.html",
    "/assets/..%2findex.html",
    "/assets/..%2f..%2fsecret.txt",
    "/assets/%2e%2e/index.html",
    "/assets/%2e%2e",
    "/assets/%2e%2e%2fother.txt",
    "/assets/..%5cother.txt",
    "/assets/%00",
    "/assets/app-1.js%00",
    "/assets/app-1.js%2500",
    "/assets/app-1.js/",
    "/assets//app-1.js",
    "/assets/app-1.js.gz",
    "/assets/app-1.js.map",
    "/assets/APP-1.js",
    "/assets/inner",
    "/assets/",
    "/assets",
    "/assets/%ff",
    "/assets/index.html",
    "/assets//etc/passwd",
    "//etc/passwd",
    "/assets/%2fetc%2fpasswd",
    "/assets/" + "x" * 5000,
    "/other.txt",
    "/index.html",
    "/licences.txt",
    "/../secret.txt",
]


async def test_nothing_else_is_given(api: Api) -> None:
    await api.listen()  # and no client that tidies the path
    for path in ELSEWHERE:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), patience(5))
        writer.close()
        assert answer.split()[1] in (b"400", b"404"), (path, answer)
        assert b"application/problem+json" in answer, path
        for secret in (b"words that stay", b"root:", b"not to be had", SCRIPT):
            assert secret not in answer, path


async def test_other_methods_are_refused(api: Api) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert (await got(api, "/", method)).status == 405
        assert (await got(api, ASSET, method)).status == 405


async def test_files_are_read_once(api: Api, folder: Path) -> None:
    before = (await got(api, ASSET)).body
    (folder / "assets" / "app-1.js").write_bytes(b"changed")
    (folder / "assets" / "late.js").write_bytes(b"late")
    assert (await got(api, ASSET)).body == before
    assert (await got(api, "/assets/late.js")).status == 404


async def test_where_nothing_was_built_the_page_says_what_to_do_and_looks_again(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    async with serving(plan=ServerConfig(site=folder)) as api:
        reply = await got(api, "/")
        assert (reply.status, reply.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b"make web" in reply.body
        assert b"/docs" in reply.body
        policy = policy_of(reply)
        assert (policy["default-src"], policy["script-src"]) == ("'none'", "'none'")
        assert policy["style-src"] == _hash(reply.body, "style")
        assert (await got(api, "/assets/app-1.js")).status == 404
        (folder / "assets").mkdir(parents=True)
        (folder / "index.html").write_bytes(INDEX)
        assert b"hostler-nonce" in (await got(api, "/")).body


async def test_the_docs_page_runs_only_what_is_written_in_it(api: Api) -> None:
    reply = await got(api, "/docs")
    policy = policy_of(reply)
    assert policy["script-src"] == _hash(reply.body, "script")
    assert policy["style-src"] == _hash(reply.body, "style")
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in reply.headers["Content-Security-Policy"]
    assert not re.search(rb"\sstyle=|\son[a-z]+=", reply.body), "what is inline would not run"


def _hash(page: bytes, tag: str) -> str:
    (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside).digest()).decode()}'"
