// Names for what the theme leaves without one, the keyboard for what scrolls, and figures in full size.

// The build writes how wide a figure must be for its smallest text to be read, as a class; a slider's frames are drawn at that size.
function scrollOnTelephone(link, image) {
  const told = /(?:^| )readable-(\d+)/.exec(image.className);
  image.decode().catch(() => null).then(() => {
    const width = told ? Number(told[1]) : image.closest(".explore") ? image.naturalWidth : Math.min(image.naturalWidth, 736);
    image.style.setProperty("--readable", `${width}px`);
    const mark = () => link.classList.toggle("scrolls", link.scrollWidth > link.clientWidth + 16);
    new ResizeObserver(mark).observe(link);
  });
}

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
    link.className = "figure-alone";
    link.title = "Show this figure alone, in full size";
    link.href = e.src;
    // a browser opens no data: address as a page
    if (e.src.startsWith("data:")) fetch(e.src).then((r) => r.blob()).then((b) => { link.href = URL.createObjectURL(b); });
    e.replaceWith(link);
    link.append(e);
    if (!e.closest(".gallery")) scrollOnTelephone(link, e);
  });
  window.MathJax?.startup?.promise?.then(() => {
    document.querySelectorAll("mjx-container, .cell_output table, pre").forEach((e) => {
      if (e.scrollWidth > e.clientWidth) e.tabIndex = 0;
    });
  });
});
