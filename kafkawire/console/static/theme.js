// Before the page is painted: the theme that was chosen in this browser, if any.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is off: the theme of the system */ }
