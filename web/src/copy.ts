// A button beside each block of new code that copies it, without the signs.
import { button } from "./dom.ts";

export function offerCopies(): void {
  for (const block of document.querySelectorAll<HTMLElement>(".code")) {
    const added = [...block.querySelectorAll("ins .text")].map((line) => line.textContent);
    if (added.length) block.append(button("Copy", (event) => void copy(added.join("\n"), event.currentTarget as HTMLElement), { class: "copy", title: "Copy the new lines" }));
  }
}

async function copy(code: string, from: HTMLElement): Promise<void> {
  from.textContent = (await wasCopied(code)) ? "Copied" : "Select and copy";
  setTimeout(() => (from.textContent = "Copy"), 2000);
}

// Not every browser lets a page from a file use the clipboard.
async function wasCopied(code: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(code);
    return true;
  } catch {
    return false;
  }
}
