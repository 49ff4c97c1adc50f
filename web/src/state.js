// The state of the page is in the URL fragment, so that Back, Forward, a reload and a sent link restore it.

const DEFAULTS = { device: "", axis: "time", zoom: "", at: "", order: "category", cell: "", tab: "live", sort: "", q: "", fold: "", storage: "" };
const listeners = [];
let current = read();

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(Object.entries(DEFAULTS).map(([key, value]) => [key, given.get(key) ?? value]));
}

function write(state) {
  const changed = Object.entries(state).filter(([key, value]) => value !== DEFAULTS[key]);
  return `#${new URLSearchParams(changed)}`;
}

function notify(before) {
  const changed = new Set(Object.keys(DEFAULTS).filter((key) => before[key] !== current[key]));
  if (changed.size) for (const listener of listeners) listener(current, changed);
}

export const state = {
  get: () => current,

  // A step that the user may want to go back from is pushed to the history; typing replaces the last entry.
  set(patch, { push = true } = {}) {
    const before = current;
    const texts = Object.entries(patch).map(([key, value]) => [key, String(value ?? "")]);
    current = { ...current, ...Object.fromEntries(texts) };
    if (write(current) === write(before)) return;
    if (push) history.pushState(null, "", write(current));
    else history.replaceState(null, "", write(current));
    notify(before);
  },

  listen(listener) {
    listeners.push(listener);
  },
};

for (const event of ["popstate", "hashchange"]) {
  window.addEventListener(event, () => {
    const before = current;
    current = read();
    notify(before);
  });
}
