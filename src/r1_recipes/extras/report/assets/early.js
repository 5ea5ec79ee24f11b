// Set the theme before the first paint, so that a dark page does not flash.
try {
  const theme = localStorage.getItem("r1-report-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Browsers may deny storage to a page opened from a file.
}
