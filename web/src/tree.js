// Groups live storages into the tree that the icicle draws. Modules are nested as in the program.

export const ORDERS = {
  category: { label: "category › module › op › line", levels: ["category", "module", "op_name", "line"] },
  module: { label: "module › category › op › line", levels: ["module", "category", "op_name", "line"] },
  line: { label: "line › category › op", levels: ["line", "category", "op_name"] },
  phase: { label: "phase › holder › line", levels: ["phase", "holder", "line"] },
  holder: { label: "holder › category › line", levels: ["holder_kind", "holder", "category", "line"] },
};

// Holders and phases are recorded at the peak only.
export function levelsOf(frame, order) {
  const { levels } = ORDERS[knownOrder(order)];
  return levels.every((level) => frame.has(level)) ? levels : ORDERS.category.levels;
}

// The URL may hold anything; an unknown order becomes the default.
export const knownOrder = (order) => (Object.hasOwn(ORDERS, order) ? order : "category");

export const BLANK = { module: "(top level)", op_name: "(before the block)", line: "(no line)", category: "unknown", holder: "(unknown)", holder_kind: "(unknown)", phase: "(unknown)" };

function child(node, level, name, key) {
  let found = node.byKey.get(key);
  if (!found) {
    found = { name, level, key, value: 0, count: 0, byKey: new Map(), bytesOf: new Map() };
    node.byKey.set(key, found);
  }
  return found;
}

// Returns the modules around a storage's: by the tree of modules or, if it is not there, by the dots in the name.
function around(text, lineage) {
  const known = lineage(text);
  if (known.length) return known;
  const parts = text.split(".");
  return parts.map((_, index) => parts.slice(0, index + 1).join("."));
}

// Shows `blocks.0` rather than a bare `0`.
function shortModule(name, above) {
  const local = above !== undefined && name.startsWith(`${above}.`) ? name.slice(above.length + 1) : name;
  return /^\d+$/.test(local) ? name.split(".").slice(-2).join(".") : local;
}

// Returns the nodes below `node` that a storage passes through at one level.
function steps(level, text, lineage) {
  if (level !== "module" || text === "") return [{ name: text || BLANK[level], key: `${level}=${text}` }];
  const path = around(text, lineage);
  return path.map((name, index) => ({ name: shortModule(name, path[index - 1]), key: `module<${name}` }));
}

function add(node, category, nbytes) {
  node.value += nbytes;
  node.count += 1;
  node.bytesOf.set(category, (node.bytesOf.get(category) ?? 0) + nbytes);
}

function finish(node) {
  let children = [...node.byKey.values()].map(finish);
  children.sort((a, b) => b.value - a.value || (a.key < b.key ? -1 : 1));
  // a module whose only content is another module shares its cell: `encoder.layers`
  if (node.level === "module" && children.length === 1 && children[0].level === "module" && node.key.startsWith("module<")) {
    const only = children[0];
    return { ...only, name: only.name.startsWith(`${node.name}.`) ? only.name : `${node.name}.${only.name}` };
  }
  const [category] = [...node.bytesOf.entries()].reduce((best, entry) => (entry[1] > best[1] ? entry : best), ["unknown", -1]);
  const { name, level, key, value, count } = node;
  return { name, level, key, value, count, category, children };
}

export function buildTree(frame, levels, name, lineage) {
  const root = child({ byKey: new Map() }, "root", name, "root");
  for (let row = 0; row < frame.rows; row++) {
    const category = frame.get("category", row);
    const nbytes = frame.get("nbytes", row);
    let node = root;
    add(node, category, nbytes);
    for (const level of levels) {
      for (const step of steps(level, frame.get(level, row), lineage)) {
        node = child(node, level, step.name, step.key);
        add(node, category, nbytes);
      }
    }
  }
  return finish(root);
}

// Returns the conditions that the rows of a cell fulfil: its own key and those of the cells above it.
export function matches(frame, keys, lineage) {
  const tests = keys.filter((key) => key !== "root").map((key) => {
    const [, level, sign, wanted] = /^(\w+)([=<])([^]*)$/.exec(key);
    const exact = (text) => text === wanted;
    const below = (text) => text !== "" && around(text, lineage).includes(wanted);
    return [level, sign === "=" ? exact : below];
  });
  return (row) => tests.every(([level, test]) => test(frame.get(level, row)));
}
