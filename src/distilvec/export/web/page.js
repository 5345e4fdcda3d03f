// Search by meaning, in the browser alone: the student reads the query, and its vector is compared with those of the texts.

import * as transformers from "transformers";
import { open } from "./model/encoder.js";

const FIRST = 10;
const STEP = 20;
const PAUSE = 120; // milliseconds without a key, after which what was typed is searched for

const [form, input, status, progress, results, more] = ["form", "query", "status", "progress", "results", "more"].map(
  (name) => document.getElementById(name),
);
document.getElementById("missing").remove();

let page, student, texts, scales, vectors;
let asked = 0;

start().catch(failed);

async function start() {
  status.textContent = "Loading …";
  progress.hidden = false;
  page = await (await counted("page.json")).json();
  const { env } = transformers;
  env.fetch = counted;
  env.useBrowserCache = false; // the browser's own cache notices when the page is made anew
  env.useWasmCache = false;
  const wasm = env.backends.onnx.wasm;
  const library = new URL("library/", import.meta.url).href;
  wasm.wasmPaths = { mjs: `${library}onnxruntime-wasm.js`, wasm: `${library}onnxruntime-wasm.bin` };
  wasm.numThreads = 1;
  const [runtime, numbers, words] = await Promise.all([
    packed("library/onnxruntime-wasm.bin"),
    counted("vectors.bin").then((answer) => answer.arrayBuffer()),
    packed("texts.bin"),
  ]);
  wasm.wasmBinary = runtime;
  scales = new Float32Array(numbers, 0, page.count);
  vectors = new Int8Array(numbers, 4 * page.count);
  texts = JSON.parse(new TextDecoder().decode(words));
  student = await open(transformers, { dtype: "q8", device: "wasm" });
  await student.encode(["warm"], page.prompt);
  progress.hidden = true;
  input.disabled = false;
  input.focus();
  list();
  document.body.dataset.ready = Math.round(performance.now());
}

let loaded = 0;

/** fetch, which moves the bar on. */
async function counted(url, options) {
  const answer = await fetch(url, options);
  if (!answer.ok || !answer.body) throw new Error(`${new URL(url, location).pathname} cannot be fetched (${answer.status})`);
  const stream = answer.body.pipeThrough(
    new TransformStream({
      transform(chunk, next) {
        loaded += chunk.byteLength;
        if (page) progress.value = loaded / page.bytes;
        next.enqueue(chunk);
      },
    }),
  );
  return new Response(stream, { status: answer.status, headers: answer.headers });
}

/** A file's bytes, unpacked; some servers have done that already. */
async function packed(name) {
  const bytes = new Uint8Array(await (await counted(name)).arrayBuffer());
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes.buffer;
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

async function search() {
  const own = ++asked;
  const query = input.value.trim();
  if (!query) return list();
  const begun = performance.now();
  const [vector] = await student.encode([query], page.prompt);
  if (own !== asked) return; // something else was typed meanwhile
  if (page.similarity === "cosine") unit(vector);
  const scores = compared(vector);
  const ranking = Array.from(scores.keys()).sort((a, b) => scores[b] - scores[a]);
  const took = performance.now() - begun;
  fill(ranking, scores);
  status.textContent = `Nearest of ${page.count.toLocaleString()} texts, in ${Math.max(1, Math.round(took))} ms.`;
  document.body.dataset.took = took;
}

/** What there is to be found, in its own order. */
function list() {
  fill(Array.from({ length: page.count }, (_, row) => row));
  status.textContent = `Ready. The first of ${page.count.toLocaleString()} texts:`;
}

function unit(vector) {
  const length = Math.hypot(...vector);
  if (length > 0) vector.forEach((number, place) => (vector[place] = number / length));
}

/** The product of a vector with each text's: bytes, times the text's own scale. */
function compared(vector) {
  const width = vector.length;
  const scores = new Float32Array(page.count);
  for (let row = 0, first = 0; row < page.count; row++, first += width) {
    let sum = 0;
    for (let place = 0; place < width; place++) sum += vectors[first + place] * vector[place];
    scores[row] = sum * scales[row];
  }
  return scores;
}

/** Show the first rows of a ranking, and let the button show more. */
function fill(ranking, scores) {
  results.replaceChildren();
  show(ranking.slice(0, FIRST), scores);
  const update = () => (more.hidden = results.children.length >= ranking.length);
  more.onclick = () => {
    const next = results.children.length;
    show(ranking.slice(next, next + STEP), scores);
    update();
    results.children[next].firstChild.focus();
  };
  update();
}

function show(rows, scores) {
  for (const row of rows) {
    const item = document.createElement("li");
    const result = element("button", scores ? "result" : "result plain");
    result.type = "button";
    const text = element("span", "text", texts[row]);
    text.dir = "auto";
    if (scores) result.append(element("span", "score", scores[row].toFixed(2)));
    result.append(text);
    item.append(result);
    results.append(item);
    if (text.scrollHeight > text.clientHeight + 1) {
      result.classList.add("long");
      result.setAttribute("aria-expanded", "false");
      result.onclick = () => result.setAttribute("aria-expanded", String(result.getAttribute("aria-expanded") === "false"));
    }
  }
}

function element(name, kind, content = "") {
  const made = document.createElement(name);
  made.className = kind;
  made.textContent = content;
  return made;
}

function failed(error) {
  console.error(error);
  progress.hidden = true;
  status.className = "wrong";
  status.textContent = `This did not work: ${error.message ?? error}. Load the page again; if that changes nothing, make it anew.`;
}

let timer;
input.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => search().catch(failed), PAUSE);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  search().catch(failed);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && document.activeElement !== input) {
    event.preventDefault();
    input.focus();
    input.select();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const stops = [input, ...results.querySelectorAll("button"), ...(more.hidden ? [] : [more])];
    const here = stops.indexOf(document.activeElement);
    const next = stops[here + (event.key === "ArrowDown" ? 1 : -1)];
    if (here < 0 || !next) return;
    event.preventDefault();
    next.focus();
  }
});
