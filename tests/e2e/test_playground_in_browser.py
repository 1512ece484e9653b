"""The playground in a real browser: steps stream, a step is edited, failures are messages, hostile text is text."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stepladder.retrieval.index.build import build_index
from stepladder.serve.studio.playground import answer_events
from tests.support.agent_servers import Oracle
from tests.support.browser import opened
from tests.support.openai_server import Answer, running_server, says
from tests.support.pair_runs import HOSTILE, make_pair_run
from tests.support.playgrounds import playing_agent
from tests.support.samples import PASSAGES, QUESTION, WordRetriever
from tests.support.studios import running_studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("playground") / "runs"
    make_pair_run(folder / "pairs")
    return folder


def expect(found: Any, **options: Any) -> Any:
    from playwright.sync_api import expect

    return expect(found, **options)


def ask(page: "Page", question: str = QUESTION.text) -> None:
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()  # the page's script has been loaded
    page.fill("#question", question)
    page.keyboard.press("Enter")


def fits(page: "Page") -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


# --- one agent: `serve-agent` at / ----------------------------------------------------------------------------


def test_steps_appear_while_the_agent_works(browser: "Browser") -> None:
    engine = Oracle()
    engine.held = "architect"
    with playing_agent(engine) as server, opened(browser, server.url) as page:
        ask(page)
        assert engine.begun.wait(20)
        expect(page.locator("li.step")).to_have_count(1)
        expect(page.locator("li.step .content")).to_have_text("Who designed Orm Tower?")
        expect(page.locator(".waiting")).to_contain_text("Step 2")
        assert page.locator(".answer .text").count() == 0
        assert page.is_visible("#stop")
        engine.go.set()
        expect(page.locator(".answer .text")).to_have_text("Velm")
        expect(page.locator("li.step")).to_have_count(5)
        expect(page.locator(".citations li").first).to_contain_text("Ada Tarn says “Velm”")
        assert not page.is_visible("#stop")
        page.click(".citations a >> nth=0")  # leads to the passage
        expect(page.locator("li.step:focus blockquote").first).to_be_visible()


def test_a_step_is_edited_by_keyboard_and_continued(browser: "Browser") -> None:
    with playing_agent(Oracle()) as server, opened(browser, server.url) as page:
        ask(page)
        expect(page.locator(".answer .text")).to_have_text("Velm")
        page.evaluate("document.activeElement.blur()")
        for key in ("j", "j", "k", "e"):
            page.keyboard.press(key)
        page.keyboard.press("Control+A")
        page.keyboard.type("Who built Orm Tower?")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".answer .note")).to_contain_text("Before the change: Velm")
        first = page.locator("li.step").first
        expect(first.locator(".content")).to_have_text("Who built Orm Tower?")
        expect(first.locator(".tag")).to_have_text("written by you")
        expect(page.locator(".tag")).to_have_count(1)


def test_an_edit_can_be_given_up_and_a_step_be_written_again(browser: "Browser") -> None:
    with playing_agent(Oracle()) as server, opened(browser, server.url) as page:
        ask(page)
        expect(page.locator(".answer .text")).to_have_text("Velm")
        last = page.locator("li.step").last
        last.focus()
        page.keyboard.press("e")
        expect(last.locator("form")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("li.step form")).to_have_count(0)
        last.hover()
        last.get_by_text("Retry").click()
        expect(page.locator(".answer .text")).to_have_text("Velm")
        expect(page.locator("li.step")).to_have_count(5)


def test_what_the_user_wrote_is_not_lost_when_it_is_refused(browser: "Browser") -> None:
    with playing_agent(Oracle()) as server, opened(browser, server.url) as page:
        ask(page)
        expect(page.locator(".answer .text")).to_have_text("Velm")
        page.locator("li.step").first.focus()
        page.keyboard.press("e")
        page.fill(".editor [name=thought]", "My own thought.")
        page.fill(".editor [name=content]", " ")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".editor .notice")).to_contain_text("step 1 cannot be written like this: empty <subquery>")
        expect(page.locator(".answer .text")).to_have_text("Velm")
        expect(page.locator("li.step")).to_have_count(5)
        expect(page.locator(".editor [name=thought]")).to_have_value("My own thought.")
        page.fill(".editor [name=content]", "Who built Orm Tower?")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".answer .text")).to_have_text("Velm")


def test_hostile_text_is_text(browser: "Browser") -> None:
    passages = [replace(each, title=each.title + HOSTILE, text=each.text + HOSTILE) for each in PASSAGES]
    with playing_agent(Oracle(), WordRetriever(passages)) as server, opened(browser, server.url) as page:
        title = page.title()
        ask(page, QUESTION.text + HOSTILE)
        expect(page.locator(".answer .text")).to_have_text("Velm")
        page.locator("li.step summary").first.click()
        expect(page.locator("li.step blockquote").first).to_contain_text("<script>document.title")
        assert page.locator("main script, main img").count() == 0
        assert page.title() == title


def test_escape_stops_an_answer(browser: "Browser") -> None:
    engine = Oracle()
    engine.held = "architect"
    with playing_agent(engine) as server, opened(browser, server.url) as page:
        ask(page)
        expect(page.locator("li.step")).to_have_count(1)
        page.keyboard.press("Escape")
        expect(page.locator(".outcome")).to_contain_text("Stopped.")
        engine.go.set()
        page.locator("li.step").hover()
        expect(page.get_by_text("Edit", exact=True)).to_be_visible()  # it can be continued from here


def test_a_change_that_is_stopped_leaves_the_answer_as_it_was(browser: "Browser") -> None:
    engine = Oracle()
    with playing_agent(engine) as server, opened(browser, server.url) as page:
        ask(page)
        expect(page.locator(".answer .text")).to_have_text("Velm")
        engine.held = "architect"
        for _ in range(2):
            page.locator("li.step").nth(1).hover()
            page.locator("li.step").nth(1).get_by_text("Retry").click()
            assert engine.begun.wait(20)
            expect(page.locator(".waiting")).to_contain_text("Step 2")  # the server has begun another answer
            page.keyboard.press("Escape")
            expect(page.get_by_text("Stopped.", exact=True)).to_have_count(1)
            expect(page.locator("li.step")).to_have_count(5)
            expect(page.locator(".answer .text")).to_have_text("Velm")
        engine.go.set()
        page.locator("li.step").last.hover()
        page.locator("li.step").last.get_by_text("Retry").click()  # of the answer that is shown
        expect(page.locator(".answer .text")).to_have_text("Velm")
        expect(page.locator(".answer .note")).to_contain_text("Before the change: Velm")
        expect(page.locator("li.step")).to_have_count(5)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_placeholder_is_as_readable_as_a_note(browser: "Browser", scheme: str) -> None:
    color = "([name, part]) => getComputedStyle(document.querySelector(name), part).color"
    with playing_agent(Oracle()) as server, opened(browser, server.url, color_scheme=scheme) as page:
        assert page.evaluate(color, ["#question", "::placeholder"]) == page.evaluate(color, [".note", None])


def test_a_server_that_shuts_down_in_mid_answer_says_so(browser: "Browser") -> None:
    engine = Oracle()
    engine.held = "architect"
    with playing_agent(engine) as server, opened(browser, server.url) as page:
        ask(page)
        expect(page.locator("li.step")).to_have_count(1)
        server.server.drain()
        expect(page.locator(".notice")).to_contain_text("the server is shutting down")
        engine.go.set()


def test_a_server_that_is_gone_says_so(browser: "Browser") -> None:
    with playing_agent(Oracle()) as server:
        page = browser.new_page()  # the browser itself reports a refused connection on its console
        page.goto(server.url)
    ask(page)
    expect(page.locator(".notice")).to_have_text("The server cannot be reached. Is it still running?")
    page.close()


def test_with_a_token_the_page_opens_after_it_was_typed(browser: "Browser") -> None:
    with playing_agent(Oracle(), token="secret-token-123") as server:
        page = browser.new_context().new_page()
        page.goto(server.url)
        page.fill("[name=token]", "secret-token-123")
        page.keyboard.press("Enter")
        ask(page)
        expect(page.locator(".answer .text")).to_have_text("Velm")
        assert "token" not in page.url
        page.context.close()


# --- the studio: policies that a user names --------------------------------------------------------------------


def choose(page: "Page", policy: str, column: int = 0, **fields: str) -> None:
    form = page.locator("form.policy").nth(column)
    form.locator("[name=policy]").fill(policy)
    for name, value in fields.items():
        field = form.locator(f"[name={name}]")
        if not field.is_visible():
            form.locator("summary").click()
        field.select_option(value) if name == "agent" else field.fill(value)


def test_two_policies_answer_side_by_side(browser: "Browser", runs: Path) -> None:
    with running_studio(runs) as studio, opened(browser, f"{studio.url}/playground") as page:
        expect(page.locator("[name=policy]")).not_to_have_value("")
        choose(page, "oracle", index="atlas-small", agent="prorag")
        page.click("#compare")
        choose(page, "oracle", column=1, agent="rag")
        page.click("#example")
        expect(page.locator("#gold")).to_contain_text("Gold answer", timeout=60_000)
        page.locator("#question").press("Enter")
        expect(page.locator(".answer .text")).to_have_count(2, timeout=60_000)
        expect(page.locator(".about .oracle")).to_have_count(2)
        expect(page.locator(".column").nth(1)).to_contain_text("given before the first step")
        assert page.locator(".column").nth(0).locator("li.step").count() > 1
        address = page.url
        page.goto(address)  # what was asked is in the address
        expect(page.locator("form.policy")).to_have_count(2)
        expect(page.locator("form.policy").nth(1).locator("[name=agent]")).to_have_value("rag")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("/no/such/model", "model path /no/such/model does not exist"),
        ("pairs", "has no policy yet: finish a training stage"),
        ("nanoo", "Did you mean 'nano'?"),
    ],
)
def test_a_policy_that_does_not_load_says_why(browser: "Browser", runs: Path, policy: str, message: str) -> None:
    with running_studio(runs) as studio, opened(browser, f"{studio.url}/playground") as page:
        expect(page.locator("[name=policy]")).not_to_have_value("")
        choose(page, policy, index="atlas-small")
        ask(page, "Who?")
        expect(page.locator(".notice")).to_contain_text(message, timeout=60_000)
        choose(page, "tiny", agent="direct")
        ask(page, "Who?")  # the page is not stuck
        expect(page.locator(".answer .text")).to_be_visible(timeout=60_000)


def test_a_policy_whose_server_goes_away_says_so_in_mid_answer(
    browser: "Browser", runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_events, "TICK", 0.05)
    build_index(PASSAGES, tmp_path / "index")
    with running_server() as model, running_studio(runs) as studio:

        def answer(body: dict[str, Any], number: int) -> Answer:
            model.dead = number > 0
            return says("<think>Look.</think>\n<search>Who designed Orm Tower?</search>")

        model.answer = answer
        with opened(browser, f"{studio.url}/playground") as page:
            expect(page.locator("[name=policy]")).not_to_have_value("")
            choose(page, model.url)
            expect(page.locator("[name=model]")).to_be_visible()
            choose(page, model.url, model="m", agent="search-r1", index=str(tmp_path / "index"))
            ask(page)
            expect(page.locator("li.step")).to_have_count(1)
            expect(page.locator(".notice")).to_be_visible(timeout=60_000)
            assert re.search(re.escape(model.url.removesuffix("/v1")), page.inner_text(".notice"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_400_pixels(browser: "Browser", runs: Path, scheme: str) -> None:
    settings: dict[str, Any] = {"viewport": {"width": 400, "height": 800}, "color_scheme": scheme}
    with running_studio(runs) as studio, opened(browser, f"{studio.url}/playground", **settings) as page:
        expect(page.locator("[name=policy]")).not_to_have_value("")
        choose(page, "oracle", index="atlas-small")
        page.click("#example")
        expect(page.locator("#gold")).to_contain_text("Gold answer", timeout=60_000)
        page.locator("#question").press("Enter")
        expect(page.locator(".answer .text")).to_be_visible(timeout=60_000)
        assert fits(page)
        page.locator("li.step").first.focus()
        page.keyboard.press("e")
        assert fits(page)
