// Names for what the theme leaves without one, the keyboard for what scrolls, and figures in full size.

// On a telephone a figure is so wide that its text of 7 points, at 150 dots an inch, has 9 pixels; a slider's frames are drawn at that size.
function scrollOnTelephone(link, image) {
  image.decode().catch(() => null).then(() => {
    const width = image.closest(".explore") ? image.naturalWidth : Math.min(0.62 * image.naturalWidth, 736);
    image.style.setProperty("--readable", `${width}px`);
    const mark = () => {
      const hidden = link.scrollWidth - link.clientWidth;
      link.classList.toggle("scrolls", hidden > 16);
      link.classList.toggle("more-to-the-right", hidden > 16 && link.scrollLeft < hidden - 8);
    };
    new ResizeObserver(mark).observe(link);
    link.addEventListener("scroll", mark, { passive: true });
  });
}

// A long name may break after a dot or an underscore, so that no word is cut in two.
function breakBetweenParts(element) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    const parts = text.data.split(/(?<=[_/])(?=\w)|(?<=\.)(?=[A-Za-z])/);
    text.replaceWith(...parts.flatMap((part, n) => (n ? [document.createElement("wbr"), part] : [part])));
  }
}

// Text has columns if at least two of its lines have words that stand apart.
function hasColumns(text) {
  return text.split("\n").filter((line) => /\S {2,}\S/.test(line)).length > 1;
}

// A formula takes the punctuation beside it along to its line.
function keepPunctuation(formula) {
  const after = formula.nextSibling;
  const marks = after?.nodeType === Node.TEXT_NODE && /^[.,;:!?)\]’”-]+/.exec(after.data);
  if (marks) {
    formula.append(marks[0]);
    after.data = after.data.slice(marks[0].length);
  }
  const before = formula.previousSibling;
  const opening = before?.nodeType === Node.TEXT_NODE && /[([“]+$/.exec(before.data);
  if (opening) {
    formula.prepend(opening[0]);
    before.data = before.data.slice(0, opening.index);
  }
}

// On paper nothing can be unfolded, and nothing is dark: solutions are open, and the page is light, until it is printed.
function printOnPaper() {
  const { dataset } = document.documentElement;
  const unfolded = [...document.querySelectorAll(".bd-article details:is(:not(.hide), .tag_hide-cell *):not([open])")];
  const { theme } = dataset;
  unfolded.forEach((e) => { e.open = true; });
  dataset.theme = "light";
  const undo = () => {
    unfolded.forEach((e) => { e.open = false; });
    dataset.theme = theme;
  };
  window.addEventListener("afterprint", undo, { once: true });
}
window.addEventListener("beforeprint", printOnPaper);

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("summary[aria-label='Toggle hidden content'], .search-button-field").forEach((e) => {
    e.removeAttribute("aria-label"); // its text is its name
  });
  document.querySelectorAll("summary:has(.toctree-toggle)").forEach((e) => e.setAttribute("aria-label", "Show or hide the pages below"));
  document.querySelectorAll("dt > dl").forEach((e) => { // the parameters of a signature
    e.setAttribute("role", "list");
    for (const item of e.children) item.setAttribute("role", "listitem");
  });
  const isLong = (e) => e.textContent.split(/\s/).some((word) => word.length > 30); // longer than a telephone is wide
  const longNames = [...document.querySelectorAll(".bd-article :not(pre) > code")].filter(isLong);
  longNames.forEach((e) => e.classList.add("long"));
  const narrow = document.querySelectorAll(".bd-article h1, .bd-article table code, .bd-article thead th, .indextable a, .prev-next-title");
  new Set([...narrow, ...longNames]).forEach(breakBetweenParts);
  document.querySelectorAll(".bd-article .cell_output pre").forEach((e) => {
    e.classList.toggle("columns", hasColumns(e.textContent));
  });
  document.querySelectorAll(".bd-article :is(figure, .cell_output) img, .bd-article p > img:only-child").forEach((e) => {
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
    const widest = 0.6 * (document.querySelector(".bd-article")?.clientWidth ?? 0); // a wider one may fill its line
    [...document.querySelectorAll("span.math")].filter((e) => e.offsetWidth < widest).forEach(keepPunctuation);
    document.querySelectorAll("mjx-container, .cell_output div:has(> table), pre").forEach((e) => {
      if (e.scrollWidth > e.clientWidth) e.tabIndex = 0;
    });
  });
});
