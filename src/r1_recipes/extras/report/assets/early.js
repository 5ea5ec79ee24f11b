// Before the first paint, so that a dark page never flashes light.
try {
  const theme = localStorage.getItem("r1-report-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A page opened from a file may be refused its storage.
}
