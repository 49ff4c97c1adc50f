// Decodes the packed tables that memwatch/report/page/columns.py writes.

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export async function unpack(text) {
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export async function unpackJson(text) {
  return JSON.parse(new TextDecoder().decode(await unpack(text)));
}

// Decodes zigzag varints. It uses plain arithmetic, because bit operators work on 32 bits only.
export async function unpackInts(packed) {
  const bytes = await unpack(packed.data);
  let count = 0;
  for (let i = 0; i < bytes.length; i++) if (bytes[i] < 128) count++;
  const values = new Float64Array(count);
  let value = 0;
  let scale = 1;
  let previous = 0;
  for (let i = 0, row = 0; i < bytes.length; i++) {
    value += (bytes[i] & 127) * scale;
    if (bytes[i] >= 128) {
      scale *= 128;
      continue;
    }
    const signed = value % 2 === 0 ? value / 2 : -(value + 1) / 2;
    previous = packed.delta ? previous + signed : signed;
    values[row++] = previous;
    value = 0;
    scale = 1;
  }
  return values;
}

// A table by columns. A column holds numbers, or indices into the texts of the page.
export class Frame {
  constructor(rows, columns, words) {
    this.rows = rows;
    this.columns = columns;
    this.words = words;
  }

  static async unpack(block, words) {
    const entries = Object.entries(block.columns).map(async ([name, packed]) => [
      name,
      { text: packed.kind === "text", values: await unpackInts(packed) },
    ]);
    return new Frame(block.rows, Object.fromEntries(await Promise.all(entries)), words);
  }

  has(name) {
    return Object.hasOwn(this.columns, name);
  }

  isText(name) {
    return this.columns[name].text;
  }

  get(name, row) {
    const column = this.columns[name];
    return column.text ? this.words[column.values[row]] : column.values[row];
  }

  sum(name, rows) {
    const { values } = this.columns[name];
    return rows ? rows.reduce((total, row) => total + values[row], 0) : values.reduce((a, b) => a + b, 0);
  }
}
