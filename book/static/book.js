// Names for what the theme leaves without one, and the keyboard for what scrolls.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("summary[aria-label='Toggle hidden content'], .search-button-field").forEach((e) => {
    e.removeAttribute("aria-label"); // its text is its name
  });
  document.querySelectorAll("summary:has(.toctree-toggle)").forEach((e) => e.setAttribute("aria-label", "Show or hide the pages below"));
  document.querySelectorAll("dt > dl").forEach((e) => { // the parameters of a signature
    e.setAttribute("role", "list");
    for (const item of e.children) item.setAttribute("role", "listitem");
  });
  window.MathJax?.startup?.promise?.then(() => {
    document.querySelectorAll("mjx-container, .cell_output table, pre").forEach((e) => {
      if (e.scrollWidth > e.clientWidth) e.tabIndex = 0;
    });
  });
});
