// What storages are grouped and coloured by. Each dimension is a column of text of the live set.

export interface Dimension {
  label: string;
  column: string;
  blank: string; // what no value is called
  tint: (text: string) => string; // what colours tell: few different values of what may be many
}

const same = (text: string) => text;

export const DIMENSIONS: Record<string, Dimension> = {
  category: { label: "category", column: "category", blank: "unknown", tint: same },
  module: { label: "module", column: "module", blank: "(top level)", tint: (text) => text.split(".").slice(0, 2).join(".") },
  phase: { label: "phase (made in)", column: "made_phase", blank: "(before the block)", tint: same },
  dtype: { label: "dtype", column: "dtype", blank: "(no tensor)", tint: same },
  device: { label: "device", column: "device", blank: "(unknown)", tint: same },
  holder: { label: "holder at the peak", column: "holder_kind", blank: "(not alive at the peak)", tint: same },
  line: { label: "line", column: "own_line", blank: "(no line)", tint: same },
  op: { label: "op", column: "op_name", blank: "(before the block)", tint: same },
  life: { label: "life at the peak", column: "phase", blank: "(not alive at the peak)", tint: same },
};

const BLANKS: Record<string, string> = {
  ...Object.fromEntries(Object.values(DIMENSIONS).map(({ column, blank }) => [column, blank])),
  line: "(no line)",
  holder: "(not alive at the peak)",
};

export const blankOf = (column: string): string => BLANKS[column] ?? "(unknown)";

// The URL may hold anything; unknown names are left out.
export const known = (name: string): string => (Object.hasOwn(DIMENSIONS, name) ? name : "category");
export const grouping = (by: string): string[] => {
  const names = [...new Set(by.split("."))].filter((name) => Object.hasOwn(DIMENSIONS, name)).slice(0, 2);
  return names.length ? names : ["category", "module"];
};

// Returns the columns by which a tree splits: those that the user chose, then holder, op and line, which say more.
export function levelsOf(by: string, comparing: boolean): string[] {
  const chosen = grouping(by).flatMap((name) => (name === "holder" ? ["holder_kind", "holder"] : [DIMENSIONS[name].column]));
  return [...(comparing ? ["change"] : []), ...new Set([...chosen, "op_name", "line"])];
}
