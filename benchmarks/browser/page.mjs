// The search page in headless Chromium: page.mjs ADDRESS CHROMIUM INPUT OUTPUT PICTURES.
//
// ADDRESS serves an export with its page; INPUT holds {texts, queries, file}. Writes as JSON: vectors of the texts in both
// precisions, what each query found, times, every address that was asked for, and what a page opened from a file says.
import { readFileSync, writeFileSync } from "node:fs";

import { chromium } from "playwright-core";

const [address, executablePath, input, output, pictures] = process.argv.slice(2);
const { texts, queries, file } = JSON.parse(readFileSync(input, "utf8"));
const FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking";
const SHOWN = "people who make music"; // on the pictures
const args = [...FLAGS.split(" "), "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath, args });
const found = { asked: [], faults: [], loads: [], vectors: {}, answers: [], widths: {} };

async function opened(options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.on("request", (request) => found.asked.push(request.url()));
  page.on("pageerror", (error) => found.faults.push(error.message));
  const begun = Date.now();
  await page.goto(`${address}/page/index.html`);
  await page.waitForFunction(() => document.body.dataset.ready, null, { timeout: 60000 });
  const ready = Date.now();
  await page.keyboard.type("a");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.body.dataset.took, null, { timeout: 60000 });
  found.loads.push({ loading: ready - begun, first: Date.now() - ready });
  return [context, page];
}

const phone = { viewport: { width: 375, height: 720 }, isMobile: true, hasTouch: true };
for (let round = 0; round < 5; round++) {
  const [context, page] = await opened({ viewport: { width: 1200, height: 800 } });
  if (round === 0) {
    for (const dtype of ["fp32", "q8"]) {
      found.vectors[dtype] = await page.evaluate(
        async ([texts, dtype]) => {
          const transformers = await import("transformers");
          const { open } = await import("/encoder.js");
          const student = await open(transformers, { dtype, device: "wasm" });
          return (await student.encode(texts)).map((vector) => Array.from(vector));
        },
        [texts, dtype],
      );
    }
    for (const query of queries) {
      await page.evaluate(() => delete document.body.dataset.took);
      await page.fill("#query", query);
      await page.keyboard.press("Enter");
      await page.waitForFunction(() => document.body.dataset.took);
      const [rows, took] = await page.evaluate(() => [
        Array.from(document.querySelectorAll(".text"), (each) => each.textContent),
        Number(document.body.dataset.took),
      ]);
      found.answers.push({ rows, took });
    }
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowDown");
    found.focused = await page.evaluate(() => document.activeElement.querySelector(".text").textContent);
    found.widths.desktop = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    await page.fill("#query", SHOWN);
    await page.keyboard.press("Enter");
    await page.waitForTimeout(1000);
    await page.screenshot({ path: `${pictures}/search-page.png` });
  }
  await context.close();
}
const [context, page] = await opened(phone);
await page.fill("#query", SHOWN);
await page.waitForTimeout(1000);
found.widths.phone = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
await page.screenshot({ path: `${pictures}/search-page-phone.png` });
await context.close();

const local = await browser.newPage();
await local.goto(file);
await local.waitForTimeout(2000);
found.from_file = { seen: await local.isVisible("#missing"), words: await local.textContent("#missing") };
await browser.close();
writeFileSync(output, JSON.stringify(found));
