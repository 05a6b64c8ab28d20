"""The report: one self-contained page, written whole, that replaces nothing but a report."""

from __future__ import annotations

import builtins
import re
import sys
from html.parser import HTMLParser

import pytest

from analysis.report import manifest_facts, write_report
from tinyllm.engine.record.reader import read_run
from tinyllm.errors import IncompleteRunError, InputError

plots = pytest.importorskip("analysis.plots", reason="matplotlib (extra `report`) is not installed")


class _Page(HTMLParser):
    """Collects what a page would load, its ids, its text, and whether its tags are closed in order."""

    VOID = ("meta", "br", "path", "use", "rect")

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.words, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.links += [attributes[name] for name in ("src", "href", "xlink:href") if name in attributes]
        self.ids += [attributes["id"]] if "id" in attributes else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def runs(serve):
    jobs = [{"arrival": i / 2, "prompt": 8, "output": 1 + i % 5} for i in range(30)]
    return [read_run(serve(jobs, name=name, seats=n)[0]) for name, n in (("narrow", 1), ("<wide> & more", 4))]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    return write_report(runs, tmp_path_factory.mktemp("report") / "new folder" / "report.html").read_text()


def test_the_page_loads_nothing_and_its_ids_are_unique(page):
    parsed = _Page(page)
    assert all(link.startswith("#") for link in parsed.links)
    assert {link[1:] for link in parsed.links} <= set(parsed.ids)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert not re.search(r"url\((?!#)|@import|<script|<link", page)
    assert parsed.open == []


def test_each_figure_names_its_units(page):
    words = _Page(page).words
    for label in (
        "requests / s",
        "time since the start of the run (s)",
        "TTFT (s)",
        "TPOT (ms)",
        "KV blocks",
    ):
        assert label in words


def test_the_page_tells_the_runs_their_numbers_warnings_and_provenance(page, runs):
    text = "".join(_Page(page).words)
    for part in (
        "narrow",
        "<wide> & more",
        "p99 rests on 30 completed requests",
        "ab" * 32,
        "trace.csv",
        "fcfs",
    ):
        assert part in text
    assert "<wide>" not in page


def test_equal_runs_give_equal_pages(page, runs, tmp_path):
    assert write_report(runs, tmp_path / "again.html").read_text() == page


def test_a_run_has_one_colour_and_a_ninth_run_another_line(runs):
    many = plots.plotted([runs[0]] * 9, [str(i) for i in range(9)])
    assert len({(item.color, item.dash) for item in many}) == 9
    assert many[0].color == many[8].color


@pytest.mark.parametrize("count", [1, 3])
def test_runs_in_which_nothing_finished_can_be_reported(write, count, tmp_path):
    rows = [{"request_id": "r", "arrival": 0.0, "finish_reason": "rejected"}]
    runs = [read_run(write(requests=rows)) for _ in range(count)]
    assert "1 of 1 requests were refused" in write_report(runs, tmp_path / "r.html").read_text()


def test_a_report_is_replaced_and_another_file_only_by_force(runs, page, tmp_path, monkeypatch):
    monkeypatch.setattr("analysis.report.render_report", lambda *_: page)
    out = tmp_path / "report.html"
    out.write_text(page.replace("narrow", "older"))
    assert write_report(runs, out).read_text() == page
    out.write_text("my notes")
    with pytest.raises(InputError, match="is no tinyllm report: name another file, or use --force"):
        write_report(runs, out)
    assert out.read_text() == "my notes"
    assert write_report(runs, out, force=True).read_text() == page
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_full_disk_leaves_the_old_report_and_no_temporary_file(runs, page, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    out = tmp_path / "report.html"
    out.write_text(page)
    monkeypatch.setattr("analysis.report.render_report", lambda *_: page + "more")
    monkeypatch.setattr("analysis.report.os.replace", full)
    with pytest.raises(IncompleteRunError, match="No space left on device"):
        write_report(runs, out)
    assert out.read_text() == page
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_as_target_and_no_run_at_all_are_one_line(runs, tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        write_report(runs, tmp_path)
    with pytest.raises(InputError, match="at least one run"):
        write_report([], tmp_path / "report.html")


def test_without_matplotlib_the_extra_is_named_and_nothing_is_written(runs, tmp_path, monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return original(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "analysis.plots")
    monkeypatch.delattr("analysis.plots", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"matplotlib, which is not installed.*tinyllm\[report\]"):
        write_report(runs, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_manifest_facts_leave_out_what_the_manifest_does_not_say(write):
    rows = [{"request_id": "r", "arrival": 0.0, "finish_reason": "stop"}]
    run = read_run(
        write(requests=rows, policy={"name": "vtc", "args": {"weight": 2}}, config={"a": 1, "b": True})
    )
    facts = manifest_facts(run)
    assert facts["policy"] == "vtc(weight=2)"
    assert facts["engine"] == "a = 1, b = True"
    assert "device" not in facts
