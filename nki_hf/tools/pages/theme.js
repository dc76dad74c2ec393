(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* a page from a file may keep nothing */ }
  if (chosen) root.dataset.theme = chosen;
  const told = () => dispatchEvent(new Event("themechange"));
  dark.addEventListener("change", told);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const now = root.dataset.theme || (dark.matches ? "dark" : "light");
      root.dataset.theme = now === "dark" ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* nothing is kept */ }
      told();
    });
  });
})();
