// Buttons that open or close all entries of a section at once.

export function listenToFolds(): void {
  for (const button of document.querySelectorAll<HTMLElement>(".fold-all")) {
    button.addEventListener("click", () => {
      for (const each of button.closest("section")!.querySelectorAll("details")) each.open = button.dataset.open !== "";
    });
  }
}
