// Names for what the theme leaves without one, the keyboard for what scrolls, and figures in full size.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("summary[aria-label='Toggle hidden content'], .search-button-field").forEach((e) => {
    e.removeAttribute("aria-label"); // its text is its name
  });
  document.querySelectorAll("summary:has(.toctree-toggle)").forEach((e) => e.setAttribute("aria-label", "Show or hide the pages below"));
  document.querySelectorAll("dt > dl").forEach((e) => { // the parameters of a signature
    e.setAttribute("role", "list");
    for (const item of e.children) item.setAttribute("role", "listitem");
  });
  document.querySelectorAll(".bd-article figure img, .bd-article .cell_output img").forEach((e) => {
    if (e.closest("a")) return;
    const link = document.createElement("a");
    link.title = "Show this figure alone, in full size";
    link.href = e.src;
    // a browser opens no data: address as a page
    if (e.src.startsWith("data:")) fetch(e.src).then((r) => r.blob()).then((b) => { link.href = URL.createObjectURL(b); });
    e.replaceWith(link);
    link.append(e);
  });
  window.MathJax?.startup?.promise?.then(() => {
    document.querySelectorAll("mjx-container, .cell_output table, pre").forEach((e) => {
      if (e.scrollWidth > e.clientWidth) e.tabIndex = 0;
    });
  });
});
