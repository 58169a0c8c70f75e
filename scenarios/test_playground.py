"""The playground in a real browser. The tests of one process share one Chromium."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cog_trio.testing import StartServer

ROOT = Path(__file__).parent.parent
CHROMIUM = shutil.which("chromium")
LIMIT = 30_000  # milliseconds that a page may take for anything
pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: make system")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page; an error of its scripts, or one that its policy has stopped, fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    made = context.new_page()
    made.set_default_timeout(LIMIT)
    faults: list[str] = []
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.on("console", lambda said: faults.append(said.text) if "Content Security Policy" in said.text else None)
    yield made
    context.close()
    assert faults == []


def wait_for(page: Any, selector: str, text: str) -> None:
    page.locator(selector).filter(has_text=text).wait_for()


def show(name: str, page: Any) -> None:
    """Keep a picture for the docs, where one is asked for: ``COG_TRIO_PICTURES=folder``."""
    if folder := os.environ.get("COG_TRIO_PICTURES"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_a_model_with_every_kind_of_input(start_server: StartServer, page: Any, tmp_path: Path) -> None:
    """Given a form of every kind of input, when it is filled in and run, then the output and the logs come as text,
    whatever they look like; faults are shown at their fields, a cancel ends the run, and inputs can be loaded again."""
    with start_server("every_input.py") as server:
        page.goto(f"{server.url}/")
        assert page.url == f"{server.url}/docs"
        wait_for(page, "#health", "READY")
        assert "<b>set up</b>" in page.locator("#setup-logs").text_content()
        kinds = {
            name: page.locator(f"#input-{name}").evaluate("node => node.type || node.tagName.toLowerCase()")
            for name in ("text", "number", "steps", "kind", "flag", "password", "items", "extra")
        }
        assert kinds == {
            "text": "textarea",
            "number": "number",
            "steps": "number",
            "kind": "select-one",
            "flag": "checkbox",
            "password": "password",
            "items": "textarea",
            "extra": "textarea",
        }
        assert page.locator("input[type=range]").count() == 1
        assert page.locator(".mark", has_text="required").count() == 2  # the document lists a file without None too
        assert page.locator(".mark", has_text="deprecated").count() == 1

        page.click("#run")
        wait_for(page, "#input-text-fault", "Field required")
        page.fill("#input-items", "[1,")
        page.click("#run")
        wait_for(page, "#input-items-fault", "not valid JSON")
        page.fill("#input-items", '["x"]')
        page.fill("#input-text", "piece")
        page.click("#run")
        wait_for(page, "#input-items-fault", "integer")

        (tmp_path / "some.txt").write_text("12345")
        page.fill("#input-items", "[7]")
        page.fill("#input-number", "1.5")
        page.select_option("#input-kind", label="long")
        page.check("#input-flag")
        page.fill("#input-password", "hidden")
        page.set_input_files("input[type=file]", tmp_path / "some.txt")
        page.fill("#input-extra", '{"a": 1}')
        page.click("#run")
        wait_for(page, "#status", "succeeded")
        pieces = [f"<img src=x onerror=document.title='owned'>piece{step} " for step in range(3)]
        assert page.locator("#output").text_content() == "".join(pieces)
        assert page.locator("#output img").count() == 0
        assert "owned" not in page.title()
        logs = page.locator("#logs").text_content()
        assert logs.startswith("100 %\n")
        assert "1.5 long True [7] {'a': 1} 5 True" in logs
        assert "predict_time" in page.locator("#metrics").text_content()
        show("playground", page)

        page.click("#reset")
        assert page.input_value("#input-text") == ""
        page.click("#history button")
        assert page.input_value("#input-text") == "piece"
        assert page.input_value("#input-steps") == "3"
        page.fill("#input-wait", "0.2")
        page.fill("#input-steps", "1000")
        page.click("#run")
        wait_for(page, "#output", "piece2")
        page.click("#cancel")
        wait_for(page, "#status", "canceled")
        assert page.locator("#history li").count() == 2


def test_a_picture_and_the_line_to_copy(start_server: StartServer, page: Any) -> None:
    """Given the image example, when a picture is dropped and run, then the blurred one is shown; the copied curl line,
    run in a shell, gives the same picture."""
    boat = (ROOT / "docs" / "examples" / "image" / "boat.png").read_bytes()
    drop = """([drop, data]) => {
        const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
        const transfer = new DataTransfer();
        transfer.items.add(new File([bytes], "boat.png", {type: "image/png"}));
        drop.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
    }"""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    with start_server(str(ROOT / "docs" / "examples" / "image")) as server:
        page.goto(f"{server.url}/docs")
        field = page.locator(".drop").element_handle()
        page.evaluate(drop, [field, base64.b64encode(boat).decode()])
        page.locator(".drop img").wait_for()
        page.click("#run")
        page.locator("#output img").wait_for()
        blurred = page.locator("#output img").get_attribute("src")
        show("playground-image", page)
        page.click("#copy")
        wait_for(page, "#copied", "copied")
        command = page.evaluate("navigator.clipboard.readText()")
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
        assert json.loads(done.stdout)["output"] == blurred


def test_behind_a_token_and_below_a_path(start_server: StartServer, page: Any) -> None:
    """Given a server with a token and a root path, when the page opens, then it asks for the token and works."""
    with start_server("every_input.py", "--auth-token", "secret", "--root-path", "/below") as server:
        page.goto(f"{server.url}/below/docs")
        page.locator("#sign-in").wait_for()
        page.fill("#token", "wrong")
        page.press("#token", "Enter")
        page.locator("#input-text").wait_for(state="detached")
        page.fill("#token", "secret")
        page.press("#token", "Enter")
        page.fill("#input-text", "piece")
        page.click("#run")
        wait_for(page, "#status", "succeeded")
        assert "$TOKEN" in page.locator("#request").text_content()
        assert "secret" not in page.content()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_for_everybody(start_server: StartServer, page: Any, width: int, scheme: str) -> None:
    """Given a phone in the dark and a desktop in the light, when axe looks at the page, then it finds nothing serious,
    and nothing is wider than the screen."""
    from axe_playwright_python.sync_playwright import Axe

    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)
    with start_server("every_input.py") as server:
        page.goto(f"{server.url}/docs")
        page.fill("#input-text", "piece")
        page.click("#run")
        wait_for(page, "#status", "succeeded")
        show(f"playground-{width}-{scheme}", page)
        found = Axe().run(page).response["violations"]
        assert [fault["id"] for fault in found if fault["impact"] in ("serious", "critical")] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
