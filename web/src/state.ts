// The one store of what the page shows. It lies in the URL fragment, so that Back, Forward, a reload and a sent link
// restore it.

const DEFAULTS = {
  device: "",
  axis: "", // of the curve: time or events; empty for the one that the page was made with
  zoom: "",
  at: "", // the instant: an event, empty for the peak
  than: "", // the instant that it is compared with: an event, `peak`, or empty
  by: "", // dimensions to group by, as `module.category`
  color: "category", // the dimension that colours tell
  cell: "", // the cell of the icicle that is zoomed into
  pick: "", // what is picked out: `finding:2`, `module:blocks.0`, `line:train.py:40`, `group:conv`
  q: "", // what is searched
  tab: "live",
  sort: "",
  fold: "",
  wrap: "",
  saved: "", // which saved tensors are listed: `all`, or empty for those at the peak
  storage: "", // the storage whose dialog is open
};

export type State = typeof DEFAULTS;
export type Key = keyof State;
type Patch = Partial<Record<Key, string | number>>;
type Listener = (now: State, changed: Set<Key>) => void;

const KEYS = Object.keys(DEFAULTS) as Key[];
const listeners: Listener[] = [];
let current = read();

function read(): State {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(KEYS.map((key) => [key, given.get(key) ?? DEFAULTS[key]])) as State;
}

function write(state: State): string {
  const changed = KEYS.filter((key) => state[key] !== DEFAULTS[key]).map((key) => [key, state[key]]);
  return `#${new URLSearchParams(changed)}`;
}

function notify(before: State): void {
  const changed = new Set(KEYS.filter((key) => before[key] !== current[key]));
  if (changed.size) for (const listener of listeners) listener(current, changed);
}

export const state = {
  get: (): State => current,

  // A step that the user may want to go back from is pushed to the history; typing and dragging replace the last entry.
  set(patch: Patch, { push = true } = {}): void {
    const before = current;
    const texts = Object.entries(patch).map(([key, value]) => [key, String(value ?? "")]);
    current = { ...current, ...Object.fromEntries(texts) };
    if (write(current) === write(before)) return;
    if (push) history.pushState(null, "", write(current));
    else history.replaceState(null, "", write(current));
    notify(before);
  },

  listen(listener: Listener): void {
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
