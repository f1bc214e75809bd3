"""The dashboard in a real Chromium: hostile data, the keyboard, a phone, dark mode, an outage told from the page."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

import pytest
import uvicorn
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.wait import WebDriverWait

from checkback.dashboard.access import Access
from checkback.dashboard.app import create_app
from checkback.dashboard.pages import Pages
from checkback.query.status.diagnosis import clock
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog
from dashboard import incident
from dashboard.hostile import HOSTILE, PAGES, TOKEN
from support.stories import ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.types import Message, Receive, Scope, Send

_CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        _CHROMIUM is None or _DRIVER is None,
        reason="no browser: chromium and chromedriver are not installed (apt-get install chromium chromium-driver)",
    ),
]
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_PATIENCE_S = 60
#: WCAG 2.2, 1.4.3: text against its background
_CONTRAST = 4.5
#: of each element with text of its own: the text, its colour, and the nearest background that is not transparent
_COLOURS = """
const found = [];
for (const element of document.body.querySelectorAll("*")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || element.closest("svg, datalist") || !element.getClientRects().length) continue;
  let behind = element;
  while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  found.push([element.textContent.trim().slice(0, 40), getComputedStyle(element).color,
              getComputedStyle(behind || document.body).backgroundColor]);
}
return found;
"""
#: pages whose text is compared with its background
_READ = (
    *("/", "/pending", "/consumers", "/groups/billing", "/transactions/0/0", "/scheduled"),
    *("/unpublished", "/discarded", "/decisions", "/audit?run=1"),
)
#: cells whose text runs into the next one
_OVERFLOWING = """
return [...document.querySelectorAll("td")].filter((cell) => cell.scrollWidth > cell.clientWidth + 1)
  .map((cell) => cell.textContent.slice(0, 40));
"""
_WIDTH = "return [document.documentElement.scrollWidth, innerWidth]"


class Browser:
    """A page of a dashboard in Chromium."""

    def __init__(self, driver: webdriver.Chrome, base: str) -> None:
        self.driver = driver
        self._base = base

    def show(self, path: str) -> None:
        self.driver.get(self._base + path)

    @property
    def path(self) -> str:
        return self.driver.current_url.removeprefix(self._base).partition("#")[0]

    @property
    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "main").text

    @property
    def focused(self) -> str:
        """What has the focus: its text, or the name of its field."""
        element = self.driver.switch_to.active_element
        return element.get_attribute("name") or element.text

    def press(self, *keys: str) -> None:
        """As on a keyboard: they go to what has the focus."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def press_until(self, focused: str) -> None:
        """Tab until something has the focus."""
        for _ in range(60):
            if self.focused == focused:
                return
            self.press(Keys.TAB)
        raise AssertionError(f"{focused} is not reached by the keyboard")

    def leave(self, act: Callable[[], object]) -> None:
        """Do what shows another page, and wait for that."""
        page = self.driver.find_element(By.TAG_NAME, "html")
        act()
        # Between two pages chromedriver may not find the node at all: another error than that it is stale.
        gone = WebDriverWait(self.driver, _PATIENCE_S, ignored_exceptions=[WebDriverException])
        gone.until(staleness_of(page))
        wait = WebDriverWait(self.driver, _PATIENCE_S)
        wait.until(lambda driver: driver.execute_script("return document.readyState") == "complete")

    def errors(self) -> list[str]:
        """Errors on the console since the last call; violations of the Content-Security-Policy are such."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries]

    def resize(self, width: int) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Light or dark."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)


@contextmanager
def serving(
    root: Path, token: str | None = None, seen: list[tuple[str, int]] | None = None, **dashboard: object
) -> Iterator[str]:
    """The address of a dashboard of these tables; ``seen``: is given the path of each request and its status."""
    about = {"storage": {"root": str(root)}, "dashboard": dashboard | ({"token": token} if token else {})}
    app = create_app(Pages(Settings.model_validate(about), Access(token, time.time)))

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        async def note(message: Message) -> None:
            if seen is not None and message["type"] == "http.response.start":
                seen.append((scope["path"], message["status"]))
            await send(message)

        await app(scope, receive, note)

    config = uvicorn.Config(noting, host="127.0.0.1", port=0, log_config=None, access_log=False)
    sock = config.bind_socket()
    sock.listen()  # the browser may come before the server has started
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = cast("str", _CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in _FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(_DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def hostile(driver: webdriver.Chrome, root: Path) -> Iterator[Browser]:
    with serving(root) as base:
        yield Browser(driver, base)


@pytest.fixture(scope="module")
def on_call(driver: webdriver.Chrome, evening: tuple[Path, datetime]) -> Iterator[Browser]:
    with serving(evening[0]) as base:
        yield Browser(driver, base)


@pytest.fixture(scope="module")
def operator(driver: webdriver.Chrome, root: Path) -> Iterator[Browser]:
    with serving(root, TOKEN, actions=True) as base:
        yield Browser(driver, base)


@pytest.fixture(autouse=True)
def desktop(driver: webdriver.Chrome) -> None:
    """Each test begins with a wide, light page and an empty console."""
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    Browser(driver, "").errors()


@pytest.mark.parametrize("path", PAGES)
def test_hostile_messages_run_nothing_and_fit_a_phone(hostile: Browser, path: str) -> None:
    """No error on the console, no violation of the policy, no scrolling sideways but in tables."""
    hostile.resize(400)
    hostile.show(path)
    assert hostile.errors() == []
    assert hostile.run("return document.title") != ""
    assert hostile.run("return document.querySelectorAll('main img, main script').length") == 0
    assert hostile.run("return document.querySelectorAll('*').length") < 2_500
    content, width = hostile.run(_WIDTH)
    assert content <= width == 400
    assert hostile.run(_OVERFLOWING) == []


def test_the_policy_holds_in_this_browser(hostile: Browser) -> None:
    """What a message's markup would do is prevented, and seen by `errors`."""
    hostile.show("/")
    hostile.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title = 1\">')")
    wait = WebDriverWait(hostile.driver, _PATIENCE_S)
    said = wait.until(lambda _: [each for each in hostile.errors() if "Content Security Policy" in each])
    assert "inline" in said[0]
    assert hostile.run("return document.title") != "1"


def _luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance, of rgb(r, g, b)."""
    channels = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("path", _READ)
def test_text_can_be_read_in_the_light_and_in_the_dark(on_call: Browser, path: str) -> None:
    backgrounds = set()
    for scheme in ("light", "dark"):
        on_call.prefer(scheme)
        on_call.show(path)
        backgrounds.add(on_call.run("return getComputedStyle(document.body).backgroundColor"))
        colours = on_call.run(_COLOURS)
        assert colours
        faint = [each for each in colours if _contrast(each[1], each[2]) < _CONTRAST]
        assert faint == [], scheme
    assert len(backgrounds) == 2


def test_the_keyboard_alone_skips_filters_and_finds(hostile: Browser) -> None:
    hostile.show("/pending")
    hostile.press(Keys.TAB)
    assert hostile.focused == "Skip to the page"
    assert hostile.run("return document.activeElement.getBoundingClientRect().left") >= 0
    hostile.press(Keys.ENTER, Keys.TAB)
    assert hostile.focused == "group"
    hostile.press("orders", Keys.TAB)
    hostile.press_until("older_than")
    hostile.press("1s")
    hostile.leave(lambda: hostile.press(Keys.ENTER))
    assert {"group=orders", "older_than=1s"} <= set(hostile.path.partition("?")[2].split("&"))
    assert "page 1" in hostile.text
    hostile.show("/")
    hostile.press_until("find")
    hostile.press("t-7")
    hostile.leave(lambda: hostile.press(Keys.ENTER))
    assert hostile.path == f"/transactions/0/{len(HOSTILE) + 8}?transaction_id=t-7&group=orders"
    assert hostile.errors() == []


def test_the_slider_shows_an_earlier_batch_on_all_pages(on_call: Browser, evening: tuple[Path, datetime]) -> None:
    """Back by the left arrow; the time stays, whatever comes meanwhile, until a link leads back to now."""
    on_call.show("/")
    assert "shipping" in on_call.text
    on_call.press_until("batch")
    on_call.leave(lambda: on_call.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT))
    shown = on_call.driver.find_element(By.ID, "when").text
    while shown != f"{evening[1] - incident.ANSWERED + incident.FINISHED:%Y-%m-%d %H:%M:%S} UTC":
        on_call.press_until("batch")
        on_call.leave(lambda: on_call.press(Keys.ARROW_LEFT))
        shown = on_call.driver.find_element(By.ID, "when").text
    assert "As it was" in on_call.text
    assert "shipping" not in on_call.text
    on_call.leave(on_call.driver.find_element(By.LINK_TEXT, "Pending").click)
    assert on_call.driver.find_element(By.ID, "when").text == shown
    assert "shipping" not in on_call.text
    on_call.leave(on_call.driver.find_element(By.LINK_TEXT, "now").click)
    assert "shipping" in on_call.text
    field = on_call.driver.find_element(By.NAME, "as_of")
    on_call.leave(lambda: field.send_keys("9m ago", Keys.ENTER))
    assert "billing" in on_call.text
    assert "shipping" not in on_call.text
    assert on_call.errors() == []


def test_an_outage_is_told_from_the_page_alone(on_call: Browser, evening: tuple[Path, datetime]) -> None:
    """Who, since when and why; what waits for its table; what a consumer gives up."""
    began = datetime.now(timezone.utc)
    on_call.show("/")
    seen = {ms(began), ms(datetime.now(timezone.utc))}  # two days if midnight passes meanwhile
    silent, unpublished = evening[1] - incident.SILENT, evening[1] - incident.UNPUBLISHED
    rows = {row.text for row in on_call.driver.find_elements(By.CSS_SELECTOR, "tr.bad")}
    (billing,) = (row for row in rows if row.startswith("billing"))
    said = f"no endpoint answers: {incident.REFUSED}, since"
    assert any(f"{said} {clock(ms(silent), now)}" in billing for now in seen)
    (shipping,) = (row for row in rows if row.startswith("shipping"))
    assert incident.NOT_FOUND in shipping
    assert any(f"4 for refunds, since {clock(ms(unpublished), now)}:{unpublished:%S}" in on_call.text for now in seen)
    assert incident.NOT_TAKEN in on_call.text
    on_call.leave(on_call.driver.find_element(By.LINK_TEXT, "Unpublished").click)
    assert on_call.text.count(incident.NOT_TAKEN) == 1
    on_call.leave(on_call.driver.find_element(By.LINK_TEXT, "Overview").click)
    on_call.leave(on_call.driver.find_element(By.LINK_TEXT, "billing").click)
    assert incident.DOWN in on_call.text
    assert f"last answer\nCOMMIT {evening[1] - incident.ANSWERED:%Y-%m-%d %H:%M:%S} {incident.DOWN}" in on_call.text
    on_call.leave(on_call.driver.find_element(By.LINK_TEXT, "tx-0-0").click)
    assert on_call.text.count("NO_ANSWER") >= 3
    on_call.leave(on_call.driver.find_element(By.LINK_TEXT, "Audit").click)
    on_call.leave(on_call.driver.find_element(By.NAME, "run").click)
    assert "FINDINGS" in on_call.text.upper()
    on_call.leave(on_call.driver.find_element(By.LINK_TEXT, "Consumers").click)
    assert incident.POISON in on_call.text
    assert "checkback group reconsume ledger --all" in on_call.text
    on_call.leave(on_call.driver.find_element(By.LINK_TEXT, "tx-3-1").click)
    assert "PUBLISHED" in on_call.text
    assert on_call.errors() == []


def test_a_page_of_another_site_may_link_here_but_has_nothing_run(
    driver: webdriver.Chrome, evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    """The other page is on another port: to browsers the same site, but another origin."""
    seen: list[tuple[str, int]] = []
    with serving(evening[0], seen=seen) as base, _another_site(tmp_path) as other:
        page = tmp_path / "index.html"
        page.write_text(
            f'<a href="{base}/pending">pending</a> <a href="{base}/audit?run=1">audit</a><img src="{base}/audit.json">'
            f'<iframe src="{base}/"></iframe><script src="{base}/overview.json"></script>'
        )
        browser = Browser(driver, base)
        driver.get(other)
        assert {("/audit.json", 403), ("/", 403), ("/overview.json", 403)} <= set(seen)
        browser.leave(driver.find_element(By.LINK_TEXT, "audit").click)
        assert "page of another site" in browser.text
        driver.get(other)
        browser.leave(driver.find_element(By.LINK_TEXT, "pending").click)
        assert "billing" in browser.text
        browser.leave(driver.find_element(By.LINK_TEXT, "Audit").click)
        browser.leave(driver.find_element(By.NAME, "run").click)
        assert "FINDINGS" in browser.text.upper()


@contextmanager
def _another_site(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_an_operator_enters_and_acts_by_keyboard(operator: Browser, root: Path) -> None:
    """Nothing is done by a wrong token, nor by the preview; what is confirmed is done once."""
    offset = len(HOSTILE) + 5
    operator.show(f"/transactions/0/{offset}")
    assert operator.path == "/login"
    assert str(root) not in operator.driver.page_source
    operator.press("wrong")
    operator.leave(lambda: operator.press(Keys.ENTER))
    assert "another" in operator.text
    assert any("401" in error for error in operator.errors())
    operator.press(TOKEN)
    operator.leave(lambda: operator.press(Keys.ENTER))
    assert operator.path == "/"
    operator.show(f"/transactions/0/{offset}")
    ops = DeltaLog("op", f"{root}/op")
    before = ops.version()
    operator.press_until("actor")
    operator.press("ann")
    operator.press_until("reason")
    operator.press("<b>paid</b> by hand")
    operator.press_until("action")
    operator.leave(lambda: operator.press(Keys.ENTER))
    assert "Your COMMIT is appended to `op`" in operator.text
    assert ops.version() == before
    operator.press_until("Do it")
    operator.leave(lambda: operator.press(Keys.ENTER))
    assert "the op is appended" in operator.text
    assert ops.version() == (before or 0) + 1
    operator.leave(operator.driver.find_element(By.LINK_TEXT, "to the transaction").click)
    assert "ann" in operator.text
    assert "<b>paid</b> by hand" in operator.text
    assert operator.errors() == []
