// Light or dark: as the system is set, until the button is pressed. On paper it is light, charts are as wide as the sheet, and what is folded is open, but for long lists behind a count.
import { $, forgetColors } from "./dom.ts";

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

export function listenToTheme(repaint: () => void): void {
  const paint = () => {
    forgetColors();
    repaint();
  };
  const set = (theme: string | undefined) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    paint();
  };
  $("theme").addEventListener("click", () => set(isDark() ? "light" : "dark"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  let before: string | undefined;
  let folded: HTMLDetailsElement[] = [];
  window.addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    folded = [...document.querySelectorAll<HTMLDetailsElement>("main details:not([open], .more)")];
    for (const each of folded) each.open = true;
    document.documentElement.dataset.paper = "yes"; // before the charts are drawn again: they ask for their width
    set("light");
  });
  window.addEventListener("afterprint", () => {
    for (const each of folded) each.open = false;
    delete document.documentElement.dataset.paper;
    set(before);
  });
}
