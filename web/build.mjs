// Bundles the scripts of the pages and collects the licences of all packages in them.
// `node build.mjs` writes them beside the template; `node build.mjs --check` only compares.
import { createHash } from "node:crypto";
import { readFile, readdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { basename, dirname, join } from "node:path";
import esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const assets = join(here, "..", "memwatch", "report", "page", "assets");

const result = await esbuild.build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.ts", leaks: "src/leaks.ts", diff: "src/diff.ts", ranks: "src/ranks.ts" },
  outdir: assets,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  charset: "ascii",
  legalComments: "none", // their full texts are in licences.txt
  metafile: true,
  write: false,
  alias: { "d3-transition": "./src/at_once.ts" }, // what d3-flame-graph would animate
});

async function licences(inputs) {
  const bundled = inputs.map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]);
  const packages = [...new Set(bundled.filter(Boolean))].sort();
  const texts = packages.map(async (name) => {
    const folder = join(here, "node_modules", name);
    const manifest = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const text = await readFile(join(folder, "LICENSE"), "utf8");
    return `${name} ${manifest.version} (${manifest.license})\n\n${text.trim()}\n`;
  });
  return (await Promise.all(texts)).join(`\n${"=".repeat(79)}\n\n`);
}

const style = await esbuild.transform(
  (await readFile(join(here, "node_modules/uplot/dist/uPlot.min.css"), "utf8")) +
    (await readFile(join(here, "src/page.css"), "utf8")),
  { loader: "css", minify: true, legalComments: "none" },
);
const built = {
  ...Object.fromEntries(result.outputFiles.map(({ path, text }) => [basename(path), text])),
  "page.css": style.code,
  "licences.txt": await licences(Object.keys(result.metafile.inputs)),
};

// A digest of the sources: a test compares it where node is not installed, and fails if the page was not rebuilt.
async function digest() {
  const hash = createHash("sha256");
  const names = (await readdir(join(here, "src"))).sort().map((name) => `src/${name}`);
  for (const name of ["build.mjs", "package-lock.json", ...names]) hash.update(await readFile(join(here, name)));
  return `${hash.digest("hex")}\n`;
}

let stale = false;
for (const [name, text] of [...Object.entries(built), ["../../../../web/sources.sha256", await digest()]]) {
  const path = join(assets, name);
  if (/<\/(script|style)/i.test(text)) throw new Error(`${name} would end its own element`);
  if (process.argv.includes("--check")) {
    if ((await readFile(path, "utf8").catch(() => "")) !== text) {
      console.error(`${name} is not what web/src builds: run npm ci && npm run build in web/`);
      stale = true;
    }
  } else {
    await writeFile(path, text);
    console.log(`${name}: ${Buffer.byteLength(text)} bytes`);
  }
}
process.exitCode = stale ? 1 : 0;
