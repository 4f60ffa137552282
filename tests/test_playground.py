"""The playground in a real Chromium, against the real gateway.

The model behind it is the echo fake, which answers at once and fails on demand, but for the last test.
"""

import base64
import hashlib
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from client import VlmClient
from client.serving.server import Endpoints
from tests.browser import chromium
from tests.gateways import RunningGateway
from tests.waiting import until

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
ANSWER_MS = 120_000
PHONE = {"width": 360, "height": 740}
DROP = """([name, encoded, kind]) => {
  const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], name, { type: "image/png" }));
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  document.getElementById("question").dispatchEvent(event);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = chromium()
    assert found, "no Chromium: `make test` brings one, or install the package chromium"
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found)


@pytest.fixture
def page(browser: Browser, echo_gateway: RunningGateway) -> Iterator[Page]:
    with opened(browser, echo_gateway) as page:
        yield page


@contextmanager
def opened(browser: Browser, gateway: RunningGateway) -> Iterator[Page]:
    """The page; whatever it did, it called no other host and broke none of its own rules."""
    with browser.new_context(viewport={"width": 1100, "height": 760}) as context:
        page = context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console", lambda message: problems.append(message.text) if "Content Security" in message.text else None
        )
        page.on("request", lambda sent: sent.url.startswith((gateway.url, "data:")) or problems.append(sent.url))
        page.goto(gateway.url)
        yield page
    assert problems == []


def ask(page: Page, question: str, *pictures: str) -> None:
    if pictures:
        page.set_input_files("#files", [PICTURES / name for name in pictures])
        expect(page.locator("#pictures li")).to_have_count(len(pictures))
    page.get_by_label("Question", exact=True).fill(question)
    page.keyboard.press("Enter")


def answer(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer").last


def finished(page: Page) -> None:
    expect(answer(page)).to_have_attribute("aria-busy", "false", timeout=ANSWER_MS)


def scrolls_sideways(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_pictures_are_chosen_removed_and_sent(page: Page) -> None:
    page.set_input_files("#files", [PICTURES / "circle.png", PICTURES / "dog.png"])
    page.get_by_role("button", name="Remove dog.png").press("Enter")
    expect(page.locator("#pictures img")).to_have_attribute("alt", "circle.png")
    page.get_by_label("Question", exact=True).fill("What colour is the circle?")
    with page.expect_request("**/chat/completions") as sent:
        page.keyboard.press("Enter")
    picture = sent.value.post_data_json["messages"][0]["content"][0]["image_url"]["url"]
    assert base64.b64decode(picture.split(",")[1]) == (PICTURES / "circle.png").read_bytes()
    finished(page)
    expect(page.get_by_role("article", name="You asked").get_by_role("img")).to_have_count(1)
    expect(answer(page).locator(".text")).to_have_text(re.compile(r"images=\['\w{8}'\]"))


def test_an_answer_has_a_bar_of_its_stages(page: Page) -> None:
    ask(page, "Hi")
    finished(page)
    bar = answer(page).get_by_role("img", name="Time by stage: waiting 1.5 ms, prefill 2.5 ms")
    assert bar.locator("span.prefill").evaluate("part => part.clientWidth") > 100
    expect(answer(page)).to_contain_text("7 tokens in; 3 out")


def test_tokens_are_seen_as_they_come_and_stop_ends_the_request(page: Page, echo_server: Endpoints) -> None:
    before = cancellations(echo_server)
    ask(page, "forever")
    text = answer(page).locator(".text")
    expect(text).to_have_text(re.compile(r"(again ){5}"), timeout=ANSWER_MS)
    early = text.inner_text()
    expect(answer(page)).to_have_attribute("aria-busy", "true")
    assert until(lambda: len(text.inner_text()) > len(early), 30)
    page.get_by_role("button", name="Stop").click()
    expect(answer(page)).to_contain_text("Stopped.")
    assert text.inner_text().startswith(early)
    assert until(lambda: cancellations(echo_server) > before, 20)
    expect(page.get_by_role("button", name="Ask")).to_be_visible()


def cancellations(server: Endpoints) -> int:
    with VlmClient(server.grpc) as vlm:
        return int(vlm.generate("cancellations").text)


def test_escape_stops_too(page: Page) -> None:
    ask(page, "forever")
    expect(answer(page).locator(".text")).to_have_text(re.compile(r"\S"), timeout=ANSWER_MS)
    page.keyboard.press("Escape")
    expect(answer(page)).to_contain_text("Stopped.")


def test_the_conversation_goes_on_and_survives_a_reload(page: Page) -> None:
    ask(page, "What is in the picture?", "dog.png")
    finished(page)
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "And what colour is it?")
    roles = [message["role"] for message in sent.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert sent.value.post_data_json["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/png;")
    finished(page)
    before = page.locator("#conversation").inner_text()
    page.reload()
    expect(page.get_by_role("article", name="Answer")).to_have_count(2)
    assert page.locator("#conversation").inner_text() == before
    assert page.locator(".question img").evaluate("image => image.naturalWidth") > 0
    page.get_by_role("button", name="New conversation").click()
    page.reload()
    expect(page.get_by_text("Drop pictures anywhere")).to_be_visible()


def test_an_error_is_shown_in_the_servers_words_and_left_out_later(page: Page) -> None:
    ask(page, "fail INVALID_ARG image[0]: 3 MB is over the limit image_mb = 2")
    expect(page.get_by_role("alert").filter(has_text="3 MB is over the limit image_mb = 2")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "Hi")
    assert len(sent.value.post_data_json["messages"]) == 1
    finished(page)
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


def test_an_error_in_the_middle_keeps_what_came(page: Page) -> None:
    ask(page, "break the worker died; ask again")
    expect(page.get_by_role("alert").filter(has_text="the worker died")).to_be_visible()
    expect(answer(page).locator(".text")).to_have_text("a piece")


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_pictures_are_dropped_and_pasted(page: Page, kind: str) -> None:
    encoded = page.evaluate("bytes => btoa(String.fromCharCode(...bytes))", list(smallest_png()))
    if kind == "drop":
        page.evaluate(DROP, ["a.png", encoded, "dragenter"])
        expect(page.get_by_text("Drop to add")).to_be_visible()
    page.evaluate(DROP, ["a.png", encoded, kind])
    expect(page.get_by_text("Drop to add")).to_be_hidden()
    expect(page.get_by_role("img", name="a.png")).to_be_visible()


def test_a_question_that_is_sent_at_once_has_the_picture_that_was_just_pasted(page: Page) -> None:
    page.get_by_label("Question", exact=True).fill("What is it?")
    encoded = page.evaluate("bytes => btoa(String.fromCharCode(...bytes))", list(smallest_png()))
    sending = "document.getElementById('composer').requestSubmit()"
    with page.expect_request("**/chat/completions") as sent:
        page.evaluate(f"arguments => {{ ({DROP})(arguments); {sending} }}", ["a.png", encoded, "paste"])
    kinds = [part["type"] for part in sent.value.post_data_json["messages"][0]["content"]]
    assert kinds == ["image_url", "text"]


def test_the_last_answer_stays_in_view_when_pictures_and_options_take_room(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 700})
    for question in ("One?", "Two?", "Three?"):
        ask(page, question)
        finished(page)
    page.set_input_files("#files", [PICTURES / "circle.png"])
    expect(page.locator("#pictures li")).to_have_count(1)
    page.get_by_role("button", name="Options").click()
    expect(page.get_by_label("Temperature")).to_be_visible()
    expect(answer(page).locator(".note").last).to_be_in_viewport()


def smallest_png() -> bytes:
    return (PICTURES / "circle.png").read_bytes()


def test_a_large_photo_is_reduced_upright(page: Page, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    Image.effect_noise((4000, 2000), 80).convert("RGB").save(tmp_path / "photo.jpg", quality=95, exif=exif)
    page.set_input_files("#files", [tmp_path / "photo.jpg"])
    size = page.locator("#pictures img").evaluate(
        "async image => (await image.decode(), [image.naturalWidth, image.naturalHeight])"
    )
    assert size == [640, 1280]
    assert page.locator("#pictures img").evaluate("image => image.src.length") < 1_000_000


def test_a_key_is_asked_for_where_the_gateway_needs_one(
    browser: Browser, echo_server: Endpoints, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(f"{hashlib.sha256(b'secret-key-of-alice').hexdigest()} alice\n")
    settings = {"servers": [echo_server.grpc], "api_keys_file": str(tmp_path / "keys")}
    with RunningGateway(tmp_path / "gateway", **settings) as keyed, opened(browser, keyed) as page:
        ask(page, "Hi")
        expect(page.get_by_role("alert").filter(has_text="API key")).to_be_visible()
        page.get_by_label("API key").fill("secret-key-of-alice")
        page.get_by_role("button", name="Try again").click()
        finished(page)
        expect(answer(page).locator(".text")).to_contain_text("Hi")
        assert "secret-key-of-alice" not in keyed.log


def test_a_gateway_that_is_gone_is_told(browser: Browser, echo_server: Endpoints, tmp_path: Path) -> None:
    with RunningGateway(tmp_path, servers=[echo_server.grpc]) as short, opened(browser, short) as page:
        short.process.terminate()
        short.process.wait(30)
        ask(page, "Hi")
        expect(page.get_by_role("alert").filter(has_text="The gateway can't be reached")).to_be_visible()


def test_a_phone_scrolls_in_one_direction_only(page: Page) -> None:
    page.set_viewport_size(PHONE)
    assert not scrolls_sideways(page)
    page.get_by_role("button", name="Options").click()
    assert not scrolls_sideways(page)
    ask(page, "What is in these pictures? " + "W" * 300, "circle.png", "dog.png")
    finished(page)
    assert not scrolls_sideways(page)
    ask_button = page.get_by_role("button", name="Ask").bounding_box()
    assert ask_button is not None
    assert ask_button["height"] >= 44
    assert ask_button["x"] + ask_button["width"] <= PHONE["width"]


def test_dark_and_light_follow_the_system(page: Page) -> None:
    def luminance(what: str) -> float:
        colour = page.evaluate(f"getComputedStyle(document.body).{what}")
        red, green, blue = (int(value) / 255 for value in re.findall(r"\d+", colour)[:3])
        return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2

    page.emulate_media(color_scheme="light")
    assert luminance("backgroundColor") > 0.8
    assert luminance("color") < 0.1
    page.emulate_media(color_scheme="dark")
    assert luminance("backgroundColor") < 0.05
    assert luminance("color") > 0.6


def test_every_control_is_reached_by_tab_and_has_a_name(page: Page) -> None:
    page.get_by_role("button", name="Options").press("Enter")
    page.get_by_label("Question", exact=True).focus()
    names = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        names.add(
            page.evaluate("(e => e.ariaLabel || e.labels?.[0]?.innerText || e.innerText)(document.activeElement)")
        )
    wanted = {"Add pictures", "Options", "Ask", "Longest answer, tokens", "Temperature", "API key", "New conversation"}
    assert wanted <= {name.strip() for name in names}


def test_the_pages_rules_are_strict(echo_gateway: RunningGateway) -> None:
    with urllib.request.urlopen(echo_gateway.url, timeout=5) as answered:
        policy = answered.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert echo_gateway.status("/playground/__init__.py") == 404
    assert echo_gateway.status("/playground/..%2fapp.py") == 404


@pytest.mark.server
def test_the_demo_model_answers_about_a_picture(browser: Browser, demo_gateway: RunningGateway) -> None:
    with opened(browser, demo_gateway) as page:
        ask(page, "What colour is the circle?", "circle.png")
        finished(page)
        expect(answer(page).locator(".text")).to_have_text(re.compile(r"\w+"))
        label = answer(page).get_by_role("img", name="Time by stage").get_attribute("aria-label")
        for stage in ("waiting", "picture decode", "vision encode", "prefill", "tokens"):
            assert re.search(rf"{stage} [\d.,]+ ms", label or "")
        expect(answer(page)).to_contain_text(re.compile(r"\d+ tokens in, \d+ of them pictures; \d+ out"))
        page.set_input_files("#files", [{"name": "notes.txt", "mimeType": "image/png", "buffer": b"not a picture"}])
        expect(page.locator("#pictures li")).to_have_count(1)
        with page.expect_response("**/chat/completions") as refused:
            ask(page, "What is it?")
        sentence = refused.value.json()["error"]["message"]
        assert "image[1]" in sentence  # the conversation begins with the circle
        expect(page.get_by_role("alert").filter(has_text=sentence)).to_be_visible()
