"""The chapters: their figures, the public names that they use, and the tools that they share."""

import inspect
import re
import sys
from types import ModuleType, SimpleNamespace

import matplotlib.pyplot as plt
import pages
import pytest
from bs4 import BeautifulSoup
from matplotlib.figure import Figure
from programs import ROOT

from notebooks.tools import chapter

CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CODE = "\n".join(pages.Notebook.read(path).code for path in CHAPTERS)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_figure_has_a_number_a_caption_and_alt_text(path):
    notebook = pages.Notebook.read(path)
    captions = notebook.captions()
    drawn = {}
    for c, cell in enumerate(notebook.cells):
        outputs = [o for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
        drawn |= {c: [o["metadata"]["image/png"]["alt"] for o in outputs]} if outputs else {}
    assert list(captions) == list(drawn)
    for number, (c, (caption, alt)) in enumerate(captions.items(), 1):
        assert caption.startswith(f"**Figure {int(path.stem[:2])}.{number}.**")
        assert len(alt) > 60
        assert {*drawn[c]} == {alt}


def test_no_two_chapters_draw_figures_of_one_name():
    """The batch shows all figures in one folder."""
    names = re.findall(r'chapter\.save\(\w+, "(\w+)"', CODE)
    assert len(names) == len(set(names)) > 30


def test_every_public_name_is_used_by_a_chapter():
    """Exceptions and classes that other names take or return need not be."""
    names = {path: x for path, x in pages.public_names().items() if not inspect.ismodule(x)}
    signatures = [inspect.signature(x) for x in names.values() if inspect.isfunction(x)]
    code = f"{CODE} {signatures} {[getattr(x, '__annotations__', '') for x in names.values()]}"
    unused = [thing for path, thing in names.items() if not pages.uses(code, path)]
    unused = [x for x in unused if inspect.isfunction(x) or not issubclass(x, tuple | Exception)]
    assert not unused, "no executed chapter uses these: workflow/pair.py writes the .ipynb"


# ---- what chapters share ------------------------------------------------------------------------


def test_explore_shows_all_frames_and_a_slider(monkeypatch):
    """It needs no kernel."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    chapter.explore(lambda value: plt.figure(figsize=(1, value)), [0.5, 1.0, 1.5], "height")
    assert not plt.get_fignums()
    assert set(shown[0]) == {"text/html", "image/png"}
    html = BeautifulSoup(shown[0]["text/html"], "html.parser")
    images = html.find_all("img")
    assert [image["alt"] for image in images] == ["height 0.5", "height 1", "height 1.5"]
    assert ["style" in image.attrs for image in images] == [False, True, True]
    assert len({image["src"] for image in images}) == 3
    assert (html.input["max"], html.output.get_text()) == ("2", "0.5")


def test_in_a_notebook_the_saved_file_is_shown(monkeypatch, tmp_path):
    shown = []
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setattr("IPython.display.display", shown.append)
    for name, fig in {"hidden": Figure(), "shown": plt.figure(figsize=(1, 1))}.items():
        chapter.save(fig, name, {"x": [1.0]}, str(tmp_path))
    assert [image.data for image in shown] == [(tmp_path / "shown.png").read_bytes()]
    assert not plt.get_fignums()


@pytest.mark.parametrize("place", ["", "notebooks", "out/quick/notebooks"])
def test_results_are_found_from_any_folder(tmp_path, place, monkeypatch):
    """An executed notebook looked for them in out/quick/figures, and failed."""
    (tmp_path / "pyproject.toml").touch()
    for part, value in {"": 7, "out/quick": 8}.items():
        (tmp_path / part / "notebooks").mkdir(parents=True)
        (tmp_path / part / "figures").mkdir()
        (tmp_path / part / "figures" / "table.csv").write_text(f"x\n{value}\n")
    monkeypatch.chdir(tmp_path / place)
    assert chapter.results(["figures/table.csv"]).x.tolist() == [7]
    monkeypatch.chdir("/")  # a notebook that was downloaded reads what is installed in place
    assert "Pong" in set(chapter.results(["figures/atari/pairs.csv"]).game)


def test_a_parameter_of_another_type_is_refused_in_a_line(monkeypatch):
    """By papermill alone; in the batch the profile is refused before."""
    defaults = 'sweeps = 400  # at least 200\ngammas = [0.9]\nlevel = 0.5\nout_dir = ""'

    def claims(given):
        cells = ["", defaults, f"# Parameters\n{given}", "claims = chapter.Claims()"]
        kernel = SimpleNamespace(user_ns={"In": cells})
        monkeypatch.setattr("IPython.get_ipython", lambda: kernel)
        return chapter.Claims()

    assert claims('sweeps = 300\ngammas = [1]\nlevel = 1\nout_dir = "here"\nother = 3')
    for wrong in ("sweeps = 'x'", "level = 'a'"):
        with pytest.raises(TypeError, match=f"^{wrong.replace(' ', '')}: must be like its default"):
            claims(wrong)


def test_a_claim_that_does_not_hold_fails():
    claims = chapter.Claims()
    with pytest.raises(AssertionError, match=r"c \| 3 \| FAILS"):
        claims.check("c", 3, False, "differs from the paper")
    with pytest.raises(ValueError, match="verdict must be one of"):
        claims.check("d", 4, True, "nearly")
