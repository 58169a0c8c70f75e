"""The routes of the playground: what is served to whom, and under which policy."""

from __future__ import annotations

import re

import pytest
import trio

from cog_trio.config.settings import Settings
from cog_trio.transport.http.playground.assets import FOLDER, PAGE, TYPES
from tests.transport.http.support import FakeService, Response, app_of, connect

PATHS = {name: "/docs" if name == PAGE else f"/docs/{name}" for name in TYPES}


async def get(nursery: trio.Nursery, settings: Settings, path: str, *headers: str, method: str = "GET") -> Response:
    return await connect(nursery, app_of(FakeService(), settings)).request(method, path, b"", *headers)


@pytest.mark.parametrize("name", TYPES)
async def test_each_file_is_open_and_has_its_type_and_policy(nursery: trio.Nursery, name: str) -> None:
    reply = await get(nursery, Settings(auth_token="secret"), PATHS[name])
    assert (reply.status, reply.body) == (200, (FOLDER / name).read_bytes())
    assert reply.headers["content-type"].encode() == TYPES[name]
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"


async def test_a_browser_is_sent_to_the_page_and_a_program_gets_the_index(nursery: trio.Nursery) -> None:
    settings = Settings(root_path="/below")
    reply = await get(nursery, settings, "/", "accept: text/html,application/xhtml+xml,*/*;q=0.8")
    assert (reply.status, reply.headers["location"]) == (302, "/below/docs")
    assert (await get(nursery, settings, "/below/docs")).status == 200
    reply = await get(nursery, settings, "/", "accept: */*")
    assert (reply.status, reply.json["docs_url"]) == (200, "/below/docs")


async def test_the_index_needs_the_token_and_the_redirect_does_not(nursery: trio.Nursery) -> None:
    settings = Settings(auth_token="secret")
    assert (await get(nursery, settings, "/", "accept: text/html")).status == 302
    assert (await get(nursery, settings, "/")).status == 401
    assert (await get(nursery, settings, "/docs", method="POST")).status == 405


def test_all_files_are_served_and_none_has_what_the_policy_forbids() -> None:
    assert {file.name for file in FOLDER.iterdir() if file.suffix in (".html", ".css", ".js")} == set(TYPES)
    page = (FOLDER / PAGE).read_text()
    assert re.findall(r"<script(?![^>]*src=)|\sstyle=|\son\w+=|https?:", page) == []
    for name in TYPES:
        text = (FOLDER / name).read_text()
        assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text) == []
