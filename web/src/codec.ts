// Decodes the packed columns that memwatch/report/page/columns.py writes.

export interface Packed {
  kind: "int" | "text";
  delta: boolean;
  data: string;
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const native = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> }).fromBase64;
  if (native) return native.call(Uint8Array, text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function unpack(text: string): Promise<Uint8Array> {
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export async function unpackTexts(text: string): Promise<string[]> {
  return JSON.parse(new TextDecoder().decode(await unpack(text)));
}

// Decodes zigzag varints. Of more than one byte it uses plain arithmetic: bit operators work on 32 bits only.
export async function unpackInts(packed: Packed): Promise<Float64Array> {
  const bytes = await unpack(packed.data);
  let count = 0;
  for (let i = 0; i < bytes.length; i++) if (bytes[i] < 128) count++;
  const values = new Float64Array(count);
  for (let i = 0, row = 0; row < count; row++) {
    let byte = bytes[i++];
    if (byte < 128) {
      values[row] = (byte >>> 1) ^ -(byte & 1); // most numbers are one byte
      continue;
    }
    let value = byte & 127;
    for (let scale = 128; byte >= 128; scale *= 128) {
      byte = bytes[i++];
      value += (byte & 127) * scale;
    }
    values[row] = value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }
  if (packed.delta) for (let row = 1; row < count; row++) values[row] += values[row - 1];
  return values;
}
