// The theme's script wraps tables and adds a bar to each block of code. Whoever has no mouse must
// reach a table that is wider than the page, and the bars are not parts of the page to jump to.
const mend = () => {
  document.querySelectorAll("nav.md-code__nav").forEach((bar) => bar.setAttribute("role", "none"));
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach((box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  });
};
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", mend);
mend();
