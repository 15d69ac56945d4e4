"""Settings of the book. `build.py` gathers the pages beside this file and runs Sphinx on them."""

import sys
from importlib.metadata import distribution
from pathlib import Path

project = "The joint-MDP companion"
author = "The joint-MDP companion authors"
library = distribution("jmdp_lib")
version = release = library.version
licence = library.metadata["License-Expression"]
project_copyright = f"2026 {author}"  # a test compares it with LICENSE

sys.path.insert(0, str(Path(__file__).parent))  # prose.py
extensions = ["myst_nb", "prose"]
extensions += [f"sphinx.ext.{name}" for name in ("autosummary", "mathjax", "viewcode")]
# A page for each object that a package exports.
autosummary_ignore_module_all = False
autosummary_imported_members = True
templates_path = ["templates"]
default_role = "literal"  # `code` in docstrings
autodoc_default_options = {"members": True, "member-order": "bysource"}
# Signatures are shown as they are written.
ALIASES = "ArrayLike Bracket Bytes Floats Ints Joint Policy Seed StateAction Steps TableFunction"
autodoc_type_aliases = {name: name for name in ALIASES.split()}
smartquotes_action = "De"  # no curly quotes: words of options are copied
autodoc_typehints_format = "short"
nb_execution_mode = "off"  # the notebooks are committed executed
nb_render_markdown_format = "gfm"  # tables in outputs
myst_heading_anchors = 2  # as on a forge
myst_enable_extensions = ["colon_fence", "dollarmath", "fieldlist", "deflist"]

# Every reference to a function must lead somewhere. Types in signatures need not.
nitpicky = True
nitpick_ignore_regex = [("py:(class|exc)", ".*"), ("py:obj", "None")]
add_module_names = False
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 66  # as many as fit beside the link to the source

# Nothing is fetched from another host: mathematics is one local file, buttons that launch are off.
mathjax_path = "tex-svg.js"
mathjax3_config = {
    "options": {"enableMenu": False},
    "tex": {
        "packages": {"[-]": ["noundefined"]},  # an unknown macro is an error
        "macros": {x: rf"\operatorname{{{x}}}" for x in ("Var", "Cov", "Corr", "CVaR", "clip")},
    },
}
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = ["book.js", "live.js"]
html_theme = "sphinx_book_theme"
html_title = project
html_favicon = "static/favicon.svg"
html_context = {"default_mode": "light"}
html_show_sphinx = False
html_theme_options = {
    "show_toc_level": 2,
    "extra_footer": f"{project}, version {version}, {licence} licence",
    "use_download_button": True,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the search field is in the margin
}
