// Light or dark: as the system is set, until the button is pressed.
import { $ } from "./dom.js";

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

export function listenToTheme(repaint) {
  const set = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    repaint();
  };
  $("theme").addEventListener("click", () => set(isDark() ? "light" : "dark"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  let before;
  window.addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    set("light");
  });
  window.addEventListener("afterprint", () => set(before));
}
