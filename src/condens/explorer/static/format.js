// Numbers and names as they are shown. Names are the data's, and so hostile: they only ever become
// text nodes, and characters that steer how others are shown are replaced.

const PLAIN = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, useGrouping: false });

/** Return a number with four digits, or a dash. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) {
    return value.toExponential(3).replace(/\.?0*e\+?/, "e").replaceAll("-", "−");
  }
  return PLAIN.format(value).replace("-", "−");
}

/** Return a range of numbers. */
export function range([low, high]) {
  return `${number(low)} to ${number(high)}`;
}

/** Return a fraction as a percentage. */
export function percent(fraction) {
  return `${Number((100 * fraction).toPrecision(3))} %`;
}

/** Return a name without characters that control others, and not too long. */
export function clean(name, length = 60) {
  const text = String(name).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "\ufffd");
  const letters = Array.from(text);
  return letters.length > length ? `${letters.slice(0, length - 1).join("")}…` : text;
}

/** Return rows as CSV; text that a spreadsheet would compute with is quoted as text. */
export function csv(rows) {
  const cell = (value) => {
    if (typeof value === "number") return String(value);
    if (value === null || value === undefined) return "";
    const text = /^[=+\-@\t\r]/.test(String(value)) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

const LITTLE_ENDIAN = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

/** Return the numbers of base64-encoded 32-bit floats, the lowest byte first. */
export function floats(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) bytes[i] = letters.charCodeAt(i);
  if (LITTLE_ENDIAN) return new Float32Array(bytes.buffer);
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}
