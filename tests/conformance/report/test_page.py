"""The report as a page, in a real browser: it fits, it shows what matters, and no text of a module is obeyed."""

from __future__ import annotations

import pytest

from amplifier.conformance import Report
from amplifier.conformance.page import write_page
from tests._support.browser import open_tab
from tests.conformance.report.reports import HOSTILE, finding, report

_OVERFLOWING = """[...document.querySelectorAll('body *')]
    .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(each => each.outerHTML)"""


def long_report() -> Report:
    long = "x" * 500
    path = f"/{'folder/' * 40}x.py"
    findings = [
        finding(
            "T5",
            what=HOSTILE,
            input={"a": [long, HOSTILE]},
            location="x.py:7",
            file=path,
            reproduce=long,
        ),
        finding("T13", level="recommended", what=long, hint=HOSTILE),
    ]
    return report(
        *findings, module=f"{HOSTILE}{long}", source=path, missed=("T8",), notes=[HOSTILE, long]
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_and_is_inert(tmp_path, width):
    page = tmp_path / "report.html"
    page.write_text(write_page(long_report()), encoding="utf-8")
    with open_tab() as tab:
        tab.open(page.as_uri(), width=width)
        tab.evaluate("document.querySelector('details').open = true")
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert tab.evaluate(_OVERFLOWING) == []
        assert (
            tab.evaluate("document.querySelectorAll('script, img, a, iframe, [onerror]').length")
            == 0
        )
        assert "ran" not in tab.evaluate("document.title").split()
        assert tab.evaluate("document.querySelectorAll('article').length") == 2
        badge = "getComputedStyle(document.querySelector('.badge .violations')).backgroundColor"
        assert tab.evaluate(badge) == "rgb(164, 22, 26)"  # the style sheet applies under the policy
        assert tab.problems == []


@pytest.mark.slow
def test_the_policy_refuses_scripts_styles_and_loads(tmp_path):
    page = tmp_path / "report.html"
    planted = "<script>document.title = 'ran'</script><p id=p style='color: red'>x</p><img src=x.png></body>"
    page.write_text(write_page(report()).replace("</body>", planted), encoding="utf-8")
    with open_tab() as tab:
        tab.open(page.as_uri(), width=1280)
        assert tab.evaluate("document.title") == "tool-x: conforms"
        assert (
            tab.evaluate("getComputedStyle(document.querySelector('#p')).color") != "rgb(255, 0, 0)"
        )
        refused = [text for text in tab.problems if "Content Security Policy" in text]
        assert len(refused) == 3, tab.problems


def test_findings_come_first_and_the_rest_is_there():
    page = write_page(report(finding("T5"), missed=("T8",), notes=["why"]))
    parts = [
        'class="violations"',
        "it breaks 1 required clause",
        "T5 does not hold",
        "note: why",
        "40 of 42 clauses kept",
    ]
    positions = [page.index(part) for part in parts]
    assert positions == sorted(positions)
