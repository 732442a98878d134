"""The report in a real browser: sorted, filtered, pointed at, on a phone, in the dark, and told lies by a run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlexp.report import write_report
from rlexp.runs import find_runs
from tests.browser import Browser, browser, find_browser
from tests.fake_runs import config_of, make_run, rows_to
from tests.report.test_report_data import hostile

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is installed")


# More than ten settings of DQN.
OTHER = {
    "algo__gamma": 0.5,
    "algo__learning_rate": 0.5,
    "algo__tau": 0.5,
    "algo__max_grad_norm": 3.0,
    "model__hidden": [8],
    "model__residual": True,
    "model__dropout": 0.1,
    "env__num_envs": 3,
    "env__action_repeat": 2,
    "env__frame_stack": 2,
    "buffer__capacity": 99,
    "trainer__learning_starts": 9,
    "trainer__batch_size": 7,
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of sweeps over two settings (two seeds each) and over three, of unlike runs, and of hostile ones."""
    folder = tmp_path_factory.mktemp("reports")
    for i, (gamma, rate) in enumerate((g, r) for g in (0.9, 0.99) for r in (0.1, 0.01, 0.001)):
        for seed in (1, 2):
            config = config_of(algo__gamma=gamma, algo__learning_rate=rate, seed=seed)
            make_run(folder / "two" / f"{2 * i + seed}", config, 10.0 * i + seed, best=100.0 - i)
    make_run(
        folder / "two" / "99", config_of(algo__gamma=0.99), None, rows=rows_to(3.0, 2), status="failed", reason="!"
    )
    for gamma, rate, tau in [(g, r, t) for g in (0.9, 0.99) for r in (0.1, 0.01) for t in (0.1, 1.0)]:
        config = config_of(algo__gamma=gamma, algo__learning_rate=rate, algo__tau=tau)
        make_run(folder / "three" / f"{gamma}-{rate}-{tau}", config, gamma * rate * tau)
    make_run(folder / "unlike" / "0", config_of("dqn", "acrobot"), -90.0)
    for i, config in enumerate((config_of("dqn"), config_of("ppo"), config_of("dqn", **OTHER)), start=1):
        make_run(folder / "unlike" / str(i), config, 10.0 * i)
    hostile(folder / "hostile")
    found = {}
    for name in ("two", "three", "unlike", "hostile"):
        found[name] = write_report(find_runs([folder / name]), folder / f"{name}.html")
    return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def page(running: Browser, pages: dict[str, Path]) -> Browser:
    """The report of the sweep over two settings, fresh."""
    running.requests.clear()
    running.complaints.clear()
    running.size(1200, 900)
    running.open(pages["two"])
    return running


def column(page: Browser, title: str) -> list[str]:
    """The cells of a column of the table, from top to bottom."""
    return page.js(
        "(() => { const clean = (e) => e.innerText.replace(/ [↑↓]$/, '').trim();"
        "const heads = [...document.querySelectorAll('#runs thead th')].map(clean);"
        f"const i = heads.indexOf({json.dumps(title)});"
        "return [...document.querySelectorAll('#runs tbody tr')].map(r => r.children[i]?.innerText.trim() ?? ''); })()"
    )  # type: ignore[no-any-return]


def head(title: str) -> str:
    """The selector of a heading of the table."""
    return f"#runs th[title={json.dumps(title)}] button"


def test_it_opens_with_the_best_run_first_and_complains_of_nothing(page: Browser, pages: dict[str, Path]) -> None:
    assert column(page, "return")[0] == "52 ± 1.5"
    assert column(page, "run")[0].startswith("12")
    assert "Best is gamma=0.99 learning_rate=0.001 with a return of 51.5 ± 0.71" in page.js("document.body.innerText")
    assert page.complaints == []
    assert page.requests == [pages["two"].as_uri()]


def test_a_heading_sorts_by_value_and_once_more_the_other_way(page: Browser) -> None:
    page.click(head("name"))
    names = [*(str(i) for i in range(1, 13)), "99"]  # as numbers, not as text
    assert [name.rstrip("★") for name in column(page, "run")] == names
    page.click(head("name"))
    assert [name.rstrip("★") for name in column(page, "run")] == ["99", *(str(i) for i in range(12, 0, -1))]
    page.click(head("algo.learning_rate"))
    rates = [float(rate) for rate in column(page, "learning_rate")]
    assert rates == sorted(rates, reverse=True)
    assert page.js("document.querySelector('#runs th[aria-sort]').title") == "algo.learning_rate"


def test_runs_without_a_value_are_sorted_last_either_way(page: Browser) -> None:
    for _ in range(2):
        page.click(head("the best evaluation"))
        assert column(page, "best")[-1] == ""


def test_the_filter_chooses_the_runs_of_table_and_curves(page: Browser) -> None:
    curves = "document.querySelectorAll('#chart path.curve').length"
    assert page.js(curves) == 7
    page.type("#filter", "gamma=0.99 return>35 learning_rate<0.05")
    assert sorted(column(page, "run")) == ["10", "11", "12★", "9"]
    assert page.js(curves) == 2
    assert page.js("document.getElementById('count').innerText") == "4 of 13 runs"
    page.type("#filter", "failed")
    assert column(page, "run") == ["99"]
    page.type("#filter", "nobody")
    assert column(page, "run") == [] or "No run is like that." in page.js("document.querySelector('#runs').innerText")
    page.type("#filter", "")
    assert len(column(page, "run")) == 13


def test_a_status_is_switched_off(page: Browser) -> None:
    page.click("#statuses button:nth-child(2)")
    assert set(column(page, "status")) == {"completed"}


def test_pointing_at_a_curve_shows_its_values(page: Browser) -> None:
    page.type("#filter", "gamma=0.99 learning_rate=0.001")
    x, y, width, height = page.place("#chart svg")
    time.sleep(0.2)  # scrolling closes what is open
    page.move(x + width - 16, y + height / 2)
    tip = page.js("document.getElementById('tip').innerText")
    assert "eval/return_mean at 1,000 steps" in tip
    assert "51.5 ± 0.71 (2 seeds)" in tip
    page.choose("#band", "range")
    page.move(x + width - 18, y + height / 2)
    assert "51.5 [51, 52]" in page.js("document.getElementById('tip').innerText")
    page.move(x + 5, y - 5)
    assert page.js("document.getElementById('tip').hidden") is True


def test_smoothing_metric_and_axis_change_the_curves(page: Browser) -> None:
    shape = "document.querySelector('#chart path.curve').getAttribute('d')"
    plain = page.js(shape)
    page.choose("#smooth", "0.9")
    smooth = page.js(shape)
    page.choose("#metric", "loss/q")
    other = page.js(shape)
    page.choose("#axis", "2")
    assert len({plain, smooth, other}) == 3
    assert "0:10" in page.js("document.getElementById('chart').innerHTML")


def test_two_settings_are_a_heat_map_of_means_over_seeds(page: Browser) -> None:
    table = page.js("[...document.querySelectorAll('#settings tr')].map(r => [...r.children].map(c => c.innerText))")
    assert table == [
        ["gamma ↓ learning_rate →", "0.0001", "0.001", "0.01", "0.1"],
        ["0.9", "–", "21.5", "11.5", "1.50"],
        ["0.99", "1.50", "★ 51.5", "41.5", "31.5"],
    ]
    page.choose("#value", "best")
    assert page.js("document.querySelectorAll('#settings td')[1].innerText") == "98"


def test_three_settings_are_parallel_coordinates(running: Browser, pages: dict[str, Path]) -> None:
    running.open(pages["three"])
    assert running.js("document.getElementById('view').value") == "parallel"
    assert running.js("document.querySelectorAll('#settings path.line').length") == 8
    titles = running.js("[...document.querySelectorAll('#settings text.title')].map(t => t.textContent)")
    assert titles == ["gamma", "learning_rate", "tau", "return"]
    running.choose("#view", "heat")
    assert "averaged over" in running.js("document.getElementById('settings-hint').innerText")


def test_a_label_of_parallel_coordinates_stands_where_its_lines_cross_the_axis(
    running: Browser, pages: dict[str, Path]
) -> None:
    running.size(1200, 900)
    running.open(pages["three"])
    marks = "[...document.querySelectorAll('#settings g > .halo')].map(t => [t.textContent, +t.getAttribute('y')])"
    labels = {text: y - 4 for text, y in running.js(marks)}  # of its baseline
    starts = running.js(  # on the first axis, of gamma
        "[...document.querySelectorAll('#settings path.line')].map(p => Number(p.getAttribute('d').split(/[ML ]/)[2]))"
    )
    for label in ("0.9", "0.99"):
        near = [y for y in starts if abs(y - labels[label]) < 20]
        assert len(near) == 4
        assert sum(near) / 4 == pytest.approx(labels[label], abs=0.2)


def test_unlike_runs_are_a_readable_page(running: Browser, pages: dict[str, Path]) -> None:
    running.size(1200, 900)
    running.complaints.clear()
    running.open(pages["unlike"])
    assert running.js("document.getElementById('env').value") == "CartPole-v1"  # which has the most runs
    notes = running.js(
        "[...document.querySelectorAll('.tile .note, #legend button span:nth-child(2)')].map(e => e.innerText)"
    )
    assert max(map(len, notes)) < 80
    heights = running.js("[...document.querySelectorAll('.tile, #legend button')].map(e => e.clientHeight)")
    assert max(heights) < 160
    options = running.js("[...document.getElementById('view').options].map(o => o.value)")
    assert options == ["dots"]  # of three runs parallel coordinates say nothing; the algorithms can be compared
    assert "are averaged over" in running.js("document.getElementById('settings-hint').innerText")
    assert column(running, "gamma") == [""] * 3
    running.click("#more")
    assert set(column(running, "gamma")) == {"0.99", "0.5"}
    running.choose("#env", "Acrobot-v1")
    assert "var(--c0)" in running.js("document.querySelector('#legend .swatch').getAttribute('style')")
    assert running.complaints == []


def test_a_run_opens_its_details(page: Browser) -> None:
    page.type("#filter", "failed")
    page.click("#runs tbody tr")
    text = page.js("document.getElementById('details').innerText")
    assert page.js("document.getElementById('details').open") is True
    for part in ("failed", "rlexp algo=dqn", "versions", "trainer.total_steps"):
        assert part in text
    page.click("#close")
    assert page.js("document.getElementById('details').open") is False


def test_it_is_dark_where_the_reader_likes_it_and_can_be_switched(page: Browser, pages: dict[str, Path]) -> None:
    light = page.js("getComputedStyle(document.body).backgroundColor")
    page.size(1200, 900, dark=True)
    dark = page.js("getComputedStyle(document.body).backgroundColor")
    assert (light, dark) == ("rgb(246, 247, 249)", "rgb(15, 18, 22)")
    page.click("#theme")
    assert page.js("getComputedStyle(document.body).backgroundColor") == light
    page.js("localStorage.clear()")


def test_a_phone_needs_no_scrolling_aside(running: Browser, pages: dict[str, Path]) -> None:
    for name in ("two", "three", "hostile"):
        running.size(375, 800, phone=True)
        running.open(pages[name])
        assert running.js("document.documentElement.scrollWidth") <= 375, name


def test_a_phone_shows_the_return_beside_the_name_and_that_there_is_more(
    running: Browser, pages: dict[str, Path]
) -> None:
    running.size(390, 844, phone=True)
    running.open(pages["two"])
    heads = "[...document.querySelectorAll('#runs th')].map(th => th.innerText.replace(' ↓', ''))"
    seen = "[...document.querySelectorAll('#runs td:nth-child(2)')].every(td => td.getBoundingClientRect().right < 360)"
    assert running.js(heads)[:3] == ["run", "return", "status"]
    assert running.js(seen) is True
    assert faded(running, "#runs-section .scroll") == ["on-right"]
    running.js("document.querySelector('#runs-section .scroll').scrollLeft = 9999")
    assert faded(running, "#runs-section .scroll") == ["on-left"]
    running.size(1200, 900)
    assert faded(running, "#runs-section .scroll") == []
    assert running.js(heads)[:3] == ["run", "status", "gamma"]


def test_parallel_coordinates_begin_with_the_return_where_not_all_axes_have_room(
    running: Browser, pages: dict[str, Path]
) -> None:
    running.size(390, 844, phone=True)
    running.open(pages["three"])
    titles = "[...document.querySelectorAll('#settings text.title')].map(t => t.textContent)"
    assert running.js(titles) == ["return", "gamma", "learning_rate", "tau"]
    assert "begins on the left at its return" in running.js("document.getElementById('settings-hint').innerText")
    assert faded(running, "#settings .scroll") == ["on-right"]


def faded(page: Browser, selector: str) -> list[str]:
    """The edges at which a part of the page goes on, once the browser has laid it out."""
    time.sleep(0.3)
    names = page.js(f"[...document.querySelector({json.dumps(selector)}).classList]")
    assert page.js(f"getComputedStyle(document.querySelector({json.dumps(selector)})).maskImage !== 'none'") is (
        len(names) > 1
    )
    return [name for name in names if name.startswith("on-")]


def test_what_a_hostile_run_says_is_shown_and_not_obeyed(running: Browser, pages: dict[str, Path]) -> None:
    running.complaints.clear()
    running.requests.clear()
    running.size(1200, 900)
    running.open(pages["hostile"])
    running.click("#runs tbody tr:last-child")
    assert "<script>alert(1)</script>" in running.js("document.getElementById('details').innerText")
    assert running.js("document.querySelectorAll('script').length") == 2
    assert running.js("document.querySelectorAll('img').length") == 0
    assert running.complaints == []
    assert [url for url in running.requests if not url.startswith("data:")] == [pages["hostile"].as_uri()]
