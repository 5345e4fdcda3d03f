// Vectors of texts in a browser or in Node, equal to the student's encode() in Python.
//
//   import * as transformers from "@huggingface/transformers";
//   import { open } from "./encoder.js";
//   const student = await open(transformers);
//   const [vector] = await student.encode(["a text"]);
//
// The model is read from the folder in which this file lies, and from nowhere else.

const BATCH = 32;

/**
 * Open the student beside this file.
 *
 * @param transformers the module @huggingface/transformers
 * @param options of its from_pretrained: dtype is "q8" (int8, the default) or "fp32"; device
 */
export async function open(transformers, { dtype = "q8", ...options } = {}) {
  const folder = await place();
  transformers.env.allowLocalModels = true;
  const settings = JSON.parse(await text("distilvec_onnx.json"));
  const tokenizer = await transformers.AutoTokenizer.from_pretrained(folder, { local_files_only: true });
  // The base class hands every model of one graph its inputs, whatever its architecture.
  const model = await transformers.PreTrainedModel.from_pretrained(folder, {
    dtype,
    ...options,
    local_files_only: true,
  });
  return new Encoder(transformers.Tensor, settings, tokenizer, model);
}

class Encoder {
  constructor(Tensor, settings, tokenizer, model) {
    Object.assign(this, { Tensor, settings, tokenizer, model });
    this.width = settings.width;
    this.prompts = settings.prompts;
  }

  /**
   * @param texts a list of strings
   * @param prompt the name of one of the student's prompts; default is its own default, where it has one
   * @returns a list of Float32Array, one vector a text
   */
  async encode(texts, prompt = this.settings.default_prompt_name) {
    if (!Array.isArray(texts)) throw new TypeError("encode takes a list of texts");
    if (prompt != null && !Object.hasOwn(this.prompts, prompt)) {
      throw new RangeError(`there is no prompt "${prompt}"; known: ${Object.keys(this.prompts).join(", ") || "none"}`);
    }
    const before = prompt == null ? "" : this.prompts[prompt];
    const rows = texts.map((each) => this.#pieces(before + each));
    const order = rows.map((_, row) => row).sort((a, b) => rows[b].length - rows[a].length);
    const vectors = new Array(texts.length);
    for (let start = 0; start < order.length; start += BATCH) {
      const chosen = order.slice(start, start + BATCH);
      const found = await this.model(this.#batch(chosen.map((row) => rows[row])));
      const numbers = found[this.settings.output].data;
      chosen.forEach((row, place) => {
        vectors[row] = Float32Array.from(numbers.subarray(place * this.width, (place + 1) * this.width));
      });
    }
    return vectors;
  }

  /** Token ids of a text. What is too long is cut as in Python: special tokens stay, and the text loses its end. */
  #pieces(text) {
    const { max_length: longest, truncation_side: side, add_special_tokens: special } = this.settings;
    const ids = this.tokenizer.encode(text, { add_special_tokens: special });
    if (longest == null || ids.length <= longest) return ids;
    const bare = special ? this.tokenizer.encode(text, { add_special_tokens: false }) : ids;
    const added = ids.length - bare.length;
    let start = 0;
    while (start < added && !bare.every((id, place) => id === ids[start + place])) start++;
    const kept = longest - added;
    const cut = side === "left" ? bare.slice(bare.length - kept) : bare.slice(0, kept);
    return [...ids.slice(0, start), ...cut, ...ids.slice(start + bare.length)];
  }

  /** The tensors of a batch, padded to its longest row on the student's own side. */
  #batch(rows) {
    const { inputs, padding_side: side, pad_id: padding, pad_type_id: type } = this.settings;
    const length = Math.max(1, ...rows.map((row) => row.length));
    const filled = { input_ids: padding, attention_mask: 0, token_type_ids: type };
    const values = { input_ids: (id) => id, attention_mask: () => 1, token_type_ids: () => 0 };
    const batch = {};
    for (const name of inputs) {
      const numbers = new BigInt64Array(rows.length * length).fill(BigInt(filled[name]));
      rows.forEach((row, place) => {
        const first = place * length + (side === "left" ? length - row.length : 0);
        row.forEach((id, step) => (numbers[first + step] = BigInt(values[name](id))));
      });
      batch[name] = new this.Tensor("int64", numbers, [rows.length, length]);
    }
    return batch;
  }
}

/** The folder of this file, as transformers.js wants it: a path, of the disk or of the server. */
async function place() {
  const here = new URL(".", import.meta.url);
  if (here.protocol !== "file:") return here.pathname;
  const { fileURLToPath } = await import("node:url");
  return fileURLToPath(here);
}

async function text(name) {
  const file = new URL(name, import.meta.url);
  if (file.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    return readFile(file, "utf8");
  }
  const answer = await fetch(file);
  if (!answer.ok) throw new Error(`${name} cannot be fetched (${answer.status})`);
  return answer.text();
}
