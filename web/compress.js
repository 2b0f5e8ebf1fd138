// Puts FILE.br and FILE.gz beside each file of a folder: the server has no time for the best compression, the build has.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const folder = process.argv[2];
if (!folder) throw new Error("say which folder: compress.js FOLDER");
for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
  if (!entry.isFile() || /\.(br|gz|png|woff2)$/.test(entry.name)) continue;
  const path = join(entry.parentPath, entry.name);
  const data = readFileSync(path);
  const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: data.length };
  const packed = { br: brotliCompressSync(data, { params }), gz: gzipSync(data, { level: 9 }) };
  for (const [end, bytes] of Object.entries(packed)) {
    // What does not shrink is given as it is.
    if (bytes.length < data.length) writeFileSync(`${path}.${end}`, bytes);
  }
}
