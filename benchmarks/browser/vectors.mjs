// Vectors of texts in Node: vectors.mjs EXPORT TEXTS OUTPUT [PROMPT]. Writes {fp32: [...], q8: [...]} as JSON.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

import * as transformers from "@huggingface/transformers";

const [folder, texts, output, prompt] = process.argv.slice(2);
const { open } = await import(pathToFileURL(`${folder}/encoder.js`));
const all = JSON.parse(readFileSync(texts, "utf8"));
const found = {};
for (const dtype of ["fp32", "q8"]) {
  const student = await open(transformers, { dtype });
  found[dtype] = (await student.encode(all, prompt)).map((vector) => Array.from(vector));
}
writeFileSync(output, JSON.stringify(found));
